"""The one description of work that every kernel reads: which requests are compressed together, and where their KV lies.

Symbols used by all kernel docstrings: R requests of this batch, T longest row, C most candidates, w window, L local
layers, H local KV heads, Hq local query heads (a multiple of H), D head size, S KV slots of the pool.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import torch


# True lengths below this are sorted by the fastest kernels, which put a position and an index below 256 into one int32.
MOST_POSITIONS = 2**23


class Lengths(NamedTuple):
    """The per-request counts of a batch on the device, int32 [R] each."""

    kv_lens: torch.Tensor
    starts: torch.Tensor
    evicted: torch.Tensor
    stored: torch.Tensor
    keeps: torch.Tensor
    counts: torch.Tensor
    seen: torch.Tensor
    windows: torch.Tensor


@dataclasses.dataclass(eq=False)
class Tables:
    """What is remembered about the token in each (layer, slot, KV head); moves with the token, but for `seen`.

    positions: int32 [L, S, H], true position.  importance: bf16 [L, S, H], the unpooled global score F, or None when the
    policy stores none.  seen: bf16 [L, S, H], sum of I over the windows since the last compression, or None where one scores.
    """

    positions: torch.Tensor
    importance: torch.Tensor | None = None
    seen: torch.Tensor | None = None


@dataclasses.dataclass(eq=False)
class CompressionBatch:
    """R requests compressed together.  All counts are host lists, so no kernel launch ever waits for the device.

    rows: int64 [R, T], the KV slot at each row index, padded with 0 (SGLang's padding slot, which may hold anything).
    kv_lens: filled row length in tokens.  starts: first candidate row index c0.  evicted: true length - kv_len.
    stored: leading candidate rows whose position and importance are in the tables (the others have never been compressed:
        row i holds position i + evicted and no importance).
    keeps: candidates that survive, K.  counts: compressions since the (re)prefill, this one not included.
    query_rows: int32 or int64 [R, w], rows of the query cache that hold the queries of the last w tokens, in position order.
    seen: leading candidate rows that have a sum in `Tables.seen`.  windows: how many windows it is of.  0 of 0 by default.
    device_counts: the counts on the device, where the caller has them there already.  Kernels read these; in a captured
        CUDA graph the lists only bound them.

    Output arrays are [R, L, H, C]; candidate j of request r is row index starts[r] + j, and entries past the request's
    own candidates are padding: position -1, score -inf.
    Raises ValueError when the counts contradict each other.
    """

    rows: torch.Tensor
    kv_lens: list[int]
    starts: list[int]
    evicted: list[int]
    stored: list[int]
    keeps: list[int]
    counts: list[int]
    query_rows: torch.Tensor
    seen: list[int] = dataclasses.field(default_factory=list)
    windows: list[int] = dataclasses.field(default_factory=list)
    device_counts: Lengths | None = None

    def __post_init__(self):
        size, capacity = self.rows.shape
        self.seen, self.windows = self.seen or [0] * size, self.windows or [0] * size
        for name in Lengths._fields:
            values = getattr(self, name)
            if len(values) != size or min(values, default=0) < 0:
                raise ValueError(f"{name} must hold {size} counts that are not negative, got {values}")
        if self.query_rows.shape[0] != size:
            raise ValueError(f"query_rows must hold {size} rows, got {tuple(self.query_rows.shape)}")
        for r, (kv_len, candidates) in enumerate(zip(self.kv_lens, self.num_candidates)):
            if not self.window <= kv_len <= capacity:
                raise ValueError(f"request {r}: kv_len {kv_len} is not within [window {self.window}, row {capacity}]")
            if max(self.keeps[r], self.stored[r], self.seen[r]) > candidates:
                raise ValueError(f"request {r}: {candidates} candidates cannot keep {self.keeps[r]}, nor have {self.stored[r]} "
                                 f"stored or {self.seen[r]} seen")

    @property
    def size(self) -> int:
        """R."""
        return len(self.kv_lens)

    @property
    def window(self) -> int:
        """w."""
        return self.query_rows.shape[1]

    @property
    def num_candidates(self) -> list[int]:
        """Candidates of each request, kv_len - c0."""
        return [kv_len - start for kv_len, start in zip(self.kv_lens, self.starts)]

    @property
    def C(self) -> int:
        """Most candidates of any request: the last dimension of every output."""
        return max(self.num_candidates, default=0)

    @functools.cached_property
    def lengths(self) -> Lengths:
        """The counts on the device: one copy for all of them, asynchronous from pinned memory on CUDA."""
        if self.device_counts is not None:
            return self.device_counts
        device = self.rows.device
        host = torch.tensor(
            [getattr(self, name) for name in Lengths._fields], dtype=torch.int32, pin_memory=device.type == "cuda"
        )
        return Lengths(*host.to(device, non_blocking=True))

    @functools.cached_property
    def candidates(self) -> torch.Tensor:
        """bool [R, C]: True at real candidates, False at padding."""
        index = torch.arange(self.C, dtype=torch.int32, device=self.rows.device)
        return index < (self.lengths.kv_lens - self.lengths.starts)[:, None]

    def candidate_slots(self, r: int) -> torch.Tensor:
        """int64 [candidates of r]: the KV slots of request r's candidates, in row order."""
        return self.rows[r, self.starts[r] : self.kv_lens[r]]
