"""Reads rows of SGLang's row table, and the tables of earlier compressions: there all heads of a token at once, because they
are neighbours."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import CompressionBatch
from zipage_kernels.triton.layers import padded


@triton.jit(
    do_not_specialize=["rows", "kv_lens", "starts", "evicted", "stored", "row_stride", "layer_stride", "L", "C", "BLOCKS"]
)
def _gather(
    table, rows, kv_lens, starts, evicted, stored, out, row_stride, layer_stride, L, C, BLOCKS,
    H: tl.constexpr, PAD_H: tl.constexpr, BLOCK: tl.constexpr, POSITIONS: tl.constexpr,
):  # fmt: skip
    """Table entries of BLOCK candidates, and what stands in for them where there are none."""
    pid = tl.program_id(0)
    block = pid % BLOCKS
    layer = pid // BLOCKS % L
    r = pid // BLOCKS // L
    start = tl.load(starts + r)
    j = block * BLOCK + tl.arange(0, BLOCK)
    head = tl.arange(0, PAD_H)
    known = j < tl.load(stored + r)
    slots = tl.load(rows + r.to(tl.int64) * row_stride + start + j, mask=known, other=0)
    pointers = table + layer.to(tl.int64) * layer_stride + slots[:, None] * H + head[None, :]
    values = tl.load(pointers, mask=known[:, None] & (head < H)[None, :], other=0.0)
    if POSITIONS:
        fresh = tl.where(start + j < tl.load(kv_lens + r), start + j + tl.load(evicted + r), -1)
        values = tl.where(known[:, None], values, fresh[:, None])
    else:
        values = values.to(tl.float32)
    line = ((r * L + layer) * H + head).to(tl.int64)
    tl.store(out + line[None, :] * C + j[:, None], values, mask=(j < C)[:, None] & (head < H)[None, :])


def _gathered(table: torch.Tensor, batch: CompressionBatch, dtype: torch.dtype) -> torch.Tensor:
    num_layers, _, num_heads = table.shape
    lengths = batch.lengths
    out = torch.empty((batch.size, num_layers, num_heads, batch.C), dtype=dtype, device=table.device)
    block = 128
    blocks = triton.cdiv(batch.C, block)
    _gather[(batch.size * num_layers * blocks,)](
        table, batch.rows, lengths.kv_lens, lengths.starts, lengths.evicted, lengths.stored, out,
        batch.rows.stride(0), table.stride(0), num_layers, batch.C, blocks,
        H=num_heads, PAD_H=padded(num_heads), BLOCK=block, POSITIONS=dtype == torch.int32,
    )  # fmt: skip
    return out


def gather_positions(positions: torch.Tensor, batch: CompressionBatch) -> torch.Tensor:
    """See `zipage_kernels.reference.gather.gather_positions`."""
    return _gathered(positions, batch, torch.int32)


def gather_importance(importance: torch.Tensor, batch: CompressionBatch) -> torch.Tensor:
    """See `zipage_kernels.reference.gather.gather_importance`."""
    return _gathered(importance, batch, torch.float32)


@triton.jit(do_not_specialize=["row_table", "table_stride", "T"])
def _gather_rows(row_table, index, kv_lens, out, table_stride, T, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(index + r).to(tl.int64)
    filled = (i < tl.load(kv_lens + r)) & (row >= 0) & (i < T)
    tl.store(out + r * T + i, tl.load(row_table + row * table_stride + i, mask=filled, other=0).to(tl.int64), mask=i < T)


def gather_rows(row_table: torch.Tensor, index: torch.Tensor, kv_lens: torch.Tensor, out: torch.Tensor) -> None:
    """See `zipage_kernels.reference.gather.gather_rows`."""
    size, width = out.shape
    block = 1024
    _gather_rows[(size, triton.cdiv(width, block))](
        row_table, index, kv_lens, out, row_table.stride(0), width, BLOCK=block
    )
