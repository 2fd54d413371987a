"""Admissions in groups: who waits, how long at most, and what it comes to in prefills and empty places."""

import types
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from zipage_patches import active, grouping

from zipage_sglang import grouping as rule
from zipage_sglang.grouping import GROUP, Groups
from zipage_sglang.stats import Stats


class Server:
    """A pool of `places`; whoever waits takes some of them, first come first served.  A step admits or decodes.

    SGLang looks whenever somebody has ended since the last look, as with `batch_is_full`, or room was not short then.
    """

    def __init__(self, places, most):
        self.places, self.groups, self.now = places, Groups(most), 0
        self.running, self.waiting = [], []  # [places, steps left], (places, steps)
        self.full = False
        self.prefills, self.held, self.idle, self.late = 0, 0, 0, 0

    @property
    def room(self):
        return self.places - sum(size for size, _ in self.running)

    def step(self, arriving=()):
        """Returns how many were admitted."""
        self.now += 1
        self.waiting += arriving
        fits = bool(self.waiting) and self.waiting[0][0] <= self.room
        rows, admitted = len(self.running), 0
        if not self.full and self.running and self.groups.waits(self.now, rows, len(self.waiting)):
            self.held += 1
        else:
            looks = not self.full
            while looks and self.waiting and self.waiting[0][0] <= self.room:
                self.running.append(list(self.waiting.pop(0)))
                admitted += 1
            self.full = bool(self.waiting) if looks else self.full
            self.prefills += bool(admitted)
            self.groups.looked(self.now, bool(admitted), self.full and bool(self.waiting), len(self.running))
        self.late = self.late + 1 if fits and not admitted else 0  # steps for which the first could have been admitted
        if not admitted:
            self.idle += self.room if self.waiting else 0
            for request in self.running:
                request[1] -= 1
            left = [request for request in self.running if request[1] > 0]
            self.full = self.full and len(left) == len(self.running)
            self.running = left
        return admitted


def requests(most, longest):
    return st.lists(st.tuples(st.integers(1, 3), st.integers(1, longest)), max_size=most)


@settings(max_examples=300)
@given(group=st.integers(1, 6), places=st.integers(3, 40), most=st.integers(0, 20), last=st.integers(-30, 0),
       rows=st.none() | st.integers(0, 60), start=requests(60, 200), arrivals=st.lists(requests(3, 200), max_size=100))
@example(group=4, places=20, most=10, last=0, rows=40, start=[(1, 1 + 40 * n % 200) for n in range(60)], arrivals=[])
def test_nobody_is_left_waiting_for_longer_from_any_state(group, places, most, last, rows, start, arrivals):
    with mock.patch.object(rule, "GROUP", group):
        server = Server(places, most)
        server.groups.last, server.groups.rows = last, rows
        server.waiting, work = list(start), len(start) + sum(map(len, arrivals))
        for n, arriving in enumerate([*arrivals, *[()] * 50]):
            nobody, room = not server.waiting, server.room
            admitted = server.step(arriving)
            assert server.late <= most
            if n and nobody and arriving and arriving[0][0] <= room:
                assert admitted, "it came while nobody waited, and there was room"
        steps = 0
        while server.waiting:
            steps += not server.step()
            assert server.late <= most and steps <= (200 + most) * work


@given(st.integers(1, 2 * GROUP - 1), st.lists(requests(12, 60), max_size=80))
def test_where_few_fit_nothing_changes(places, arrivals):
    one, other = Server(places, 0), Server(places, 50)
    for arriving in arrivals:
        assert one.step(list(arriving)) == other.step(list(arriving))
    assert other.held == 0


