"""One compression, from buffers to buffers: score, force, select, compact; or only the scores.  Knows nothing of SGLang."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch

from zipage_kernels import ops
from zipage_kernels.batch import CompressionBatch, Tables
from zipage_sglang.config import ZipageConfig
from zipage_sglang.policies import Policy, View


@dataclasses.dataclass(eq=False)
class KVBuffers:
    """The device memory that a compression reads and rewrites; one per model worker.

    k_buffers, v_buffers: L tensors [S, H, D] of the KV pool, fp32, fp16 or bf16, may be strided views.
    query_cache: [L, M*w + 1, Hq, D] (row 0 is trash).  positions: int32 [L, S, H].
    importance: bf16 [L, S, H], or None when the policy stores none.  scale: factor of the attention logits.
    seen: bf16 [L, S, H], or None where one window scores.
    log_sums: fp32 [L, M*w + 1, Hq], softmax sums of the cached queries, or None where attention does not give them (see
    `zipage_kernels.reference.attention`).
    first_layer, first_kv_head: global indices of local layer 0 and local KV head 0.
    """

    k_buffers: list[torch.Tensor]
    v_buffers: list[torch.Tensor]
    query_cache: torch.Tensor
    positions: torch.Tensor
    importance: torch.Tensor | None
    scale: float
    first_layer: int = 0
    first_kv_head: int = 0
    seen: torch.Tensor | None = None
    log_sums: torch.Tensor | None = None

    @property
    def tables(self) -> Tables:
        """What is remembered about the tokens."""
        return Tables(self.positions, self.importance, self.seen)


class Compression(NamedTuple):
    """What a compression did, on the device (reading it is the only wait).

    keep: bool [R, L, H, C], the survivors by their old candidate index.  nan_counts: int64 [R], NaN scores of candidates
    that were not forced; they count as -inf.  positions: int32 [R, L, H, C], -1 at padding.
    """

    keep: torch.Tensor
    nan_counts: torch.Tensor
    positions: torch.Tensor


def compress(batch: CompressionBatch, buffers: KVBuffers, policy: Policy, config: ZipageConfig) -> Compression:
    """Keeps keeps[r] candidates of every request, layer and KV head, and moves them to the front of its candidate rows.

    Rewrites the KV pool and the tables in place; the caller frees the slots behind row starts[r] + keeps[r] and updates
    its lengths.  keeps[r] must hold config.reserve + config.forced_sinks.
    """
    view = View(batch, buffers)
    scores = policy.score(view)
    keep, nan_counts = ops.select_forced(scores, view.positions, batch, config.reserve, config.forced_sinks)
    ops.compact(buffers.k_buffers, buffers.v_buffers, buffers.tables, batch, keep, view.positions, view.importance)
    return Compression(keep, nan_counts, view.positions)


def score(batch: CompressionBatch, buffers: KVBuffers) -> None:
    """Adds what the window looks at to what earlier windows did; all candidates have `seen` sums then, of one window more.
    Rows stay as they are."""
    assert buffers.seen is not None
    ops.add_attention(buffers.k_buffers, buffers.query_cache, buffers.seen, batch, buffers.scale, buffers.log_sums)

