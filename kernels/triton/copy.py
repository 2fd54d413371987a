"""Copies whole tokens from slot to slot."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import Tables
from zipage_kernels.triton.layers import layer_table, padded

ROWS = 32


@triton.jit(do_not_specialize=["src", "dst", "layer_stride", "N", "BLOCKS"])
def _copy(
    k_first, k_offsets, v_first, v_offsets, position_table, importance_table, src, dst,
    k_slot, k_head, v_slot, v_head, layer_stride, N, BLOCKS,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, K_ALIGN: tl.constexpr, V_ALIGN: tl.constexpr,
    IMPORTANCE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS tokens of one head."""
    pid = tl.program_id(0)
    head = pid % H
    block = pid // H % BLOCKS
    layer = pid // H // BLOCKS
    i = block * ROWS + tl.arange(0, ROWS)
    origin = tl.load(src + i, mask=i < N, other=0)
    to = tl.load(dst + i, mask=i < N, other=0)
    d = tl.arange(0, BLOCK_D)
    mask = (i < N)[:, None] & (d < D)[None, :]
    keys = k_first + tl.multiple_of(tl.load(k_offsets + layer), K_ALIGN) + head * k_head
    values = v_first + tl.multiple_of(tl.load(v_offsets + layer), V_ALIGN) + head * v_head
    k = tl.load(keys + origin[:, None] * k_slot + d[None, :], mask=mask)
    v = tl.load(values + origin[:, None] * v_slot + d[None, :], mask=mask)
    tl.store(keys + to[:, None] * k_slot + d[None, :], k, mask=mask)
    tl.store(values + to[:, None] * v_slot + d[None, :], v, mask=mask)
    table = layer.to(tl.int64) * layer_stride + head
    tl.store(position_table + table + to * H, tl.load(position_table + table + origin * H, mask=i < N), mask=i < N)
    if IMPORTANCE:
        tl.store(importance_table + table + to * H, tl.load(importance_table + table + origin * H, mask=i < N), mask=i < N)


def copy_slots(
    k_buffers: list[torch.Tensor],
    v_buffers: list[torch.Tensor],
    tables: Tables,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """See `zipage_kernels.reference.compact.copy_slots`."""
    if not len(src):
        return
    k, v = layer_table(k_buffers), layer_table(v_buffers)
    num_heads, head_dim = k.first.shape[1:]
    blocks = triton.cdiv(len(src), ROWS)
    _copy[(len(k_buffers) * blocks * num_heads,)](
        k.first, k.offsets, v.first, v.offsets, tables.positions, tables.importance, src, dst,
        k.slot_stride, k.head_stride, v.slot_stride, v.head_stride, tables.positions.stride(0), len(src), blocks,
        H=num_heads, D=head_dim, BLOCK_D=padded(head_dim), K_ALIGN=k.align, V_ALIGN=v.align,
        IMPORTANCE=tables.importance is not None, ROWS=ROWS,
    )  # fmt: skip
