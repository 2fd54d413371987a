"""One per scheduler: watches running requests, gives out query slots, and compresses what is due.

Every decision is a function of replicated integers (lengths, counts, free lists in order), never of the device, the
clock or object identity, so that tensor-parallel ranks stay in step.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import torch

from zipage_kernels.batch import CompressionBatch
from zipage_sglang import pipeline
from zipage_sglang.config import ZipageConfig
from zipage_sglang.plan import RowPlan, plan_row
from zipage_sglang.runtime import Runtime
from zipage_sglang.state import NO_SLOT, RequestState

# Requests whose scores exist at a time: bounds the workspace (about 20 MB each at 36 layers, 8 KV heads, K + b = 2304).
MAX_TOGETHER = 16


@dataclasses.dataclass
class Compression:
    """One request of this step's compressions; `new_slots` are the private slots copied out to, int64, or None."""

    index: int
    req: Any
    state: RequestState
    plan: RowPlan
    new_slots: torch.Tensor | None


class Engine(Protocol):
    """What the manager needs of the serving engine (implemented in patches/engine.py)."""

    page_size: int

    def state(self, req) -> RequestState | None: ...
    def new_state(self, req) -> RequestState: ...
    def holds_kv(self, req) -> bool: ...
    def kv_len(self, req) -> int: ...
    def protected_len(self, req) -> int: ...
    def allocate(self, slots: int) -> torch.Tensor | None: ...
    def copy_out(self, work: list[Compression], runtime: Runtime): ...
    def forward_stream(self): ...
    def rows(self, work: list[Compression]) -> torch.Tensor: ...
    def publish(self, batch, work: list[Compression]): ...
    def retract(self, batch, indices: list[int]): ...


@dataclasses.dataclass
class Stats:
    """Totals since the start, for /server_info and the benchmarks."""

    compressions: int = 0
    evicted_tokens: int = 0
    freed_slots: int = 0
    copied_out_slots: int = 0
    retractions: int = 0
    retracted_compressed: int = 0
    peak_running: int = 0
    peak_kv_tokens: int = 0
    peak_query_slots: int = 0


class Manager:
    """Owns the query slots and the compression of one scheduler's running batch."""

    def __init__(self, config: ZipageConfig, policy, runtime: Runtime, engine: Engine):
        self.config = config
        self.policy = policy
        self.runtime = runtime
        self.engine = engine
        self.stats = Stats()
        # Lowest slot first, so that ranks with equal histories hand out equal slots.
        self.free_slots = list(range(runtime.slots - 1, -1, -1))
        self.nan_scores = torch.zeros((), dtype=torch.int64, device=runtime.device)

    def step(self, batch):
        """Plan the next decode step of `batch` (SGLang's running batch), before any of its slots are allocated."""
        due, near = self._look(batch)
        self.stats.peak_running = max(self.stats.peak_running, len(batch.reqs))
        stuck = self._compress(batch, due) if due else []
        for index, req, state in near:
            if not self._give_slot(state):
                stuck.append(index)
        if stuck:
            # Neither pages nor a query slot to be had although both were reserved: recompute later, lose nothing.
            self.engine.retract(batch, sorted(stuck))

    def release(self, req):
        """Forget a request whose row is being freed (finished, aborted, retracted)."""
        state = self.engine.state(req)
        if state is not None and state.slot != NO_SLOT:
            self.free_slots.append(state.slot)
            state.slot = NO_SLOT

    def query_rows(self, reqs) -> dict[int, int]:
        """{batch row: query cache row} for the decode step that has just been planned."""
        rows = {}
        if len(self.free_slots) < self.runtime.slots:
            for index, req in enumerate(reqs):
                state = self.engine.state(req)
                if state is not None and state.slot != NO_SLOT:
                    position = self.engine.kv_len(req) + state.evicted - 1
                    rows[index] = self.runtime.query_row(state.slot, position)
        return rows

    def _look(self, batch):
        """(due, near): requests to compress now, and those whose next token's query must be kept."""
        due, near = [], []
        engine, cfg = self.engine, self.config
        for index, req in enumerate(batch.reqs):
            if not engine.holds_kv(req):
                continue
            state = engine.state(req) or engine.new_state(req)
            kv_len = engine.kv_len(req)
            self.stats.peak_kv_tokens = max(self.stats.peak_kv_tokens, kv_len)
            if kv_len < state.next_event:
                continue
            trigger = state.trigger(cfg.cap, cfg.window)
            if kv_len >= trigger:
                due.append((index, req, state))
            elif kv_len >= trigger - cfg.window:
                near.append((index, req, state))
                state.next_event = trigger
            else:
                state.next_event = trigger - cfg.window
        return due, near

    def _give_slot(self, state: RequestState) -> bool:
        if state.slot == NO_SLOT:
            if not self.free_slots:
                return False
            state.slot = self.free_slots.pop()
            self.stats.peak_query_slots = max(self.stats.peak_query_slots, self.runtime.slots - len(self.free_slots))
        return True

    def _compress(self, batch, due) -> list[int]:
        """Compress `due` requests; returns batch indices of those that no private slots could be found for."""
        engine, cfg = self.engine, self.config
        work, stuck = [], []
        for index, req, state in due:
            plan = plan_row(state.start, cfg.budget, engine.kv_len(req), engine.protected_len(req), engine.page_size)
            new_slots = engine.allocate(plan.new_slots) if plan.new_slots else None
            if plan.new_slots and new_slots is None:
                stuck.append(index)
            else:
                work.append(Compression(index, req, state, plan, new_slots))
        if work:
            engine.copy_out(work, self.runtime)
            with engine.forward_stream():
                for first in range(0, len(work), MAX_TOGETHER):
                    description = self._describe(work[first : first + MAX_TOGETHER])
                    result = pipeline.compress(description, self.runtime.buffers, self.policy, cfg)
                    self.nan_scores += result.nan_counts.sum()
            engine.publish(batch, work)
            for item in work:
                self._after(item)
        return stuck

    def _describe(self, work: list[Compression]) -> CompressionBatch:
        w, device = self.config.window, self.runtime.device
        query_rows = []
        for item in work:
            true_len = item.plan.kv_len + item.state.evicted
            query_rows.append([self.runtime.query_row(item.state.slot, p) for p in range(true_len - w, true_len)])
        host = torch.tensor(query_rows, dtype=torch.int64, pin_memory=device.type == "cuda")
        return CompressionBatch(
            rows=self.engine.rows(work),
            kv_lens=[i.plan.kv_len for i in work],
            starts=[i.state.start for i in work],
            evicted=[i.state.evicted for i in work],
            stored=[self.config.budget if i.state.compressed else 0 for i in work],
            keeps=[self.config.budget] * len(work),
            counts=[i.state.count for i in work],
            query_rows=host.to(device, non_blocking=True),
        )

    def _after(self, item: Compression):
        state, plan, cfg = item.state, item.plan, self.config
        state.count += 1
        state.evicted += plan.evicted
        trigger = state.trigger(cfg.cap, cfg.window)
        if plan.kept < trigger - cfg.window:
            self.free_slots.append(state.slot)
            state.slot = NO_SLOT
            state.next_event = trigger - cfg.window
        else:  # w == b: the very next token belongs to the next window
            state.next_event = trigger
        stats = self.stats
        stats.compressions += 1
        stats.evicted_tokens += plan.evicted
        stats.freed_slots += max(0, plan.kv_len - plan.free_from)
        stats.copied_out_slots += plan.new_slots
