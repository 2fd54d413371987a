"""Hole filling in two launches: which token goes where, and what stays is written down; then the moves."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import CompressionBatch, Tables
from zipage_kernels.triton.layers import bf16_bits, layer_table, padded

ROWS = 32  # tokens that one program of the second launch moves


@triton.jit(
    do_not_specialize=["rows", "kv_lens", "starts", "stored", "keeps", "row_stride", "layer_stride", "L", "C", "most"]
)
def _plan(
    keep, positions, importance, position_table, importance_table, rows, kv_lens, starts, stored, keeps, moves, counts,
    row_stride, layer_stride, L, C, most,
    H: tl.constexpr, IMPORTANCE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Lists one head's holes and the survivors behind the kept rows, both in row order; writes the tables of what stays.

    moves: int32 [R, L, H, 2, most], holes, then survivors.  counts: int32 [R, L, H].
    """
    pid = tl.program_id(0)
    head = pid % H
    layer = pid // H % L
    r = pid // H // L
    start = tl.load(starts + r)
    candidates = tl.load(kv_lens + r) - start
    kept = tl.load(keeps + r)
    survivors = tl.load(stored + r)
    row = rows + r.to(tl.int64) * row_stride + start
    position_table += layer.to(tl.int64) * layer_stride + head
    keep += pid.to(tl.int64) * C
    positions += pid.to(tl.int64) * C
    if IMPORTANCE:
        importance_table += layer.to(tl.int64) * layer_stride + head
        importance += pid.to(tl.int64) * C
    holes = moves + pid.to(tl.int64) * 2 * most
    num_holes = tl.zeros([], tl.int32)
    num_sources = tl.zeros([], tl.int32)
    for first in range(0, candidates, BLOCK):
        j = first + tl.arange(0, BLOCK)
        # All is read before the scan, so that the waits overlap.
        front = j < kept
        stays = tl.load(keep + j, mask=j < candidates, other=False)
        slots = tl.load(row + j, mask=front, other=0)
        position = tl.load(positions + j, mask=front & (j >= survivors), other=0)  # the others' came from the table
        if IMPORTANCE:
            score = tl.load(importance + j, mask=front, other=0.0)
        hole = (front & (stays == 0)).to(tl.int32)
        source = ((j < candidates) & (j >= kept) & stays).to(tl.int32)
        both = hole + (source << 16)  # ranked by one scan
        rank = tl.cumsum(both, axis=0)
        new = tl.sum(both, axis=0)
        hole_rank = num_holes + (rank & 0xFFFF) - 1
        source_rank = num_sources + (rank >> 16) - 1
        tl.store(holes + hole_rank, j, mask=(hole != 0) & (hole_rank < most))
        tl.store(holes + most + source_rank, j, mask=(source != 0) & (source_rank < most))
        num_holes += new & 0xFFFF
        num_sources += new >> 16
        stays = front & stays
        tl.store(position_table + slots * H, position, mask=stays & (j >= survivors))
        if IMPORTANCE:
            tl.store(importance_table + slots * H, bf16_bits(score), mask=stays)
    tl.store(counts + pid, tl.minimum(num_holes, num_sources))


@triton.jit(do_not_specialize=["rows", "starts", "row_stride", "layer_stride", "L", "C", "most", "BLOCKS"])
def _move(
    k_first, k_offsets, v_first, v_offsets, positions, importance, position_table, importance_table, rows, starts,
    moves, counts, row_stride, k_slot, k_head, v_slot, v_head, layer_stride, L, C, most, BLOCKS,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, K_ALIGN: tl.constexpr, V_ALIGN: tl.constexpr,
    IMPORTANCE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Moves ROWS tokens of one head."""
    pid = tl.program_id(0)
    head = pid % H
    block = pid // H % BLOCKS
    layer = pid // H // BLOCKS % L
    r = pid // H // BLOCKS // L
    line = ((r * L + layer) * H + head).to(tl.int64)
    count = tl.load(counts + line)
    if block * ROWS < count:
        i = block * ROWS + tl.arange(0, ROWS)
        moved = i < count
        target = tl.load(moves + line * 2 * most + i, mask=moved, other=0)
        source = tl.load(moves + line * 2 * most + most + i, mask=moved, other=0)
        row = rows + r.to(tl.int64) * row_stride + tl.load(starts + r)
        to = tl.load(row + target, mask=moved, other=0)
        origin = tl.load(row + source, mask=moved, other=0)
        d = tl.arange(0, BLOCK_D)
        mask = moved[:, None] & (d < D)[None, :]
        keys = k_first + tl.multiple_of(tl.load(k_offsets + layer), K_ALIGN) + head * k_head
        values = v_first + tl.multiple_of(tl.load(v_offsets + layer), V_ALIGN) + head * v_head
        k = tl.load(keys + origin[:, None] * k_slot + d[None, :], mask=mask)
        v = tl.load(values + origin[:, None] * v_slot + d[None, :], mask=mask)
        tl.store(keys + to[:, None] * k_slot + d[None, :], k, mask=mask)
        tl.store(values + to[:, None] * v_slot + d[None, :], v, mask=mask)
        table = layer.to(tl.int64) * layer_stride + to * H + head
        tl.store(position_table + table, tl.load(positions + line * C + source, mask=moved), mask=moved)
        if IMPORTANCE:
            bits = bf16_bits(tl.load(importance + line * C + source, mask=moved, other=0.0))
            tl.store(importance_table + table, bits, mask=moved)


def compact(
    k_buffers: list[torch.Tensor],
    v_buffers: list[torch.Tensor],
    tables: Tables,
    batch: CompressionBatch,
    keep: torch.Tensor,
    positions: torch.Tensor,
    importance_new: torch.Tensor | None,
) -> None:
    """See `zipage_kernels.reference.compact.compact`."""
    k, v = layer_table(k_buffers), layer_table(v_buffers)
    size, num_layers, num_heads, candidates = positions.shape
    head_dim = k.first.shape[2]
    most = max(min(kept, n - kept) for kept, n in zip(batch.keeps, batch.num_candidates))
    lines = size * num_layers * num_heads
    moves = torch.empty((lines, 2, max(most, 1)), dtype=torch.int32, device=keep.device)
    counts = torch.empty(lines, dtype=torch.int32, device=keep.device)
    importance_table = None
    if importance_new is not None:
        assert tables.importance is not None
        importance_table = tables.importance.view(torch.int16)
    lengths, layer_stride = batch.lengths, tables.positions.stride(0)
    _plan[(lines,)](
        keep, positions, importance_new, tables.positions, importance_table, batch.rows, lengths.kv_lens, lengths.starts,
        lengths.stored, lengths.keeps, moves, counts, batch.rows.stride(0), layer_stride, num_layers, candidates,
        max(most, 1), H=num_heads, IMPORTANCE=importance_new is not None, BLOCK=1024,
        num_warps=8, maxnreg=128,
    )  # fmt: skip
    if most:
        blocks = triton.cdiv(most, ROWS)
        _move[(lines * blocks,)](
            k.first, k.offsets, v.first, v.offsets, positions, importance_new, tables.positions, importance_table,
            batch.rows, lengths.starts, moves, counts, batch.rows.stride(0), k.slot_stride, k.head_stride, v.slot_stride,
            v.head_stride, layer_stride, num_layers, candidates, most, blocks,
            H=num_heads, D=head_dim, BLOCK_D=padded(head_dim), K_ALIGN=k.align, V_ALIGN=v.align,
            IMPORTANCE=importance_new is not None, ROWS=ROWS,
        )  # fmt: skip
