"""Chooses the candidates that survive."""

from __future__ import annotations

import torch

from zipage_kernels.batch import CompressionBatch


def select(scores: torch.Tensor, positions: torch.Tensor, batch: CompressionBatch) -> torch.Tensor:
    """The K best candidates of every (request, layer, head): by score, and between equal scores the later position.

    NaN counts as -inf; padding is never kept.
    scores: fp32 [R, L, H, C].  positions: int32 [R, L, H, C], -1 at padding.
    Returns bool [R, L, H, C] with exactly keeps[r] True in each row.
    """
    unusable = scores.isnan() | (positions < 0)
    # A stable sort by score of what is sorted by position: padding (-1) ends up behind candidates that score -inf too.
    by_position = positions.argsort(dim=-1, descending=True)
    ordered = scores.masked_fill(unusable, -torch.inf).gather(-1, by_position)
    order = by_position.gather(-1, ordered.argsort(dim=-1, descending=True, stable=True))
    rank = torch.arange(scores.shape[-1], device=scores.device)
    best = (rank < batch.lengths.keeps[:, None, None, None]).expand_as(scores)
    return torch.zeros_like(best).scatter_(-1, order, best)
