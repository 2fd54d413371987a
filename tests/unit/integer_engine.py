"""What the manager asks of SGLang, over plain integers, and a state machine that drives the manager with it."""

import contextlib
import dataclasses

import torch
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zipage_sglang.compressor import Compressor
from zipage_sglang.config import ZipageConfig
from zipage_sglang.manager import Manager
from zipage_sglang.policies import make_policy
from zipage_sglang.pressure import Gain, Shortage
from zipage_sglang.runtime import ModelShape, Runtime
from zipage_sglang.state import NO_SLOT, RequestState

CONFIG = ZipageConfig(budget=16, block=8, window=4, policy="recent", spread=1)
# What requests may have asked for themselves; None: not to be compressed.
OWN = (CONFIG, None, dataclasses.replace(CONFIG, budget=8), dataclasses.replace(CONFIG, budget=12, recency=0.0, policy="random"),
       dataclasses.replace(CONFIG, prefix="compress", sinks=1))
POOL, PAGE = 400, 4


class Request:
    rid = "any"

    def __init__(self, prompt, protected, config=CONFIG, remaining=10**6):
        self.prompt, self.protected, self.zipage = prompt, protected, None
        self.config = config
        self.kv, self.decoded, self.true_len, self.prefill, self.over = prompt, 0, prompt, prompt, False
        self.ending = False
        self.end_len = prompt + remaining


