"""The paper's score, composed of the other twins."""

from __future__ import annotations

import torch

from zipage_kernels.batch import CompressionBatch, Tables
from zipage_kernels.reference.attention import attention_score
from zipage_kernels.reference.gather import gather_importance
from zipage_kernels.reference.pool import max_pool
from zipage_kernels.reference.redundancy import redundancy as redundancy_score
from zipage_kernels.reference.seen import mean_attention


def zipage_score(
    k_buffers: list[torch.Tensor],
    query_cache: torch.Tensor,
    tables: Tables,
    batch: CompressionBatch,
    positions: torch.Tensor,
    scale: float,
    alpha: float,
    lam: float,
    tau: float,
    block: int,
    redundancy: str,
    pooling: str,
    log_sums: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Z and F of arXiv 2603.08743: Z = lam * F - (1 - lam) * R, or Z = F without redundancy.

    F = max(I, alpha * F of the previous compression), I of all windows that score (`mean_attention`).  For use in Z only, F is
    max-pooled over 5 neighbours: `once` at a request's first compression, `always`, or `never`.  I, R, log_sums:
    `attention_score`, `redundancy` (mode "lightning", "flash" or "none").

    positions: int32 [R, L, H, C] from `gather_positions`.  Returns (Z, unpooled F), fp32 [R, L, H, C], undefined at
    padding.
    """
    assert tables.importance is not None
    previous = gather_importance(tables.importance, batch)
    attention = mean_attention(attention_score(k_buffers, query_cache, batch, scale, log_sums), tables.seen, batch)
    importance = torch.maximum(attention, alpha * previous)
    used = importance
    if pooling == "always":
        used = max_pool(importance, positions)
    elif pooling == "once" and 0 in batch.counts:
        first = batch.lengths.counts[:, None, None, None] == 0
        used = torch.where(first, max_pool(importance, positions), importance)
    if redundancy == "none":
        return used, importance
    share = redundancy_score(k_buffers, batch, positions, block, tau, redundancy)
    return lam * used - (1.0 - lam) * share, importance
