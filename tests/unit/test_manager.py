"""The manager's decisions over a small engine of plain integers: random arrivals, finishes and retractions."""

import contextlib
import dataclasses

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zipage_sglang import pipeline
from zipage_sglang.compressor import Compressor
from zipage_sglang.config import ZipageConfig
from zipage_sglang.manager import Manager
from zipage_sglang.policies import make_policy
from zipage_sglang.pressure import Gain, Shortage
from zipage_sglang.runtime import ModelShape, Runtime
from zipage_sglang.state import NO_SLOT, RequestState
from zipage_sglang.watch import Watch

CONFIG = ZipageConfig(budget=16, block=8, window=4, policy="recent")
# What requests may have asked for themselves; None: not to be compressed.
OWN = (CONFIG, None, dataclasses.replace(CONFIG, budget=8), dataclasses.replace(CONFIG, budget=12, recency=0.0, policy="random"),
       dataclasses.replace(CONFIG, prefix="compress", sinks=1))
POOL, PAGE = 400, 4


class Request:
    rid = "any"

    def __init__(self, prompt, protected, config=CONFIG):
        self.prompt, self.protected, self.zipage = prompt, protected, None
        self.config = config
        self.kv, self.decoded, self.true_len, self.prefill, self.over = prompt, 0, prompt, prompt, False
        self.ending = False


class IntegerEngine:
    """zipage_sglang.manager.Engine over counters: no tensors of tokens, no SGLang."""

    page_size, tp_size = PAGE, 1

    def __init__(self, config):
        self.config = config
        self.retracted = []
        self.missing = Shortage(0, None)

    def state(self, req):
        return req.zipage

    def new_state(self, req):
        start = (req.config or CONFIG).start(req.prompt)
        req.zipage = RequestState(start=start, prefill_len=req.prefill, config=req.config)
        return req.zipage

    def holds_kv(self, req):
        return not req.over

    def kv_len(self, req):
        return req.kv

    def protected_len(self, req):
        return req.protected

    def allocate(self, slots):
        return torch.arange(slots) if slots <= 64 else None

    def shortage(self, batch):
        return self.missing

    def gain(self, req):
        freed = req.kv - req.zipage.start - req.config.budget
        return Gain(freed, freed - CONFIG.block)

    def copy_out(self, work, runtime):
        pass

    def undo_copy_out(self, work):
        pass

    def failed(self, req):
        pass

    def forward_stream(self):
        return contextlib.nullcontext()

    def row(self, req):
        return 0

    def publish(self, batch, work):
        for item in work:
            assert item.req.config is not None, "compression is off for it"
            assert item.state.slot != NO_SLOT, "compressed without its queries"
            assert item.plan.kept == item.state.start + item.req.config.budget
            item.req.kv = item.plan.kept
            if item.new_slots is not None:
                item.req.protected = item.plan.cut

    def ending(self, req):
        return req.ending

    def leave(self, batch, parked, retracted):
        assert not set(parked) & set(retracted)
        places = {i: batch.reqs[i] for i in parked}
        self.retracted += [batch.reqs[i] for i in retracted]
        batch.reqs = [r for i, r in enumerate(batch.reqs) if i not in parked and i not in retracted]
        return places


class Batch:
    def __init__(self):
        self.reqs = []