class IntegerEngine:
    """zipage_sglang.manager.Engine over counters: no tensors of tokens, no SGLang."""

    page_size, tp_size = PAGE, 1

    def __init__(self, config):
        self.config = config
        self.retracted = []
        self.turns = 0
        self.missing = Shortage(0, None)
        self.on_stream = False  # where what is enqueued comes behind the step in flight
        self.enqueued = self.passed = 0  # marks behind compressions, and those that decode steps come after

    def state(self, req):
        return req.zipage

    def new_state(self, req):
        start = (req.config or CONFIG).start(req.prompt)
        self.turns += 1
        early = req.config.early(self.turns) if req.config else 0
        req.zipage = RequestState(start=start, prefill_len=req.prefill, config=req.config, early=early)
        return req.zipage

    def holds_kv(self, req):
        return not req.over

    def kv_len(self, req):
        return req.kv

    def protected_len(self, req):
        return req.protected

    def allocate(self, slots):
        return torch.arange(slots) if slots <= 64 else None

    def shortage(self, batch, waiting):
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

    @contextlib.contextmanager
    def compression_stream(self):
        self.on_stream = True
        yield
        self.on_stream = False

    def mark(self):
        self.enqueued += 1
        return self.enqueued

    def wait_for(self, mark):
        self.passed = max(self.passed, mark)

    def free(self, remains):
        assert remains <= self.passed or not self.config.async_steps, "freed before it is over"

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
        return self.enqueued + 1  # the mark that will be behind this

    def ending(self, req):
        return req.ending

    def remaining(self, req):
        return req.end_len - req.true_len

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
    config, slots = CONFIG, 3

    def __init__(self):
        super().__init__()
        shape = ModelShape(layers=1, q_heads=1, kv_heads=1, head_dim=4, scale=1.0)
        buffers = [torch.zeros(POOL, 1, 4)]
        self.engine, self.batch, self.held = IntegerEngine(self.config), Batch(), []
        policy = make_policy(self.config)
        runtime = Runtime(self.config, shape, buffers, [b.clone() for b in buffers], torch.float32, self.slots, max_batch=16)
        rows = torch.arange(1, POOL, dtype=torch.int32)[None]
        compressor = Compressor(runtime.buffers, policy, self.config, rows)
        self.queries, self.enqueue = {}, compressor._enqueue  # {row of the query cache: (request, position) of what is there}
        compressor._enqueue = self.check_and_enqueue
        self.manager = Manager(self.config, compressor, runtime, self.engine)

    def check_and_enqueue(self, jobs, snapshot, scoring):
        """Every job has the queries of the last w tokens of one request; all windows but the last have scored before."""
        assert self.engine.on_stream, "it may overtake the step in flight"
        for job in jobs:
            found, true_len, window = [self.queries.get(row) for row in job.query_rows], job.kv_len + job.evicted, self.config.window
            assert [position for _, position in found] == list(range(true_len - window, true_len)), "queries of other tokens"
            assert len({id(req) for req, _ in found}) == 1, "queries of another request"
            state = found[0][0].zipage
            if not scoring and job.config.windows > 1 and (job.count or state.start >= state.prefill_len):
                assert job.seen == job.kv_len - job.start - window and job.windows == job.config.windows - 1, "a window did not score"
        self.enqueue(jobs, snapshot, scoring)

    @rule(prompt=st.integers(1, 60), cached=st.booleans(), own=st.sampled_from(OWN), remaining=st.sampled_from([5, 20, 30, 10**6]))
    def arrive(self, prompt, cached, own, remaining):
        config = self.configured(own)
        if config is not None and self.config.when == "pressure":
            config = dataclasses.replace(config, when="pressure")
        if len(self.batch.reqs) < 8:
            self.batch.reqs.append(Request(prompt, prompt // PAGE * PAGE if cached else 0, config, remaining))

    @rule(steps=st.integers(1, 12))
    def decode(self, steps):
        for _ in range(steps):
            back = self.manager.come_back()
            assert all(req.zipage.flight is None for req in back)
            self.batch.reqs += back
            before = self.manager.stats.compressions
            self.manager.step(self.batch)
            assert self.manager.stats.compressions - before <= (self.config.max_compress or 99)
            flights = [item.state.flight for item in self.manager.parked if not item.req.over and item.state.flight is not None]
            assert all(self.manager.watch.now < flight.lands <= self.manager.watch.now + self.config.async_steps for flight in flights)
            for req in list(self.batch.reqs):
                state = req.zipage
                assert state.flight is None, "decoded while it is compressed"
                trigger = state.trigger
                assert req.kv < trigger or state.over or req.ending, "decoded past the trigger"
                assert not state.over or self.config.when == "pressure" and not self.engine.missing
                kept = state.slot != NO_SLOT or req.kv < trigger - (state.scored if req.config else 0)
                kept |= self.engine.remaining(req) < trigger - req.kv
                assert kept or req.ending, "a query of the window is lost"
                assert req.config is not None or (state.slot, state.evicted, req.kv) == (NO_SLOT, 0, req.true_len)
                req.kv, req.true_len, req.decoded = req.kv + 1, req.true_len + 1, req.decoded + 1
                req.ending |= req.true_len >= req.end_len
            rows = dict(zip(*(array.tolist() for array in self.manager.slots.rows(self.batch.reqs))))
            assert len(set(rows.values())) == len(rows) and 0 not in rows.values()
            for index, row in rows.items():
                req = self.batch.reqs[index]
                self.queries[row] = req, req.kv + req.zipage.evicted - 1
            for req in [r for r in self.batch.reqs if r.ending]:
                self.end(self.batch.reqs.pop(self.batch.reqs.index(req)))

    def configured(self, own):
        """The configuration of a request that has such settings of its own."""
        return own

    def end(self, req):
        req.over = True
        flight = req.zipage and req.zipage.flight
        self.manager.release(req)
        assert flight is None or self.engine.passed >= flight.mark, "its pages are free before it is over"

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
    def every_job_was_as_it_should_be(self):
        """The manager lives on when a compression fails, and so when `check_and_enqueue` does: its log says why."""
        assert not self.manager.stats.failures

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
        assert sorted(slots + self.manager.slots.free + self.manager.flights.query_slots) == list(range(self.slots))
        rows = [r.zipage for r in self.batch.reqs + self.held + parked + self.engine.retracted if r.zipage is not None]
        assert self.manager.compressed == sum(state.compressed for state in rows)


class PressureMachine(ManagerMachine):
    """The same with rows that grow on while there is room: a shortage that only compressing all of them can mend, or none."""

    config = dataclasses.replace(CONFIG, when="pressure")

    @rule(now=st.sampled_from([0, 10**6]))
    def squeeze(self, now):
        self.engine.missing = Shortage(now, None)


class LimitedMachine(ManagerMachine):
    """One compression a step at most."""

    config = dataclasses.replace(CONFIG, max_compress=1)


class AsynchronousMachine(ManagerMachine):
    """Compressions beside two decode steps, which their requests sit out."""

    config = dataclasses.replace(CONFIG, async_steps=2)


class LongWindowMachine(AsynchronousMachine):
    """The same with one window of a whole block, so that the slot is needed again at once."""

    config = dataclasses.replace(CONFIG, async_steps=2, window=8)

    def configured(self, own):
        return own and dataclasses.replace(own, window=8)


class AllWindowsMachine(ManagerMachine):
    """All windows of a block score, so that nobody gives back a query slot but for others."""

    config = dataclasses.replace(CONFIG, policy="zipage", spread=0)

    def configured(self, own):
        return own and dataclasses.replace(own, spread=0, policy="random" if own.policy == "random" else "zipage")


class PassesMachine(ManagerMachine):
    """Three windows before a compression score, of requests that did not ask for another policy."""

    config = dataclasses.replace(CONFIG, policy="zipage", window=2, passes=3, spread=8)

    def configured(self, own):
        if own is None:
            return None
        of_scores = dict(policy="zipage", passes=3) if own.policy != "random" else {}
        return dataclasses.replace(own, window=2, spread=8, **of_scores)
