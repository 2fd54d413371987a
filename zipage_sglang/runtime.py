"""Device buffers of the method, allocated once beside SGLang's KV pool, and the query rows of the next decode step.

Shapes: L local layers, S KV slots (padding included), H local KV heads, Hq local query heads, D head dim, M query slots,
w window.  Sized before CUDA graphs are captured, because the query store is part of the decode graph.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math

import numpy as np
import torch

from zipage_kernels import ops
from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import KVBuffers
from zipage_sglang.policies import make_policy

POSITION_BYTES = 4
SUM_BYTES = 4
SCORE_BYTES = 2  # of F, and of what the windows before the last one have seen
MARGIN = 4  # query slots for each one that is expected to be in use,
EXTRA_SLOTS = 4  # and beside those


@dataclasses.dataclass(frozen=True)
class ModelShape:
    """Local (per tensor-parallel rank) attention shapes; first_* are global indices of local 0."""

    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    scale: float
    first_layer: int = 0
    first_kv_head: int = 0


def table_bytes_per_token(shape: ModelShape, config: ZipageConfig) -> int:
    """Bytes of the tables for one KV slot: positions, F where the policy stores it, and sums where several windows score."""
    scores = make_policy(config).stores_importance + (config.windows > 1)
    return shape.layers * shape.kv_heads * (POSITION_BYTES + SCORE_BYTES * scores)


def query_slot_bytes(shape: ModelShape, window: int, itemsize: int) -> int:
    """Bytes of one query slot: queries and their softmax sums."""
    return shape.layers * window * shape.q_heads * (shape.head_dim * itemsize + SUM_BYTES)


def step_bytes(shape: ModelShape) -> int:
    """Bytes of what a decode step says of one request: the row of the query cache, and softmax sums."""
    return 8 + shape.layers * shape.q_heads * SUM_BYTES


def workspace_bytes(shape: ModelShape, candidates: int) -> int:
    """Bytes of the scores of that many candidates, all requests of a batch together; captured graphs hold on to theirs.

    For each candidate, layer and KV head: six fp32 or int32 features, softmax sums where attention gives none, three of the
    sorted blocks, sort keys, moves, and one mask.
    """
    return candidates * shape.layers * shape.kv_heads * (4 * 12 + 1)


def default_query_slots(config: ZipageConfig, pool_tokens: int, max_running: int) -> int:
    """M: what the configuration says, or four times the slots that are expected to be in use, and a few more.

    A request needs a slot for the tokens before a compression whose queries score: by default all, so that it has one while it
    runs, or the last w, with one window.  Whoever is to be compressed has K + b tokens of the pool, held or promised
    (patches/admission.py), so no more than pool / (K + b) are there at a time (of the server's budget; who asks for a smaller one
    may wait), each near a compression for so many of every b tokens.  With one window requests that were admitted together come
    there together once; some of them wait then and are spread from there on.
    """
    if config.query_slots:
        return min(config.query_slots, max_running)
    most = min(max_running, math.ceil(pool_tokens / config.cap) + 1)
    return max(1, min(most, math.ceil(slot_share(config) * most) + EXTRA_SLOTS))


def slot_share(config: ZipageConfig) -> float:
    """Of the requests that fit the pool, those that have a query slot each: under `pressure` all, since rows keep theirs as long
    as they grow beyond their trigger."""
    return 1.0 if config.when == "pressure" else min(1.0, MARGIN * config.scored / config.block)


def buffer_bytes(shape: ModelShape, config: ZipageConfig, kv_slots: int, query_slots: int, max_batch: int, itemsize: int) -> int:
    """Bytes of a Runtime's buffers, `Runtime.nbytes`, before it exists.  kv_slots: S.  itemsize: of a query's element."""
    nowhere = query_slot_bytes(shape, 1, itemsize)
    return (kv_slots * table_bytes_per_token(shape, config) + query_slots * query_slot_bytes(shape, config.window, itemsize)
            + nowhere + max_batch * step_bytes(shape))


class Runtime:
    """Owns the query cache and the tables; hands them to the pipeline as one KVBuffers."""

    def __init__(self, config: ZipageConfig, shape: ModelShape, k_buffers: list[torch.Tensor],
                 v_buffers: list[torch.Tensor], dtype: torch.dtype, slots: int, max_batch: int, log_sums: bool = False):
        """k_buffers, v_buffers: per local layer [S, H, D].  dtype: of the queries.  slots: M.  max_batch: largest decode
        batch (running requests or captured graph size).  log_sums: whether attention gives softmax sums."""
        device = k_buffers[0].device
        num_slots = k_buffers[0].shape[0]
        tables = (shape.layers, num_slots, shape.kv_heads)

        def scores() -> torch.Tensor:
            return torch.zeros(tables, dtype=torch.bfloat16, device=device)

        # What a decode step's attention writes, and where it is kept.  There in any case, so that sizes are known beforehand; NaN
        # at first, so that a sum that was never written is seen (nan_scores).
        def sums(rows: int) -> torch.Tensor:
            return torch.full((shape.layers, rows, shape.q_heads), math.nan, dtype=torch.float32, device=device)

        self.step_log_sums = sums(max_batch)
        self._log_sums = sums(slots * config.window + 1)
        self.window = config.window
        self.slots = slots
        self.device = device
        self.buffers = KVBuffers(
            k_buffers=k_buffers,
            v_buffers=v_buffers,
            query_cache=torch.zeros(shape.layers, slots * config.window + 1, shape.q_heads, shape.head_dim,
                                    dtype=dtype, device=device),
            positions=torch.zeros(tables, dtype=torch.int32, device=device),
            importance=scores() if make_policy(config).stores_importance else None,
            seen=scores() if config.windows > 1 else None,
            log_sums=self._log_sums if log_sums else None,
            scale=shape.scale,
            first_layer=shape.first_layer,
            first_kv_head=shape.first_kv_head,
        )
        # Destination row in the query cache per batch row; 0 = nowhere.  Static, because decode graphs read it.
        self.query_rows = torch.zeros(max_batch, dtype=torch.int64, device=device)
        # Reused in turn: SGLang has at most one step in flight when it plans the next, so the copy of four steps ago is over.
        pinned = device.type == "cuda"
        self._staging = [torch.zeros(max_batch, dtype=torch.int64, pin_memory=pinned) for _ in range(4)]
        self._turn = 0
        self.active = False
        self.side_stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # see patches/forward.py
        # Of compressions, None where they are enqueued between two decode steps.
        self.compression_stream = torch.cuda.Stream(device) if device.type == "cuda" and config.async_steps else None

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers."""
        b = self.buffers
        own = (b.query_cache, b.positions, b.importance, b.seen, self.query_rows, self.step_log_sums, self._log_sums)
        return sum(t.numel() * t.element_size() for t in own if t is not None)

    def query_row(self, slot, position):
        """Row of the query cache for the token at true `position`: a ring of w rows per slot, row 0 being nowhere.  Integers, or
        arrays of them."""
        return 1 + slot * self.window + position % self.window

    def window_rows(self, slot: int, true_len: int) -> list[int]:
        """Rows of the query cache for the last w of `true_len` tokens, oldest first."""
        first, turn = self.query_row(slot, 0), true_len % self.window
        return [*range(first + turn, first + self.window), *range(first, first + turn)]

    def set_query_rows(self, index: np.ndarray, rows: np.ndarray):
        """Route the next decode step's queries: of each of these batch rows to that row of the query cache; int64 [n].  Must run
        on the forward stream."""
        if not len(index) and not self.active:
            return
        self.active = bool(len(index))
        if not self.active:
            self.query_rows.zero_()
            return
        self._turn = (self._turn + 1) % len(self._staging)
        numbers = self._staging[self._turn].numpy()
        numbers.fill(0)
        numbers[index] = rows
        self.query_rows.copy_(self._staging[self._turn], non_blocking=True)

    def store_query(self, local_layer: int, q: torch.Tensor):
        """q: post-RoPE queries of a decode batch, [B, Hq * D] or [B, Hq, D]; B may include graph padding rows."""
        cache = self.buffers.query_cache[local_layer]
        q = q.view(-1, cache.shape[1], cache.shape[2])
        ops.store_query(q, self.query_rows[: q.shape[0]], cache)

    def store_log_sums(self, size: int):
        """Keep what the attention of a decode step of `size` rows has written to `step_log_sums`."""
        ops.store_log_sums(self.step_log_sums[:, :size], self.query_rows[:size], self._log_sums)

    def copy_slots(self, src: torch.Tensor, dst: torch.Tensor):
        """Copy whole KV slots (all layers and heads, tables included); src, dst: int64 [N].  On the forward stream."""
        b = self.buffers
        ops.copy_slots(b.k_buffers, b.v_buffers, b.tables, src, dst)

    def warm_up(self):
        """Compile the query store and the copy of slots now, before graphs are captured and requests wait."""
        nothing = torch.zeros(1, dtype=torch.int64, device=self.device)
        self.copy_slots(nothing, nothing)
        cache = self.buffers.query_cache[0]
        for size in {min(n, len(self.query_rows)) for n in (1, 2, 16)}:
            self.store_query(0, torch.zeros(size, *cache.shape[1:], dtype=cache.dtype, device=self.device))
            self.store_log_sums(size)

    @contextlib.contextmanager
    def beside(self):
        """The stream of compressions, if they have one, between what was enqueued before and what comes after."""
        if self.compression_stream is None:
            yield
            return
        main = torch.cuda.current_stream(self.device)
        self.compression_stream.wait_stream(main)
        with torch.cuda.stream(self.compression_stream):
            yield
        main.wait_stream(self.compression_stream)

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the current stream."""
        return self.device.type == "cuda" and torch.cuda.is_current_stream_capturing()
