"""Runs compressions and passes of scoring on the device: jobs of plain integers in, everything else stays there.

The steady state (rows of K + b candidates at most) is replayed from CUDA graphs, one per batch size, because launching a dozen
kernels costs more than they do; so are passes.  Longer rows, as after a re-prefill, and requests with settings of their own are
launched kernel by kernel, the latter apart from others: every launch has one configuration.
"""

from __future__ import annotations

import time
from collections import deque
from typing import NamedTuple

import torch

from zipage_kernels import ops
from zipage_kernels.batch import MOST_POSITIONS, CompressionBatch, Lengths
from zipage_sglang import pipeline
from zipage_sglang.ages import EvictedAges
from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import KVBuffers
from zipage_sglang.policies import make_policy

# Requests whose scores exist at a time: bounds the workspace (31 MiB each at 36 layers, 8 KV heads, K + b = 2304).
MAX_TOGETHER = 4
PASSES_TOGETHER = 8  # they keep no scores
GRAPH_SIZES = (4, 2, 1)  # largest first, so that the others find its memory
PASS_SIZES = (PASSES_TOGETHER, *GRAPH_SIZES)


def most_candidates(config: ZipageConfig) -> int:
    """Candidates of one launch, all its requests together, that the workspace is for (a single row may be longer)."""
    return MAX_TOGETHER * config.largest_cap


class Job(NamedTuple):
    """One request's compression, or pass of scoring.

    row: its row of SGLang's row table, -1: of none, so that only slot 0 is read and written; query_rows: w rows of the query
    cache; config: the request's, None: the compressor's; the others: see `CompressionBatch`."""

    row: int
    kv_len: int
    start: int
    evicted: int
    stored: int
    keep: int
    count: int  # type: ignore[assignment]  # nobody asks this tuple to count
    seen: int
    windows: int
    query_rows: list[int]
    config: ZipageConfig | None = None


NUMBERS = len(Job._fields) - 2  # fields that are one integer


class Rows(NamedTuple):
    """Jobs that are compressed together, and their rows: table, int32 [R, longest kv_len]."""

    jobs: list[Job]
    table: torch.Tensor


