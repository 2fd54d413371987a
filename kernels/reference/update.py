"""What a window looks at, added to the scores that tokens carry; nothing is dropped or moved."""

from __future__ import annotations

import torch

from zipage_kernels.batch import CompressionBatch, Tables
from zipage_kernels.reference.attention import attention_score
from zipage_kernels.reference.gather import gather_importance, gather_positions


def update_importance(
    k_buffers: list[torch.Tensor], query_cache: torch.Tensor, tables: Tables, batch: CompressionBatch, scale: float
) -> None:
    """F = max(I, F) of all candidates, in the tables, in place; their positions, too.  Afterwards all of them are `stored`.

    I: `attention_score`.  F: `tables.importance`, rounded to its bf16, 0 for candidates that have none yet; what was seen in
    one block does not age.  NaN stays.  k_buffers: L tensors [S, H, D].  query_cache: [L, M*w + 1, Hq, D].  batch.keeps are
    not looked at.  Source: F of arXiv 2603.08743, of several windows.
    """
    assert tables.importance is not None
    values = torch.maximum(attention_score(k_buffers, query_cache, batch, scale), gather_importance(tables.importance, batch))
    positions = gather_positions(tables.positions, batch)
    for r, n in enumerate(batch.num_candidates):
        slots = batch.candidate_slots(r)
        tables.positions[:, slots] = positions[r, :, :, :n].transpose(1, 2)
        tables.importance[:, slots] = values[r, :, :, :n].transpose(1, 2).to(tables.importance.dtype)
