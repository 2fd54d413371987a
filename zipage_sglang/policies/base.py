"""What a policy is, and what it may look at."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, ClassVar

import torch

from zipage_kernels import ops
from zipage_kernels.batch import CompressionBatch

if TYPE_CHECKING:
    from zipage_sglang.pipeline import KVBuffers


class View:
    """The features of one compression batch; each is computed when a policy first asks for it.

    Shapes broadcast against [R, L, H, C] (requests, local layers, local KV heads, candidates); see
    `zipage_kernels.batch` for padding.  A policy that stores a global score leaves it in `importance`.
    """

    def __init__(self, batch: CompressionBatch, buffers: KVBuffers):
        self.batch = batch
        self.buffers = buffers
        self.importance: torch.Tensor | None = None  # fp32 [R, L, H, C], set by policies that store it

    @functools.cached_property
    def positions(self) -> torch.Tensor:
        """int32 [R, L, H, C], -1 at padding."""
        return ops.gather_positions(self.buffers.positions, self.batch)

    @property
    def counts(self) -> torch.Tensor:
        """int32 [R, 1, 1, 1]: compressions of the request since its (re)prefill, this one not included."""
        return self.batch.lengths.counts[:, None, None, None]

    @property
    def layers(self) -> torch.Tensor:
        """int64 [1, L, 1, 1]: global layer indices."""
        index = torch.arange(len(self.buffers.k_buffers), device=self.batch.rows.device)
        return (index + self.buffers.first_layer)[None, :, None, None]

    @property
    def kv_heads(self) -> torch.Tensor:
        """int64 [1, 1, H, 1]: global KV head indices, the same on every tensor-parallel layout."""
        index = torch.arange(self.buffers.k_buffers[0].shape[1], device=self.batch.rows.device)
        return (index + self.buffers.first_kv_head)[None, None, :, None]

    def attention(self) -> torch.Tensor:
        """I, fp32 [R, L, H, C]: attention of the window's queries to each candidate."""
        b = self.buffers
        return ops.attention_score(b.k_buffers, b.query_cache, self.batch, b.scale, b.log_sums)

    def previous(self) -> torch.Tensor:
        """F of the request's previous compression, fp32 [R, L, H, C], 0 for tokens that have none."""
        return ops.gather_importance(self.buffers.importance, self.batch)

    def redundancy(self, block: int, tau: float, mode: str) -> torch.Tensor:
        """R, fp32 [R, L, H, C]: softmax of the key similarities."""
        return ops.redundancy(self.buffers.k_buffers, self.batch, self.positions, block, tau, mode)

    def max_pool(self, scores: torch.Tensor) -> torch.Tensor:
        """fp32 [R, L, H, C]: maximum over 5 neighbours in position order."""
        return ops.max_pool(scores, self.positions, kernel_size=5)

    def zipage(
        self, alpha: float, lam: float, tau: float, block: int, redundancy: str, pooling: str
    ) -> torch.Tensor:
        """Z, fp32 [R, L, H, C]: the paper's score of all of these; leaves F in `importance`."""
        b = self.buffers
        scores, self.importance = ops.zipage_score(
            b.k_buffers, b.query_cache, b.tables, self.batch, self.positions, b.scale,
            alpha, lam, tau, block, redundancy, pooling, b.log_sums,
        )  # fmt: skip
        return scores


@dataclasses.dataclass(frozen=True)
class Policy:
    """Scores candidates; the pipeline then adds what is always kept and takes the K best."""

    stores_importance: ClassVar[bool] = False

    def score(self, view: View) -> torch.Tensor:
        """fp32 [R, L, H, C], higher is kept.  What it holds at padding is ignored; NaN counts as -inf."""
        raise NotImplementedError
