"""Key similarities in tiles, O(T) memory: all pairs, or pairs inside a block.  Then a softmax over the candidates."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import CompressionBatch
from zipage_kernels.triton.attention import load_keys
from zipage_kernels.triton.layers import layer_table, padded, tile_rows, upcast
from zipage_kernels.triton.similarity import compare, finish, inverse_lengths, similarity, softmax_sum


@triton.jit(do_not_specialize=["rows", "kv_lens", "starts", "row_stride", "L", "C", "TILES"])
def _inverse_lengths(
    k_first, k_offsets, rows, kv_lens, starts, out, row_stride, slot_stride, head_stride, L, C, TILES,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ALIGN: tl.constexpr, UPCAST: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Inverse key lengths of ROWS candidates of one head."""
    pid = tl.program_id(0)
    head = pid % H
    tile = pid // H % TILES
    layer = pid // H // TILES % L
    r = pid // H // TILES // L
    start = tl.load(starts + r)
    j = tile * ROWS + tl.arange(0, ROWS)
    inside = start + j < tl.load(kv_lens + r)
    slots = tl.load(rows + r.to(tl.int64) * row_stride + start + j, mask=inside, other=0)
    keys = k_first + tl.multiple_of(tl.load(k_offsets + layer), ALIGN) + head * head_stride
    line = ((r * L + layer) * H + head).to(tl.int64) * C
    inverse = inverse_lengths(load_keys(keys, slots, inside, slot_stride, D, BLOCK_D, UPCAST))
    tl.store(out + line + j, inverse, mask=inside)


