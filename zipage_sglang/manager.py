"""One per scheduler: watches running requests, gives out query slots, and compresses what is due.

Every decision is a function of replicated integers (lengths, counts, free lists in order), never of the device, the
clock or object identity, so that tensor-parallel ranks stay in step.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from zipage_sglang import pressure
from zipage_sglang.compressor import Compressor, Job
from zipage_sglang.config import ZipageConfig
from zipage_sglang.engine import Compression, Engine
from zipage_sglang.flight import Flights
from zipage_sglang.grouping import Groups
from zipage_sglang.plan import NEVER, plan_row
from zipage_sglang.queries import QuerySlots
from zipage_sglang.runtime import Runtime
from zipage_sglang.state import NO_SLOT, RequestState
from zipage_sglang.stats import Stats
from zipage_sglang.watch import Composition, Watch


logger = logging.getLogger("zipage")


class Parked(NamedTuple):
    """A request out of the running batch, with its KV: it waits for a query slot, for its turn to be compressed, or for the end
    of its compression (its state has a flight then).

    place: what the engine needs to put it back.  since: clock, for the record only.
    """

    req: Any
    state: RequestState
    place: Any
    since: float


class Manager:
    """Owns the query slots and the compression of one scheduler's running batch.

    config: the server's; what a request may set for itself is in its state.
    """

    def __init__(self, config: ZipageConfig, compressor: Compressor, runtime: Runtime, engine: Engine):
        self.config = config
        self.compressor = compressor
        self.runtime = runtime
        self.engine = engine
        self.stats = Stats()
        self.slots = QuerySlots(runtime, engine)
        self.watch = Watch()
        self.running = Composition()
        self.compressed = 0  # requests with a compressed row
        self.over: list[tuple[Any, RequestState]] = []  # rows that are compressed when somebody needs their pages
        self.parked: list[Parked] = []  # first come, first served
        self.flights = Flights(engine)
        self.groups = Groups(config.group_steps)

    def step(self, batch):
        """Plan the next decode step of `batch` (SGLang's running batch), before any of its slots are allocated."""
        started = time.perf_counter()
        due, near, scored = self._look(batch)
        if self.over:
            due = self._needed(batch, near)
        compressing = time.perf_counter()
        if scored:
            self._score(scored)
        stuck: list[int] = []
        late, flying = [], []
        if due:
            due, late = self._limit(due)
            stuck = self._compress(batch, due)
            flying = [item for item in due if item[2].flight is not None]
            late += self._pass_on([item for item in due if item[0] not in stuck])
        if due or scored:
            self.stats.compress_seconds += time.perf_counter() - compressing
        late += self._let_wait(near)
        if stuck or late or flying:
            self._leave(batch, stuck, late, flying)
        stats = self.stats
        stats.steps += bool(batch.reqs)
        stats.peak_running = max(stats.peak_running, len(batch.reqs))
        stats.host_seconds += time.perf_counter() - started

    def come_back(self) -> list:
        """Places of the parked requests that can go on now, before the next step: compressed, for a slot that is free, for one of
        this step's compressions, or to end."""
        self.land(self.watch.now + 1)
        back, stay = [], []
        room = self.config.max_compress or len(self.parked)
        for item in self.parked:
            req, state = item.req, item.state
            if not self.engine.holds_kv(req) or self.engine.state(req) is not state:
                continue  # ended by the step that was in flight
            if state.flight is not None and (state.flight.lands <= self.watch.now + 1 or self.engine.ending(req)):
                self.flights.wait(state.flight)
                state.flight = None
            elif state.flight is not None:
                stay.append(item)
                continue
            elif state.slot != NO_SLOT and room and not self.engine.ending(req):
                room -= 1
            elif not self.engine.ending(req) and (state.slot != NO_SLOT or not self._give_slot(req, state)):
                stay.append(item)
                continue
            back.append(item)
        self.parked = stay
        self.stats.parked_seconds += sum(time.perf_counter() - item.since for item in back if item.state.parked_at)
        return [item.place for item in back]

    def _limit(self, due):
        """(those to compress in this step, those beyond the limit): who waited longest comes first."""
        limit = self.config.max_compress or len(due)
        due = sorted(due, key=lambda item: (item[2].parked_at or self.watch.now, item[0]))
        return sorted(due[:limit], key=lambda item: item[0]), due[limit:]

    def land(self, before: int | None = None):
        """Give back what compressions that are over before this step hold; by default wait for all of them, on the device."""
        if self.flights.aloft:
            self.slots.free += self.flights.land(before)

    def _leave(self, batch, stuck: list[int], late: list, flying: list):
        """stuck: no pages to be had although they were reserved: recompute later, lose nothing.  late, flying: park."""
        leaving = sorted(late + flying, key=lambda item: item[0])
        places = self.engine.leave(batch, [index for index, _, _ in leaving], sorted(stuck))
        for index, req, state in leaving:
            if state.flight is None:
                state.parked_at = state.parked_at or self.watch.now
                self.watch.book(req, state, 1)
            self.parked.append(Parked(req, state, places[index], time.perf_counter()))
        self.stats.parked += len(late)
        self.stats.sat_out += self.config.async_steps * len(flying)
        self.parked.sort(key=lambda item: item.state.parked_at)
        self.stats.peak_parked = max(self.stats.peak_parked, len(self.parked))

    def release(self, req):
        """Forget a request whose row is being freed (finished, aborted, retracted)."""
        self.running.forget()  # it may come back as the same object
        state = self.engine.state(req)
        if state is None:
            return
        self.flights.wait(state.flight)  # its pages are somebody else's from now on
        state.flight = None
        self.slots.give_back(state)
        if state.counted:
            self.compressed -= 1
            state.counted = False

    def route_queries(self, reqs: list):
        """Tell the runtime where the queries of the decode step that has just been planned belong.  On the forward stream."""
        started = time.perf_counter()
        self.runtime.set_query_rows(*self.slots.rows(reqs))
        self.stats.host_seconds += time.perf_counter() - started

    def _look(self, batch):
        """(due, near, scored): requests to compress now, those whose next token's query must be kept, and of these the ones whose
        last w queries score now."""
        due, near, scored = [], [], []
        engine, cfg, watch = self.engine, self.config, self.watch
        looks = watch.due()
        if self.running.changed(batch.reqs):
            states = ((req, engine.state(req) or engine.new_state(req)) for req in batch.reqs if engine.holds_kv(req))
            looks += [(req, state) for req, state in states if not state.look_at]  # never booked: new here
        for req, state in looks:
            if not engine.holds_kv(req) or engine.state(req) is not state:
                continue  # over, or begun anew after a retraction
            if state.config is None:  # not to be compressed: nothing ever happens to it
                state.look_at = NEVER
                continue
            index = self.running.index(req)
            if index is None:  # held back by the scheduler
                watch.book(req, state, 1)
                continue
            kv_len = engine.kv_len(req)
            self.stats.peak_kv_tokens = max(self.stats.peak_kv_tokens, kv_len)
            trigger = state.trigger
            if kv_len >= trigger and state.slot == NO_SLOT and engine.ending(req):
                continue  # came back to end, without its queries
            if kv_len >= trigger and cfg.when == "pressure":
                state.over = True
                self.over.append((req, state))
            elif kv_len >= trigger:
                due.append((index, req, state))
            elif (left := trigger - kv_len) <= state.scored and engine.remaining(req) < left:
                self.slots.give_back(state)  # it ends before
                state.look_at = NEVER
            elif left <= state.scored:
                near.append((index, req, state))
                # Its slot is there since `scored` tokens before the trigger: the first window is full w tokens later.
                full = left < state.scored and left % cfg.window == 0 and state.slot != NO_SLOT
                if full and state.seen < kv_len - state.start and not engine.ending(req):
                    scored.append((index, req, state))
                watch.book(req, state, left % cfg.window or cfg.window)
            else:
                watch.book(req, state, left - state.scored)
        due.sort(key=lambda item: item[0])
        near.sort(key=lambda item: item[0])
        scored.sort(key=lambda item: item[0])
        return due, near, scored

    def _needed(self, batch, near):
        """Of the rows beyond their trigger, those that must be compressed now, the largest first: `due` under pressure.

        They hold query slots that `near` and parked requests may need.
        """
        engine = self.engine
        self.over = [(req, state) for req, state in self.over
                     if state.over and engine.holds_kv(req) and engine.state(req) is state]
        rows = [(self.running.index(req), req, state) for req, state in self.over]
        rows = sorted((row for row in rows if row[0] is not None), key=lambda row: (-engine.kv_len(row[1]), row[0]))
        if not rows:
            return []
        waiting = [state for _, _, state in near] + [item.state for item in self.parked]
        slots = sum(state.slot == NO_SLOT for state in waiting) - len(self.slots.free)
        look = self.watch.now % pressure.ADMISSION_STEPS == 0
        shortage = engine.shortage(batch, look)._replace(query_slots=slots)
        if not shortage:
            return []
        return sorted(rows[: pressure.victims([engine.gain(req) for _, req, _ in rows], shortage)], key=lambda row: row[0])

    def _pass_on(self, compressed) -> list:
        """Of the requests that were compressed just now, those that are parked so that who waits for a query slot has theirs.

        Where all windows score, nobody would ever give back a slot before its end.  Between two blocks no query is lost.
        """
        waiting = self._waiting()[len(self.slots.free):]
        # Beside the decode steps the queries are still being read, and the request is parked anyway.
        holders = [item for item in compressed
                   if item[2].slot != NO_SLOT and item[2].flight is None and not self.engine.ending(item[1])]
        for (_, _, state), item in zip(holders, waiting):
            self.slots.give_back(state)
            self._give_slot(item.req, item.state)
        return holders[: len(waiting)]

    def _waiting(self) -> list[Parked]:
        """Parked requests that need a query slot, first come first."""
        return [item for item in self.parked if item.state.slot == NO_SLOT and item.state.flight is None
                and self.engine.holds_kv(item.req) and self.engine.state(item.req) is item.state
                and not self.engine.ending(item.req)]

    def _let_wait(self, near) -> list:
        """Those of `near` that get no query slot: what came free in this step belongs to who has been waiting for longer."""
        need = [item for item in near if item[2].slot == NO_SLOT and not self.engine.ending(item[1])]
        spare = max(0, len(self.slots.free) - len(self._waiting())) if need else 0
        for _, req, state in need[:spare]:
            self._give_slot(req, state)
        return need[spare:]

    def _give_slot(self, req, state: RequestState) -> bool:
        given = self.slots.give(req, state)
        self.stats.peak_query_slots = max(self.stats.peak_query_slots, self.slots.used)
        return given

    def _compress(self, batch, due) -> list[int]:
        """Compress `due` requests; returns batch indices of those that no private slots could be found for."""
        engine = self.engine
        work, stuck = [], []
        for index, req, state in due:
            budget = state.config.budget
            plan = plan_row(state.start, budget, engine.kv_len(req), engine.protected_len(req), engine.page_size)
            new_slots = engine.allocate(plan.new_slots) if plan.new_slots else None
            if plan.new_slots and new_slots is None:
                stuck.append(index)
            else:
                work.append(Compression(index, req, state, plan, new_slots))
        if work:
            try:
                engine.copy_out(work, self.runtime)
                jobs = [self._job(item.req, item.state, item.plan.kv_len, item.state.config) for item in work]
                rows = self.compressor.snapshot(jobs)
                with engine.compression_stream():
                    self.compressor.run(jobs, rows)
            except Exception:  # out of memory, or a kernel that does not compile or launch
                if engine.tp_size > 1:
                    raise  # the other ranks do not know, and would go on with other rows
                return stuck + self._give_up(work)
            remains = engine.publish(batch, work)
            query_slots = [slot for item in work for slot in self._after(item)]
            if self.config.async_steps:
                flight = self.flights.launch(self.watch.now + self.config.async_steps, remains, query_slots)
                for item in work:
                    item.state.flight = flight
            else:
                engine.free(remains)
                self.slots.free += query_slots
        return stuck

    def _score(self, scored):
        """Add what the last w queries of each request look at to what earlier ones did.  Its row stays as it is."""
        # A pass only adds up, so that requests of all configurations are one batch.
        jobs = [self._job(req, state, self.engine.kv_len(req), state.config)._replace(keep=0, config=None)
                for _, req, state in scored]
        try:
            rows = self.compressor.snapshot(jobs, scoring=True)
            with self.engine.compression_stream():  # behind the step in flight, whose query is one of the window's
                self.compressor.score(jobs, rows)
        except Exception:  # the rows are unharmed; later windows score
            if self.engine.tp_size > 1:
                raise
            logger.exception("scoring %s failed", [req.rid for _, req, _ in scored])
            self.stats.failures += len(scored)
            for _, _, state in scored:  # some may have been added already
                state.seen = state.windows = 0
            return
        for (_, _, state), job in zip(scored, jobs, strict=True):
            state.seen, state.windows = job.kv_len - job.start, state.windows + 1
        self.stats.passes += len(scored)

    def _give_up(self, work: list[Compression]) -> list[int]:
        """A compression failed and may have moved some tokens: all of its requests are recomputed from their text."""
        logger.exception("compressing %s failed; they are prefilled again", [item.req.rid for item in work])
        self.stats.failures += len(work)
        self.engine.wait_for(self.engine.mark())
        self.engine.undo_copy_out(work)
        for item in work:
            self.engine.failed(item.req)
        return [item.index for item in work]

    def _job(self, req, state: RequestState, kv_len: int, config: ZipageConfig | None) -> Job:
        assert config is not None
        true_len = kv_len + state.evicted
        return Job(
            row=self.engine.row(req),
            kv_len=kv_len,
            start=state.start,
            evicted=state.evicted,
            stored=state.stored,
            keep=config.budget,
            count=state.count,
            seen=state.seen,
            windows=state.windows,
            query_rows=self.runtime.window_rows(state.slot, true_len),
            config=config,
        )

    def _after(self, item: Compression) -> list[int]:
        """Returns the query slot that is not needed any more, or none."""
        state, plan, cfg = item.state, item.plan, self.config
        state.count += 1
        state.stored = plan.kept - state.start
        state.seen = state.windows = 0
        state.parked_at = 0
        state.over = False
        state.copy_out = None
        state.evicted += plan.evicted
        if not state.counted:
            self.compressed += 1
            state.counted = True
        trigger, slot = state.trigger, []
        # Beside the decode steps the slot is read until the flight lands, and then belongs to who waits.
        if plan.kept < trigger - state.scored or cfg.async_steps:
            slot = self.slots.take(state)
            self.watch.book(item.req, state, trigger - state.scored - plan.kept)
        else:  # the very next token belongs to the next window
            self.watch.book(item.req, state, cfg.window)
        stats = self.stats
        stats.compressions += 1
        stats.evicted_tokens += plan.evicted
        freed = max(0, plan.kv_len - plan.free_from)
        stats.freed_slots += freed
        stats.freed_pages += -(-freed // self.engine.page_size)
        stats.copied_out_slots += plan.new_slots
        return slot
