"""Max pooling over neighbouring tokens."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def max_pool(scores: torch.Tensor, positions: torch.Tensor, kernel_size: int = 5) -> torch.Tensor:
    """Maximum of each candidate's score and those of its kernel_size // 2 neighbours on either side.

    Neighbours are the next candidates in position order (holes in the positions do not count), which after hole filling
    is not the row order.  Beyond the first and the last candidate lies -inf.  A NaN spreads to its neighbours.

    scores: fp32 [R, L, H, C].  positions: int32 [R, L, H, C], -1 at padding.  kernel_size: odd.
    Returns fp32 [R, L, H, C], padding -inf.
    """
    padding = positions < 0
    order = positions.argsort(dim=-1)  # padding comes first, as -inf: the same as the border
    ordered = scores.masked_fill(padding, -torch.inf).gather(-1, order)
    pooled = F.max_pool1d(ordered.flatten(0, 1), kernel_size, stride=1, padding=kernel_size // 2)
    out = torch.empty_like(scores).scatter_(-1, order, pooled.view_as(scores))
    return out.masked_fill(padding, -torch.inf)