class ManagerMachine(RuleBasedStateMachine):
    config = CONFIG

    def __init__(self):
        super().__init__()
        shape = ModelShape(layers=1, q_heads=1, kv_heads=1, head_dim=4, scale=1.0)
        buffers = [torch.zeros(POOL, 1, 4)]
        self.engine, self.batch, self.held = IntegerEngine(self.config), Batch(), []
        runtime = Runtime(CONFIG, shape, buffers, [b.clone() for b in buffers], torch.float32, slots=3, max_batch=16,
                          stores_importance=False)
        rows = torch.arange(1, POOL, dtype=torch.int32)[None]
        self.manager = Manager(self.config, Compressor(runtime.buffers, make_policy(CONFIG), CONFIG, rows), runtime, self.engine)

    @rule(prompt=st.integers(1, 60), cached=st.booleans(), config=st.sampled_from(OWN))
    def arrive(self, prompt, cached, config):
        if config is not None and self.config.when == "pressure":
            config = dataclasses.replace(config, when="pressure")
        if len(self.batch.reqs) < 8:
            self.batch.reqs.append(Request(prompt, prompt // PAGE * PAGE if cached else 0, config))

    @rule(steps=st.integers(1, 12))
    def decode(self, steps):
        for _ in range(steps):
            self.batch.reqs += self.manager.come_back()
            before = self.manager.stats.compressions
            self.manager.step(self.batch)
            assert self.manager.stats.compressions - before <= (self.config.max_compress or 99)
            for req in list(self.batch.reqs):
                state = req.zipage
                trigger = state.trigger
                assert req.kv < trigger or state.over or req.ending, "decoded past the trigger"
                assert not state.over or self.config.when == "pressure" and not self.engine.missing
                kept = state.slot != NO_SLOT or req.kv < trigger - CONFIG.window
                assert kept or req.ending, "a query of the window is lost"
                assert req.config is not None or (state.slot, state.evicted, req.kv) == (NO_SLOT, 0, req.true_len)
                req.kv, req.true_len, req.decoded = req.kv + 1, req.true_len + 1, req.decoded + 1
            rows = self.manager.query_rows(self.batch.reqs)
            assert len(set(rows.values())) == len(rows) and 0 not in rows.values()
            for req in [r for r in self.batch.reqs if r.ending]:
                self.end(self.batch.reqs.pop(self.batch.reqs.index(req)))

    def end(self, req):
        req.over = True
        self.manager.release(req)

    @precondition(lambda self: self.batch.reqs)
    @rule(data=st.data())
    def finish(self, data):
        self.end(self.batch.reqs.pop(data.draw(st.integers(0, len(self.batch.reqs) - 1))))

    @precondition(lambda self: self.manager.parked)
    @rule(data=st.data())
    def finish_a_parked_one(self, data):
        """The step in flight when it was parked was its last, or somebody aborts it."""
        req = data.draw(st.sampled_from([item.req for item in self.manager.parked if not item.req.over] or [None]))
        if req is not None and data.draw(st.booleans()):
            self.end(req)
        elif req is not None:
            req.ending = True

    @precondition(lambda self: self.batch.reqs)
    @rule(data=st.data())
    def retract(self, data):
        self.engine.leave(self.batch, [], [data.draw(st.integers(0, len(self.batch.reqs) - 1))])

    @rule()
    def prefill_again(self):
        """The same object comes back, as in SGLang, so that what is remembered of it by identity is put to the test."""
        for req in self.engine.retracted:
            self.manager.release(req)
            req.kv = req.prefill = req.true_len
            req.protected, req.decoded, req.zipage = req.true_len // PAGE * PAGE, 0, None
            self.batch.reqs.append(req)
        self.engine.retracted = []

    @precondition(lambda self: self.batch.reqs)
    @rule(data=st.data())
    def hold_back(self, data):
        """A request leaves the batch for a while and keeps what it has."""
        self.held.append(self.batch.reqs.pop(data.draw(st.integers(0, len(self.batch.reqs) - 1))))

    @rule()
    def let_go(self):
        self.batch.reqs += self.held
        self.held = []

    @invariant()
    def lengths_add_up_and_slots_have_one_owner(self):
        slots = []
        parked = [item.req for item in self.manager.parked if not item.req.over]
        for req in self.batch.reqs + self.engine.retracted + self.held + parked:
            if req.zipage is None:
                continue
            assert req.kv + req.zipage.evicted == req.true_len
            if req.zipage.compressed and self.config.when == "always":
                assert req.kv <= req.zipage.start + req.config.cap
            assert not req.zipage.over or req.zipage.slot != NO_SLOT or req in self.engine.retracted
            if req.zipage.slot != NO_SLOT:
                slots.append(req.zipage.slot)
        assert sorted(slots + self.manager.free_slots) == list(range(3))
        rows = [r.zipage for r in self.batch.reqs + self.held + parked + self.engine.retracted if r.zipage is not None]
        assert self.manager.compressed == sum(state.compressed for state in rows)


ManagerMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestManager = ManagerMachine.TestCase


class PressureMachine(ManagerMachine):
    """The same with rows that grow on while there is room: a shortage that only compressing all of them can mend, or none."""

    config = dataclasses.replace(CONFIG, when="pressure")

    @rule(now=st.sampled_from([0, 10**6]))
    def squeeze(self, now):
        self.engine.missing = Shortage(now, None)


class LimitedMachine(ManagerMachine):
    """One compression a step at most."""

    config = dataclasses.replace(CONFIG, max_compress=1)


LimitedMachine.TestCase.settings = ManagerMachine.TestCase.settings
TestManagerWithALimit = LimitedMachine.TestCase
PressureMachine.TestCase.settings = ManagerMachine.TestCase.settings
TestManagerUnderPressure = PressureMachine.TestCase


def test_pipeline_runs_once_per_step_and_configuration_however_many_are_due(monkeypatch):
    machine = ManagerMachine()
    calls = []
    compress = pipeline.compress
    monkeypatch.setattr(pipeline, "compress", lambda batch, *rest: calls.append(batch.size) or compress(batch, *rest))
    for _ in range(3):
        machine.batch.reqs.append(Request(5, 0))
    machine.decode(CONFIG.cap + 1)
    assert calls == [3]
    other, longer = dataclasses.replace(CONFIG, recency=0.25), Request(5, 0)
    machine.batch.reqs = [Request(5, 0, other), longer, Request(5, 0, other), Request(5, 0, None)]
    machine.decode(CONFIG.cap + 1)
    assert calls == [3, 2, 1] and machine.batch.reqs[3].kv == 5 + CONFIG.cap + 1


def test_the_last_booking_counts():
    watch, state = Watch(), RequestState(start=0, prefill_len=0, config=CONFIG)
    watch.book("r", state, 2)
    watch.book("r", state, 3)
    assert [watch.due() for _ in range(4)] == [[], [], [("r", state)], []]


def test_a_booking_that_comes_back_to_its_first_step_is_one_look():
    watch, state = Watch(), RequestState(start=0, prefill_len=0, config=CONFIG)
    for steps in (3, 1, 3):
        watch.book("r", state, steps)
    assert [watch.due() for _ in range(3)] == [[], [], [("r", state)]]


def test_the_manager_looks_at_requests_that_are_due_only():
    """Whatever the size of the batch: a step without an event costs no look."""
    machine = ManagerMachine()
    machine.batch.reqs += [Request(5 + n % 3, 0) for n in range(3)]
    looks = []
    kv_len = machine.engine.kv_len
    machine.engine.kv_len = lambda req: looks.append(req) or kv_len(req)
    machine.manager.step(machine.batch)
    assert len(looks) == 3
    for _ in range(CONFIG.cap - CONFIG.window - 1):
        for req in machine.batch.reqs:
            req.kv, req.true_len = req.kv + 1, req.true_len + 1
        machine.manager.step(machine.batch)
    assert len(looks) == 3


def test_a_request_that_is_not_to_be_compressed_is_never_looked_at_again_nor_remembered():
    machine = ManagerMachine()
    machine.batch.reqs += [Request(5, 0, None), Request(6, 0, None)]
    looks = []
    machine.engine.kv_len = lambda req: looks.append(req) or req.kv
    machine.decode(3 * CONFIG.cap)
    machine.batch.reqs.append(Request(7, 0, None))  # another batch
    machine.decode(1)
    assert not looks and not machine.manager.watch._booked


def test_a_request_that_comes_back_at_once_is_seen_again():
    machine = ManagerMachine()
    machine.batch.reqs.append(Request(5, 0))
    machine.decode(1)
    machine.engine.leave(machine.batch, [], [0])
    machine.prefill_again()
    machine.decode(CONFIG.cap + CONFIG.window)
    assert machine.batch.reqs[0].zipage.compressed


def test_a_state_that_somebody_else_made_is_booked_all_the_same():
    machine = ManagerMachine()
    machine.batch.reqs.append(Request(5, 0))
    machine.engine.new_state(machine.batch.reqs[0])
    machine.decode(CONFIG.cap + 1)
    assert machine.batch.reqs[0].zipage.compressed


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_failed_compression_is_recovered_from_by_a_single_rank_only(ranks, monkeypatch):
    """Ranks decide alike only by what they all know; a failure of one is not among it."""
    machine = ManagerMachine()
    machine.engine.tp_size = ranks
    machine.batch.reqs.append(Request(5, 0))
    machine.decode(CONFIG.cap)

    def fail(*args):
        raise torch.OutOfMemoryError("no workspace")

    monkeypatch.setattr(pipeline, "compress", fail)
    if ranks > 1:
        with pytest.raises(torch.OutOfMemoryError):
            machine.decode(1)
        return
    machine.decode(1)
    assert len(machine.engine.retracted) == 1 and not machine.batch.reqs and machine.manager.stats.failures == 1


def finished_in(machine, steps):
    """Steps until each of the machine's requests has been compressed twice."""
    done = {}
    for n in range(steps):
        machine.decode(1)
        machine.lengths_add_up_and_slots_have_one_owner()
        for i, req in enumerate(machine.everybody):
            if i not in done and req.zipage and req.zipage.count == 2:
                done[i] = n
    return done


@pytest.mark.parametrize("kind", [ManagerMachine, LimitedMachine])
def test_nobody_waits_for_ever(kind):
    """Eight at once for three query slots, which eight need more than all the time: they share them, first come first served."""
    machine = kind()
    machine.everybody = [Request(5, 0) for _ in range(8)]
    machine.batch.reqs = list(machine.everybody)
    done = finished_in(machine, 3 * (CONFIG.cap + CONFIG.block))
    assert len(done) == 8 and not machine.engine.retracted
    shared = 2 * 8 * (CONFIG.window + 1) / 3  # two windows each, and the step in which a slot changes hands
    assert machine.manager.stats.parked >= 5 and max(done.values()) <= CONFIG.cap + shared + CONFIG.block + CONFIG.window


def test_requests_that_came_together_wait_once_and_are_spread_out_then():
    machine = ManagerMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(5)]
    machine.decode(CONFIG.cap + 6 * CONFIG.block)
    first = machine.manager.stats.parked
    machine.decode(20 * CONFIG.block)
    assert 2 <= first <= 8 and machine.manager.stats.parked == first


def test_who_waits_first_is_served_first():
    machine = LimitedMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(3)]
    early = machine.batch.reqs[2]
    machine.decode(CONFIG.cap)
    assert [r.zipage.count for r in machine.batch.reqs] == [0, 0, 0]
    early.zipage.parked_at = 1  # it has been waiting
    machine.decode(1)
    assert early.zipage.count == 1 and machine.batch.reqs == [early] and len(machine.manager.parked) == 2
    machine.decode(1)
    assert machine.manager.stats.compressions == 2 and len(machine.batch.reqs) == 2


def test_a_parked_request_that_is_aborted_comes_back_to_end_without_a_slot():
    machine = ManagerMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(4)]
    machine.decode(CONFIG.cap - CONFIG.window + 1)
    (parked,) = machine.manager.parked
    parked.req.ending = True
    machine.decode(1)
    assert parked.req.over and not machine.manager.parked and len(machine.batch.reqs) == 3



def test_rows_that_grow_on_do_not_keep_query_slots_from_others():
    """Under `pressure` a row beyond its trigger holds its slot as long as there is room; three of them hold all there are."""
    machine = PressureMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(8)]
    everybody = list(machine.batch.reqs)
    machine.decode(150)
    assert min(req.decoded for req in everybody) > 75
    assert machine.manager.stats.compressions >= 5 and not machine.engine.retracted


def test_rows_grow_on_as_long_as_there_is_a_slot_for_everybody():
    machine = PressureMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(3)]
    machine.decode(100)
    assert [req.decoded for req in machine.batch.reqs] == [100] * 3 and machine.manager.stats.compressions == 0