class Compressor:
    """Owns the graphs and their static inputs.

    row_table: int32 [N, W], SGLang's req_to_token.  nan_scores: int64, NaN scores seen so far, on the device.
    ages: of evicted tokens, None unless somebody asks for them.
    """

    def __init__(self, buffers: KVBuffers, policy, config: ZipageConfig, row_table: torch.Tensor,
                 ages: EvictedAges | None = None):
        self.buffers, self.policy, self.config, self.row_table = buffers, policy, config, row_table
        self.device, self.ages = row_table.device, ages
        self.nan_scores = torch.zeros((), dtype=torch.int64, device=self.device)
        self.seconds = 0.0
        self._timers: deque = deque()
        # By what they do (compress or, True, score) and for how many: a graph, its `_pack`, its rows.
        self._graphs: dict[tuple[bool, int], tuple[torch.cuda.CUDAGraph, torch.Tensor, torch.Tensor]] = {}
        self._alive: list = []  # other memory outside their pool that the graphs refer to

    def warm_up(self, graphs: bool):
        """Compiles the kernels, so that no request waits for that, and captures the graphs on CUDA unless told otherwise."""
        if self.row_table.shape[1] < self.config.cap:
            return  # the context length ends before the first compression
        if self.config.largest_cap > self.config.cap:
            longest = min(self.row_table.shape[1], self.config.largest_cap)
            self.run([Job(-1, longest, 0, 0, 0, self.config.budget, 0, 0, 0, [0] * self.config.window)])
        if self.device.type == "cuda":  # longer rows than any graph holds, and than selection keeps on chip, are launched, too
            longest = min(self.row_table.shape[1], self.config.cap + 4096)
            self.run([Job(-1, longest, 0, 0, 0, self.config.budget, 0, 0, 0, [0] * self.config.window)])
        if self.config.windows > 1:
            self.score([Job(-1, self.config.cap, 0, 0, 0, 0, 0, 0, 0, [0] * self.config.window)])
        if graphs and self.device.type == "cuda":
            self._capture()
        else:
            self.run([Job(-1, self.config.cap, 0, 0, 0, self.config.budget, 0, 0, 0, [0] * self.config.window)])
        self._timers.clear()
        self.seconds = 0.0
        if self.ages is not None:
            self.ages.totals.zero_()

    def _capture(self):
        from zipage_kernels.triton.layers import layer_table  # Triton need not be installed where there is no GPU

        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream(self.device))
        sizes = [(False, n) for n in GRAPH_SIZES] + [(True, n) for n in PASS_SIZES if self.config.windows > 1]
        for scoring, size in sizes:
            # The padding job is the worst case to the host and none to the device: it writes nothing but slot 0.
            inputs = self._pack([self._padding()] * size).to(self.device)
            width, budget = self.row_table.shape[1], self.config.budget
            rows = torch.zeros(size, width, dtype=torch.int64, device=self.device)
            table = torch.zeros(size, width, dtype=torch.int32, device=self.device)
            worst = Job(0, width, width - self.config.cap, 0, budget, budget, 1, 0, 0, [0] * self.config.window)

            def run(scoring=scoring, inputs=inputs, table=table, rows=rows, jobs=[worst] * size):
                self._run(jobs, inputs, table, rows, self.config, scoring)

            with torch.cuda.stream(stream):
                run()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                run()
            self._graphs[scoring, size] = graph, inputs, table
            self._alive.append(rows)
        self._alive += [layer_table(b) for b in (self.buffers.k_buffers, self.buffers.v_buffers)]
        torch.cuda.current_stream(self.device).wait_stream(stream)

    def snapshot(self, jobs: list[Job], scoring: bool = False) -> list[Rows]:
        """The jobs' rows as they are on the current stream, group by group.

        A compression waits behind the step in flight.  Before it begins, the next step's plan has written new slots into the
        shortened rows, on a stream of its own, or has handed a row to another request: rows are read before that.
        """
        groups = self._groups(jobs, PASSES_TOGETHER if scoring else MAX_TOGETHER)
        index = torch.tensor([max(0, job.row) for some in groups for job in some], pin_memory=self.device.type == "cuda")
        indices = index.to(self.device, non_blocking=True).split([len(some) for some in groups])
        return [Rows(some, self.row_table[:, : max(job.kv_len for job in some)].index_select(0, rows))
                for some, rows in zip(groups, indices)]

    def run(self, jobs: list[Job], snapshot: list[Rows] | None = None):
        """Compresses the jobs' rows, as `pipeline.compress` does, on the current stream.  snapshot: of these jobs; by default
        one is taken now."""
        self._enqueue(jobs, snapshot, False)

    def score(self, jobs: list[Job], snapshot: list[Rows] | None = None):
        """Adds to the scores of the jobs' rows, as `pipeline.score` does; otherwise like `run`.  What the jobs keep and
        their configurations (None makes one batch of all) do not matter."""
        self._enqueue(jobs, snapshot, True)

    def _enqueue(self, jobs: list[Job], snapshot: list[Rows] | None, scoring: bool):
        self._drain()
        timer = self._start()
        for some, table in self.snapshot(jobs, scoring) if snapshot is None else snapshot:
            if table.is_cuda:
                table.record_stream(torch.cuda.current_stream(self.device))
            size = next((n for n in reversed(PASS_SIZES if scoring else GRAPH_SIZES) if n >= len(some)), 0)
            config = some[0].config or self.config
            captured = self._graphs.get((scoring, size))
            if captured is not None and config == self.config and all(self._steady(job, scoring) for job in some):
                graph, inputs, rows = captured
                rows[: len(some), : table.shape[1]].copy_(table, non_blocking=True)
                inputs.copy_(self._pack(some + [self._padding()] * (size - len(some))), non_blocking=True)
                graph.replay()
            else:
                rows = torch.empty(len(some), max(j.kv_len for j in some), dtype=torch.int64, device=self.device)
                self._run(some, self._pack(some).to(self.device, non_blocking=True), table, rows, config, scoring)
        self._stop(timer)

    def _groups(self, jobs: list[Job], most: int) -> list[list[Job]]:
        """Jobs of one configuration, at most so many at a time, fewer where their rows are longer than the workspace is for, but
        one at least.  In the order of the jobs, which all ranks have alike."""
        alike: dict[ZipageConfig, list[Job]] = {}
        for job in jobs:
            alike.setdefault(job.config or self.config, []).append(job)
        return [group for some in alike.values() for group in self._split(some, most)]

    def _split(self, jobs: list[Job], most: int) -> list[list[Job]]:
        groups: list[list[Job]] = []
        room, longest = most * self.config.largest_cap, 0
        for job in jobs:
            longest = max(longest, job.kv_len - job.start)
            if not groups or len(groups[-1]) == most or (len(groups[-1]) + 1) * longest > room:
                groups.append([])
                longest = job.kv_len - job.start
            groups[-1].append(job)
        return groups

    def _run(self, jobs: list[Job], inputs: torch.Tensor, table: torch.Tensor, rows: torch.Tensor, config: ZipageConfig,
             scoring: bool):
        """inputs: `_pack` of the jobs, on the device.  table: their rows.  rows: int64 [R, T], overwritten.  config: of all the
        jobs."""
        size, fields = len(jobs), NUMBERS
        index, *others = inputs[: fields * size].view(fields, size)
        counts = Lengths(*others)
        ops.gather_rows(table, index, counts.kv_lens, rows)
        batch = CompressionBatch(
            rows=rows,
            kv_lens=[j.kv_len for j in jobs],
            starts=[j.start for j in jobs],
            evicted=[j.evicted for j in jobs],
            stored=[j.stored for j in jobs],
            keeps=[j.keep for j in jobs],
            counts=[j.count for j in jobs],
            seen=[j.seen for j in jobs],
            windows=[j.windows for j in jobs],
            query_rows=inputs[fields * size :].view(size, -1),
            device_counts=counts,
        )
        if scoring:
            pipeline.score(batch, self.buffers)
            return
        policy = self.policy if config is self.config else make_policy(config)
        result = pipeline.compress(batch, self.buffers, policy, config)
        self.nan_scores += torch.where(index >= 0, result.nan_counts, 0).sum()
        if self.ages is not None:  # padding jobs keep all they have
            self.ages.add(batch, result.keep, result.positions)

    def _pack(self, jobs: list[Job]) -> torch.Tensor:
        """int32 [R * (9 + w)] on the host: each field of all jobs, then their query rows.  As row, a job has its place."""
        numbers = [place if job.row >= 0 else -1 for place, job in enumerate(jobs)]
        numbers += [number for field in list(zip(*jobs))[1:NUMBERS] for number in field]
        for job in jobs:
            numbers += job.query_rows
        return torch.tensor(numbers, dtype=torch.int32, pin_memory=self.device.type == "cuda")

    def _padding(self) -> Job:
        w = self.config.window
        return Job(-1, w, 0, 0, 0, w, 0, 0, 0, [0] * w)

    def _steady(self, job: Job, scoring: bool) -> bool:
        cfg = self.config
        if job.kv_len - job.start > cfg.cap:
            return False
        return scoring or (job.keep == cfg.budget and job.kv_len + job.evicted < MOST_POSITIONS)

    # Time on the device, read when it has passed, so that nobody waits for it.

    def _start(self):
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _stop(self, started):
        if self.device.type != "cuda":
            self.seconds += time.perf_counter() - started
            return
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._timers.append((started, event))

    def _drain(self):
        while self._timers and self._timers[0][1].query():
            start, end = self._timers.popleft()
            self.seconds += start.elapsed_time(end) / 1e3