@pytest.mark.parametrize("places, length", [(130, 1000), (130, 4000), (64, 2000), (234, 6000)])
def test_fewer_prefills_for_few_places(places, length):
    """Everybody sent at once, ends spread over time; a prefill stalls those that run for a step or two."""
    servers = [Server(places, most) for most in (0, 128)]
    for server in servers:
        server.running = [[1, 1 + n * length // places] for n in range(places)]
        server.waiting = [(1, length // 2 + n * 7919 % length) for n in range(60 * places)]
        while server.now < 6 * length:
            server.step()
    off, on = servers
    group = places // GROUP
    assert off.held == off.idle == 0 < on.held
    assert on.prefills <= off.prefills / min(group, 3) * 1.1 and on.prefills >= on.now / 129 - 1
    assert on.idle < on.now * group / 2 + places
    stalls = 1.5 * (off.prefills - on.prefills) * places
    assert on.idle < stalls, "what waited for company is less than what company saves"


@pytest.fixture
def scheduler(monkeypatch):
    """What `grouping.admit` reads of a scheduler that is full and was left with somebody who waits."""
    reqs = [types.SimpleNamespace(priority=0, is_retracted=False, finished=lambda: False, origin_input_ids=[n] * 100)
            for n in range(4 * GROUP)]
    manager = types.SimpleNamespace(groups=Groups(8), stats=Stats(), parked=[], watch=types.SimpleNamespace(now=5))
    made = types.SimpleNamespace(chunked_req=None, enable_priority_scheduling=False, enable_priority_preemption=False,
                                 schedule_low_priority_values_first=False, waiting_queue=reqs[:9], chunked_prefill_size=1000,
                                 max_prefill_tokens=1000, server_args=types.SimpleNamespace(prefill_max_requests=None))
    manager.engine = types.SimpleNamespace(held_back=lambda: sum(r.is_retracted for r in made.waiting_queue), has_tree=True)
    batch = types.SimpleNamespace(reqs=reqs[10:], batch_is_full=False, is_prefill_only=False)
    batch.is_empty = lambda: not batch.reqs
    made.running_batch = batch
    manager.groups.looked(3, True, True, len(batch.reqs))
    monkeypatch.setattr(active, "_manager", manager)
    made.manager, made.seen = manager, []
    return made


def held(scheduler):
    """Whether SGLang is kept from looking."""
    batch, before = scheduler.running_batch, dict(vars(scheduler)) | {"full": scheduler.running_batch.batch_is_full}

    def original(self, running_batch):
        assert self is scheduler and running_batch is batch
        scheduler.seen.append(running_batch.batch_is_full and not scheduler.enable_priority_preemption)
        return types.SimpleNamespace(batch_to_run=None, running_batch=running_batch)

    grouping.admit(original, scheduler, batch)
    assert dict(vars(scheduler)) | {"full": batch.batch_is_full} == before
    assert scheduler.manager.stats.admissions_held == sum(scheduler.seen)
    return scheduler.seen[-1]


def test_who_waits_is_left_waiting_for_so_many_steps(scheduler):
    times = 0
    while held(scheduler):
        times, scheduler.manager.watch.now = times + 1, scheduler.manager.watch.now + 1
    assert scheduler.manager.watch.now == 3 + 8 + 1 and times == 7


def test_a_prefill_begins_the_next_wait(scheduler):
    batch, groups, watch = scheduler.running_batch, scheduler.manager.groups, scheduler.manager.watch
    watch.now, batch.reqs[0].finished = 20, lambda: True
    new = types.SimpleNamespace(reqs=[object(), types.SimpleNamespace(origin_input_ids=[1, 2])])

    def look(full):
        def original(scheduler, running_batch):
            running_batch.batch_is_full = full
            return types.SimpleNamespace(batch_to_run=new, running_batch=running_batch)

        grouping.admit(original, scheduler, batch)

    look(full=True)
    assert (groups.last, groups.rows) == (20, len(batch.reqs) + 1)  # one of them has ended
    assert groups.prompt == [1, 2]
    batch.batch_is_full, watch.now = False, 28
    assert held(scheduler)
    watch.now = 29
    assert not held(scheduler)
    look(full=False)
    assert (groups.last, groups.rows) == (29, None), "room was not short"


def test_a_look_in_vain_is_no_reason_to_wait(scheduler):
    groups = scheduler.manager.groups
    groups.looked(20, False, True, 100)
    assert (groups.last, groups.rows) == (3, len(scheduler.running_batch.reqs))
    scheduler.manager.watch.now = 21
    assert not held(scheduler)


def nobody_runs(scheduler):
    scheduler.running_batch.reqs = []


def one_was_retracted(scheduler):
    scheduler.waiting_queue[-1].is_retracted = True


def one_has_priority(scheduler):
    scheduler.enable_priority_scheduling = True
    scheduler.waiting_queue[-1].priority = 1


def a_low_value_has_priority(scheduler):
    scheduler.enable_priority_scheduling = scheduler.schedule_low_priority_values_first = True
    scheduler.waiting_queue[-1].priority = -1


def the_first_of_its_prompt(scheduler):
    first, second = scheduler.waiting_queue[:2]
    second.origin_input_ids = list(first.origin_input_ids)


def long_prompts(scheduler):
    """A prefill takes one of them."""
    scheduler.waiting_queue[0].origin_input_ids = [0] * 501


@pytest.mark.parametrize("change", [
    nobody_runs, one_was_retracted, one_has_priority, a_low_value_has_priority, the_first_of_its_prompt, long_prompts,
    lambda s: setattr(s, "chunked_req", object()),
    lambda s: setattr(s.running_batch, "is_prefill_only", True),
    lambda s: setattr(s, "chunked_prefill_size", 199),
    lambda s: setattr(s.server_args, "prefill_max_requests", 1),
    lambda s: setattr(s, "waiting_queue", s.waiting_queue[:1]),
    lambda s: setattr(s.running_batch, "reqs", s.running_batch.reqs[3:]),
    lambda s: setattr(s.manager.groups, "most", 0),
    lambda s: setattr(s.manager.groups, "rows", None),
])
def test_nobody_who_must_not_wait_does(scheduler, change):
    assert held(scheduler)
    change(scheduler)
    assert not held(scheduler)


def test_equal_and_lower_priorities_wait_like_others(scheduler):
    scheduler.enable_priority_scheduling = scheduler.enable_priority_preemption = True
    assert held(scheduler)
    scheduler.waiting_queue[-1].priority = -10
    assert held(scheduler)


@pytest.mark.parametrize("change", [
    lambda s: setattr(s.manager.groups, "prompt", list(s.waiting_queue[0].origin_input_ids)),
    lambda s: setattr(s.manager.engine, "has_tree", False),
])
def test_equal_prompts_wait_where_the_tree_has_theirs_or_there_is_none(scheduler, change):
    the_first_of_its_prompt(scheduler)
    change(scheduler)
    assert held(scheduler)


def test_without_chunks_prefills_have_their_own_limit(scheduler):
    scheduler.chunked_prefill_size = None
    assert held(scheduler)
    scheduler.max_prefill_tokens = 150
    assert not held(scheduler)


def test_the_batch_stays_open_when_something_breaks(scheduler):
    def broken(*args):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        grouping.admit(broken, scheduler, scheduler.running_batch)
    assert not scheduler.running_batch.batch_is_full


def test_a_full_batch_is_left_to_sglang(scheduler):
    scheduler.running_batch.batch_is_full = True
    grouping.admit(lambda s, b: types.SimpleNamespace(batch_to_run=None, running_batch=b), scheduler, scheduler.running_batch)
    assert scheduler.manager.stats.admissions_held == 0
