"""Reads rows of SGLang's row table, and what earlier compressions stored about them: true positions and global scores."""

from __future__ import annotations

import torch

from zipage_kernels.batch import CompressionBatch


def gather_rows(row_table: torch.Tensor, index: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor) -> None:
    """KV slots of some rows of SGLang's row table, 0 behind each row's end.

    row_table: int32 [N, W].  index, kv_lens: int32 [R], on the same device; a negative index is a row of zeros.
    out: int64 [R, T], T <= W; overwritten.
    """
    filled = torch.arange(out.shape[1], device=out.device) < torch.where(index < 0, 0, kv_lens)[:, None]
    out.copy_(row_table[index.clamp(min=0).long(), : out.shape[1]].masked_fill_(~filled, 0))


def gather_positions(positions: torch.Tensor, batch: CompressionBatch) -> torch.Tensor:
    """True position of every candidate.

    The first `stored` candidates have theirs in the table; row i after them was never compressed and holds position
    i + evicted.  positions: int32 [L, S, H].  Returns int32 [R, L, H, C], padding -1.
    """
    num_layers, _, num_heads = positions.shape
    out = positions.new_full((batch.size, num_layers, num_heads, batch.C), -1)
    for r, (start, kv_len, stored) in enumerate(zip(batch.starts, batch.kv_lens, batch.stored)):
        slots = batch.rows[r, start : start + stored]
        out[r, :, :, :stored] = positions[:, slots].transpose(1, 2)
        fresh = torch.arange(start + stored, kv_len, dtype=positions.dtype, device=positions.device)
        out[r, :, :, stored : kv_len - start] = fresh + batch.evicted[r]
    return out


def gather_importance(importance: torch.Tensor, batch: CompressionBatch) -> torch.Tensor:
    """F of the previous compression for every candidate that survived it, 0 for the others and for padding.

    importance: bf16 [L, S, H].  Returns fp32 [R, L, H, C].
    """
    num_layers, _, num_heads = importance.shape
    out = torch.zeros(
        (batch.size, num_layers, num_heads, batch.C), dtype=torch.float32, device=importance.device
    )
    for r, (start, stored) in enumerate(zip(batch.starts, batch.stored)):
        slots = batch.rows[r, start : start + stored]
        out[r, :, :, :stored] = importance[:, slots].transpose(1, 2).float()
    return out
