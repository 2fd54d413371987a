"""What several windows look at, added up; nothing is dropped or moved."""

from __future__ import annotations

import torch

from zipage_kernels.batch import CompressionBatch
from zipage_kernels.reference.attention import attention_score


def add_attention(
    k_buffers: list[torch.Tensor], query_cache: torch.Tensor, seen: torch.Tensor, batch: CompressionBatch, scale: float,
    log_sums: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """seen += I for the first batch.seen[r] candidates of each request, seen = I for its others; in place, rounded to bf16.

    I, log_sums: see `attention_score`.  seen: bf16 [L, S, H].  k_buffers: L tensors [S, H, D].  query_cache: [L, M*w + 1, Hq, D].
    The mean of P windows of w that follow one another is I of one window of P * w, for keys do not change in between.
    """
    scores = attention_score(k_buffers, query_cache, batch, scale, log_sums)
    for r, n in enumerate(batch.num_candidates):
        slots, known = batch.candidate_slots(r), batch.seen[r]
        total = scores[r, :, :, :n].transpose(1, 2).clone()
        total[:, :known] += seen[:, slots[:known]].float()
        seen[:, slots] = total.to(seen.dtype)


def mean_attention(attention: torch.Tensor, seen: torch.Tensor | None, batch: CompressionBatch) -> torch.Tensor:
    """I of the last window and of those before it, fp32 [R, L, H, C]: (I + seen) / (windows + 1).

    attention: I of the last one.  Candidates behind batch.seen[r] were not there for the others and have 0 of them.
    """
    if seen is None:
        return attention
    total = attention.clone()
    for r, known in enumerate(batch.seen):
        total[r, :, :, :known] += seen[:, batch.candidate_slots(r)[:known]].float().transpose(1, 2)
    return total / (1.0 + batch.lengths.windows[:, None, None, None])
