"""Max pooling over neighbouring tokens."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit(do_not_specialize=["C"])
def _max_pool(scores, positions, order, out, C, REACH: tl.constexpr, BLOCK: tl.constexpr):
    """Places i of `order`, a head's candidates by position: reads there, and writes where they came from."""
    line = tl.program_id(0).to(tl.int64) * C
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    j = tl.load(order + line + i, mask=i < C, other=0)
    padding = tl.load(positions + line + j, mask=i < C, other=-1) < 0
    best = tl.full([BLOCK], -float("inf"), tl.float32)
    for distance in tl.static_range(-REACH, REACH + 1):
        inside = (i + distance >= 0) & (i + distance < C)
        neighbour = tl.load(order + line + i + distance, mask=inside, other=0)
        inside &= tl.load(positions + line + neighbour, mask=inside, other=-1) >= 0
        score = tl.load(scores + line + neighbour, mask=inside, other=-float("inf"))
        best = tl.maximum(best, score, propagate_nan=tl.PropagateNan.ALL)
    tl.store(out + line + j, tl.where(padding, -float("inf"), best), mask=i < C)


def max_pool(scores: torch.Tensor, positions: torch.Tensor, kernel_size: int = 5) -> torch.Tensor:
    """See `zipage_kernels.reference.pool.max_pool`."""
    scores = scores.contiguous()
    order = positions.argsort(dim=-1)  # padding comes first
    out = torch.empty_like(scores)
    size, block = scores.shape[-1], 512
    _max_pool[(scores.numel() // size, triton.cdiv(size, block))](
        scores, positions, order, out, size, REACH=kernel_size // 2, BLOCK=block
    )
    return out