@triton.jit(do_not_specialize=["rows", "kv_lens", "starts", "row_stride", "L", "C", "BLOCKS", "TILES", "block"])
def _similarity_sums(
    k_first, k_offsets, rows, positions, inverse, kv_lens, starts, totals, protected,
    row_stride, slot_stride, head_stride, threshold, L, C, BLOCKS, TILES, block,
    H: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, ALIGN: tl.constexpr, UPCAST: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """Row sums and protected entries of ROWS candidates against their block; block 0 means all candidates."""
    pid = tl.program_id(0)
    head = pid % H
    tile = pid // H % TILES
    index = pid // H // TILES % BLOCKS
    layer = pid // H // TILES // BLOCKS % L
    r = pid // H // TILES // BLOCKS // L
    start = tl.load(starts + r)
    candidates = tl.load(kv_lens + r) - start
    compared = tl.where(block == 0, candidates, block)
    first = index * compared
    end = tl.minimum(first + compared, candidates)
    if first + tile * ROWS < end:
        line = ((r * L + layer) * H + head).to(tl.int64) * C
        positions += line
        inverse += line
        keys = k_first + tl.multiple_of(tl.load(k_offsets + layer), ALIGN) + head * head_stride
        row = rows + r.to(tl.int64) * row_stride + start
        n = first + tile * ROWS + tl.arange(0, ROWS)
        slots = tl.load(row + n, mask=n < end, other=0)
        k_n = load_keys(keys, slots, n < end, slot_stride, D, BLOCK_D, UPCAST)
        limit = threshold / tl.load(inverse + n, mask=n < end, other=1.0)
        total = tl.zeros([ROWS], tl.float32)
        latest = tl.zeros([ROWS], tl.float32)
        value = tl.zeros([ROWS], tl.float32)
        closest = tl.zeros([ROWS], tl.float32)
        for m_first in range(first, end, ROWS):
            m = m_first + tl.arange(0, ROWS)
            slots = tl.load(row + m, mask=m < end, other=0)
            k_m = load_keys(keys, slots, m < end, slot_stride, D, BLOCK_D, UPCAST)
            total, latest, value, closest = compare(
                k_n, n, limit, k_m, m, end, inverse, positions, total, latest, value, closest
            )
        finish(total, latest, value, closest, n, end, inverse, compared, totals + line, protected + line)


@triton.jit(do_not_specialize=["kv_lens", "starts", "L", "C", "block"])
def _softmax(totals, protected, kv_lens, starts, out, tau, L, C, block, H: tl.constexpr, BLOCK: tl.constexpr):
    """R of all candidates of one head, padding 0."""
    pid = tl.program_id(0)
    r = pid // H // L
    candidates = tl.load(kv_lens + r) - tl.load(starts + r)
    compared = tl.where(block == 0, candidates, block)
    line = pid.to(tl.int64) * C
    top, total = softmax_sum(totals + line, protected + line, candidates, compared, tau, BLOCK)
    for first in range(0, C, BLOCK):
        j = first + tl.arange(0, BLOCK)
        value = similarity(totals + line, protected + line, j, candidates, compared, tau)
        tl.store(out + line + j, tl.where(j < candidates, tl.exp(value - top) / total, 0.0), mask=j < C)


def compared_keys(mode: str, block: int) -> int:
    """The kernels' `block`: keys that a key is compared with, or 0 for all candidates of its request."""
    if mode not in ("lightning", "flash"):
        raise ValueError(f"redundancy mode must be 'lightning' or 'flash', got {mode!r}")
    return block if mode == "lightning" else 0


def similarity_sums(
    k_buffers: list[torch.Tensor], batch: CompressionBatch, positions: torch.Tensor, block: int, threshold: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(row sums fp32, protected entries in fixed point int32), both [R, L, H, C], undefined at padding."""
    table = layer_table(k_buffers)
    size, num_layers, num_heads, candidates = positions.shape
    head_dim = table.first.shape[2]
    lengths = batch.lengths
    shape = dict(
        H=num_heads, D=head_dim, BLOCK_D=padded(head_dim, 16), ALIGN=table.align, UPCAST=upcast(table.first.dtype)
    )  # fmt: skip
    totals = torch.empty(positions.shape, dtype=torch.float32, device=positions.device)
    protected = torch.zeros_like(positions)
    inverse = torch.empty_like(totals)
    rows = tile_rows(head_dim, table.first.dtype)
    tiles = triton.cdiv(candidates, rows)
    _inverse_lengths[(size * num_layers * tiles * num_heads,)](
        table.first, table.offsets, batch.rows, lengths.kv_lens, lengths.starts, inverse, batch.rows.stride(0),
        table.slot_stride, table.head_stride, num_layers, candidates, tiles, **shape, ROWS=rows,
    )  # fmt: skip
    blocks = 1
    if block:
        rows = min(rows, padded(block, 16))
        blocks, tiles = triton.cdiv(candidates, block), triton.cdiv(block, rows)
    _similarity_sums[(size * num_layers * blocks * tiles * num_heads,)](
        table.first, table.offsets, batch.rows, positions, inverse, lengths.kv_lens, lengths.starts, totals, protected,
        batch.rows.stride(0), table.slot_stride, table.head_stride, threshold, num_layers, candidates, blocks, tiles, block,
        **shape, ROWS=rows, num_warps=8 if rows == 128 else 4, num_stages=2,
    )  # fmt: skip
    return totals, protected


def redundancy(
    k_buffers: list[torch.Tensor],
    batch: CompressionBatch,
    positions: torch.Tensor,
    block: int,
    tau: float,
    mode: str,
    threshold: float = 0.5,
) -> torch.Tensor:
    """See `zipage_kernels.reference.redundancy.redundancy`."""
    block = compared_keys(mode, block)
    totals, protected = similarity_sums(k_buffers, batch, positions, block, threshold)
    out = torch.empty_like(totals)
    size, num_layers, num_heads, candidates = positions.shape
    _softmax[(size * num_layers * num_heads,)](
        totals, protected, batch.lengths.kv_lens, batch.lengths.starts, out, tau, num_layers, candidates, block,
        H=num_heads, BLOCK=1024,
    )  # fmt: skip
    return out
