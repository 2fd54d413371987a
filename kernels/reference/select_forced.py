"""Chooses the candidates that survive, some of them whatever their score is."""

from __future__ import annotations

import torch

from zipage_kernels.batch import CompressionBatch
from zipage_kernels.reference.select import select


def forced(positions: torch.Tensor, batch: CompressionBatch, reserve: int, sinks: int) -> torch.Tensor:
    """bool [R, L, H, C]: what is always kept: the last `reserve` true positions of each request and, where the prompt is a
    candidate too (c0 = 0), its first `sinks`."""
    true_lens = (batch.lengths.kv_lens + batch.lengths.evicted)[:, None, None, None]
    sink_ends = torch.where(batch.lengths.starts == 0, sinks, 0)[:, None, None, None]
    return batch.candidates[:, None, None] & ((positions >= true_lens - reserve) | (positions < sink_ends))


def select_forced(
    scores: torch.Tensor, positions: torch.Tensor, batch: CompressionBatch, reserve: int, sinks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`select`, with +inf in place of the scores of what `forced` names.

    keeps[r] must hold reserve + sinks.  Returns (bool [R, L, H, C], int64 [R]: NaN scores of candidates that were not
    forced).
    """
    always = forced(positions, batch, reserve, sinks)
    nan_counts = (scores.isnan() & batch.candidates[:, None, None] & ~always).sum(dim=(1, 2, 3))
    return select(scores.masked_fill(always, torch.inf), positions, batch), nan_counts
