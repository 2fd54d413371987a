"""How long somebody waits: for a query slot, behind those who came before; for a place, until nobody of higher priority comes."""

import dataclasses

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from integer_engine import (
    CONFIG,
    AllWindowsMachine,
    AsynchronousMachine,
    LimitedMachine,
    LongWindowMachine,
    ManagerMachine,
    Request,
)

from zipage_sglang.state import NO_SLOT


class LimitedAllWindows(AllWindowsMachine):
    """All windows score, and one compression a step at most."""

    config = dataclasses.replace(AllWindowsMachine.config, max_compress=1)


KINDS = [ManagerMachine, LimitedMachine, AllWindowsMachine, LimitedAllWindows, AsynchronousMachine, LongWindowMachine]
BLOCK = CONFIG.block
HANDS = 2  # steps in which a slot changes hands


def machine_of(kind, slots):
    return type(kind.__name__, (kind,), dict(slots=slots))()


def newcomer(machine, tokens):
    return Request(5, 0, machine.configured(CONFIG), tokens)


def waiting(machine):
    """Who waits for a query slot, in turn."""
    items = [item for item in machine.manager.parked if not item.req.over and not item.req.ending]
    return [item.req for item in items if item.state.slot == NO_SLOT and item.state.flight is None]


def longest_waits(machine, arrivals, steps):
    """[(steps that a request waited for a query slot, how many waited before it)]; arrivals: {step: tokens of each newcomer}."""
    since, waits = {}, []
    for now in range(steps):
        machine.batch.reqs += [newcomer(machine, tokens) for tokens in arrivals.get(now, [])]
        machine.decode(1)
        queue = waiting(machine)
        waits += [(now - start, ahead) for req, (start, ahead) in since.items() if req not in queue]
        since = {req: since.get(req, (now, ahead)) for ahead, req in enumerate(queue)}
    return waits + [(steps - start, ahead) for start, ahead in since.values()]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20, deadline=None)
@given(slots=st.integers(1, 3), came=st.lists(st.tuples(st.integers(0, 60), st.sampled_from([40, 60, 10**6])), min_size=3, max_size=8))
@example(slots=1, came=[(0, 10**6), (4, 10**6), (6, 10**6)])  # two that hand the one slot to each other, were the third not ahead
def test_a_slot_is_had_in_turn(kind, slots, came):
    """Whoever is ahead has a slot for a block at most, or until the others with one have been compressed; `slots` have one at a time."""
    arrivals = {}
    for step, tokens in came:
        arrivals.setdefault(step, []).append(tokens)
    held = max(BLOCK, kind.config.window + kind.config.async_steps)  # beside the decode steps a slot is read on
    turn = held + HANDS + (slots if kind.config.max_compress else 0)
    for steps, ahead in longest_waits(machine_of(kind, slots), arrivals, 200):
        assert steps <= (ahead // slots + 1) * turn


class Queue:
    """SGLang's admission by priority, over integers: `places` run at most, whoever is waiting takes the place of somebody of a lower
    priority, who starts anew from its text.  Parked requests keep their place."""

    def __init__(self, machine, places):
        self.machine, self.places, self.queue, self.preempted = machine, places, [], 0

    def admit(self):
        machine, self.queue = self.machine, sorted(self.queue, key=lambda req: -req.priority)
        for req in list(self.queue):
            if len(machine.batch.reqs) + len([item for item in machine.manager.parked if not item.req.over]) >= self.places:
                lowest = min(range(len(machine.batch.reqs)), key=lambda i: machine.batch.reqs[i].priority, default=None)
                if lowest is None or machine.batch.reqs[lowest].priority >= req.priority:
                    return
                self.retract(lowest)
            self.queue.remove(req)
            machine.batch.reqs.append(req)

    def retract(self, index):
        machine, self.preempted = self.machine, self.preempted + 1
        victim = machine.batch.reqs[index]
        machine.engine.leave(machine.batch, [], [index])
        machine.engine.retracted.clear()
        machine.manager.release(victim)
        victim.kv = victim.prefill = victim.true_len
        victim.zipage = None
        self.queue.append(victim)

    def step(self):
        self.admit()
        self.machine.decode(1)


def steps_of(tokens, slots):
    """Steps of one request that never waits for another: a token each, and for every block those in which slots change hands or
    the compressions of others come first."""
    return tokens + (tokens // BLOCK + 2) * (HANDS + slots)


@pytest.mark.parametrize("kind", [LimitedMachine, LimitedAllWindows])
@settings(max_examples=25, deadline=None)
@given(
    slots=st.integers(1, 3), places=st.integers(2, 6), low=st.lists(st.integers(20, 90), min_size=2, max_size=5),
    high=st.lists(st.tuples(st.integers(0, 60), st.integers(5, 60), st.integers(1, 2)), min_size=1, max_size=6),
)  # fmt: skip
def test_the_lowest_priority_is_served_once_nobody_else_comes(kind, slots, places, low, high):
    machine = machine_of(kind, slots)
    queue, everybody = Queue(machine, places), []

    def come(tokens, priority):
        everybody.append(newcomer(machine, tokens))
        everybody[-1].priority = priority
        queue.queue.append(everybody[-1])

    for tokens in low:
        come(tokens, 0)
    last = max(step for step, _, _ in high)
    for now in range(last + 1):
        for step, tokens, priority in high:
            if step == now:
                come(tokens, priority)
        queue.step()
    left = [steps_of(req.end_len - req.true_len, slots) for req in everybody if not req.over]
    # As many run at once as have slots: the list scheduling bound.
    bound = sum(left) / min(slots, places) + max(left, default=0)
    for _ in range(int(bound)):
        queue.step()
    assert all(req.over and req.true_len == req.end_len for req in everybody)


def test_the_model_of_priorities_preempts():
    machine = machine_of(LimitedMachine, 2)
    queue = Queue(machine, 2)
    queue.queue = [newcomer(machine, 100) for _ in range(3)]
    for req, priority in zip(queue.queue, (0, 1, 2)):
        req.priority = priority
    lowest, *others = list(queue.queue)
    queue.queue = [lowest, others[0]]
    queue.step()
    assert machine.batch.reqs == [others[0], lowest]
    queue.queue.append(others[1])
    queue.step()
    assert machine.batch.reqs == others and queue.queue == [lowest] and queue.preempted == 1
