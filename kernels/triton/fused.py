"""Second attention pass and lightning redundancy from one reading of the keys, for blocks that fit on chip.

A block's keys are taken in position order.  Then the latest similar key of a column is the last one, and one maximum over
2 * index + cosine finds it together with its cosine, so that each product is looked at once and leaves no trace.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import MOST_POSITIONS, CompressionBatch
from zipage_kernels.triton.attention import first_pass, load_keys, looked_at, reduce_sums
from zipage_kernels.triton.layers import padded, tile_rows
from zipage_kernels.triton.queries import load_log_sums, load_queries
from zipage_kernels.triton.redundancy import inverse_lengths_of
from zipage_kernels.triton.similarity import FIXED_POINT, STRETCH

OPTIONS = dict(num_warps=8, num_stages=1)
REGISTERS = 128  # a thread: two programs on a multiprocessor, so that one loads while the other computes


@triton.jit(do_not_specialize=["rows", "kv_lens", "starts", "row_stride", "L", "C", "BLOCKS", "SPLITS"])
def _sort_blocks(
    positions, inverse, rows, kv_lens, starts, order, slots, ordered_inverse, protected, sums, log_sums,
    row_stride, L, C, BLOCKS, SPLITS,
    H: tl.constexpr, BLOCK: tl.constexpr, PAD_BLOCK: tl.constexpr, KEPT: tl.constexpr,
    QUERIES: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr, SPLITS_MAX: tl.constexpr,
):  # fmt: skip
    """One block's candidates by position, their slots and inverse key lengths; -1, 0 and 0 behind the last.

    Also what else must be there before `_block_scores` begins: `protected` 0, and the head's log sums.
    """
    pid = tl.program_id(0).to(tl.int64)
    block = pid % BLOCKS
    line = pid // BLOCKS
    r = line // H // L
    kv_len = tl.load(kv_lens + r)
    if not KEPT:
        if block == 0:
            reduce_sums(sums, log_sums, line, kv_len, SPLITS, QUERIES, PAD, SPLIT, SPLITS_MAX)
    first = (block * BLOCK).to(tl.int32)
    end = tl.minimum(first + BLOCK, kv_len - tl.load(starts + r))
    i = tl.arange(0, PAD_BLOCK)
    inside = first + i < end
    tl.store(protected + line * C + first + i, tl.zeros([PAD_BLOCK], tl.int32), mask=inside)
    position = tl.load(positions + line * C + first + i, mask=inside, other=0)
    after = tl.load(positions + line * C + first + i + 1, mask=first + i + 1 < end, other=2147483647)
    j = i
    if tl.max((inside & (after < position)).to(tl.int32), axis=0) > 0:
        j = tl.sort(tl.where(inside, position * PAD_BLOCK + i, 2147483647)) % PAD_BLOCK
    j = first + j
    tl.store(order + pid * PAD_BLOCK + i, tl.where(inside, j, -1))
    row = rows + r * row_stride + tl.load(starts + r)
    tl.store(slots + pid * PAD_BLOCK + i, tl.load(row + j, mask=inside, other=0).to(tl.int32))
    tl.store(ordered_inverse + pid * PAD_BLOCK + i, tl.load(inverse + line * C + j, mask=inside, other=0.0))


@triton.jit
def _keys_at(
    keys, slots, inverse, first, size, slot_stride, D: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS keys of the block from the first-th by position on, and their inverse lengths; 0 behind the last."""
    n = first + tl.arange(0, ROWS)
    k = load_keys(keys, tl.load(slots + n).to(tl.int64), n < size, slot_stride, D, BLOCK_D, UPCAST)
    return k, tl.load(inverse + n)


@triton.jit
def _compare(
    k_n, n, k_m, m_first, scale, limit, inverse, total, value, index, ROWS: tl.constexpr, DIAGONAL: tl.constexpr
):
    """Adds what the ROWS keys behind m_first say about keys n, both numbered by position in the block.

    scale: inverse lengths of n.  limit: least similarity over scale.  inverse: pointer to the block's inverse lengths.
    total: sum of cosine / scale.  value, index: cosine and number of the latest similar key, 0 and -1 if none yet.
    """
    m = m_first + tl.arange(0, ROWS)
    cosine = tl.dot(k_n, tl.trans(k_m), input_precision="ieee") * tl.load(inverse + m)[None, :]
    if DIAGONAL:
        cosine = tl.where(n[:, None] == m[None, :], 0.0, cosine)
    total += tl.sum(cosine, axis=1)
    # Column 8 a + 2 b + c of the tile.  In a tensor core's result b is a thread's and (a, c) a register's number, so that
    # 16 a + 2 c is a constant there; 4 b follows when the threads compare their maxima.
    cosine = tl.reshape(cosine, [ROWS, ROWS // 8, 4, 2])
    a = tl.arange(0, ROWS // 8)[None, :, None, None]
    c = tl.arange(0, 2)[None, None, None, :]
    entry = cosine * scale[:, None, None, None] + (16 * a + 2 * c + 16).to(tl.float32)
    # At most 0 where not similar: cheaper than a comparison and a selection.
    entry = tl.minimum(entry, cosine * STRETCH - (limit * STRETCH)[:, None, None, None])
    latest = tl.max(tl.max(entry, axis=3), axis=1) + (4 * tl.arange(0, 4)).to(tl.float32)[None, :]
    latest = tl.max(latest, axis=1) - 16.0  # the 16 keep what is similar above 4 b
    number = tl.floor(latest * 0.5)
    value = tl.where(latest > 0.0, latest - 2.0 * number, value)
    index = tl.where(latest > 0.0, m_first + number.to(tl.int32), index)
    tl.debug_barrier()  # or the compiler lets two products overlap and runs out of registers
    return total, value, index


@triton.jit
def _finish(total, value, index, n, scale, order, totals, protected, BLOCK: tl.constexpr):
    """See `similarity.finish`.  order: pointer to the block's candidate numbers."""
    j = tl.load(order + n)
    tl.store(totals + j, total * scale, mask=j >= 0)
    found = (j >= 0) & (index >= 0)
    owner = tl.load(order + index, mask=found, other=0)
    units = (value * (FIXED_POINT / BLOCK) + 0.5).to(tl.int32)
    tl.atomic_add(protected + owner, units, mask=found & (owner >= 0), sem="relaxed")


@triton.jit(do_not_specialize=["query_rows", "kv_lens", "starts", "L", "C", "BLOCKS"])
def _block_scores(
    k_first, k_offsets, query_cache, query_rows, order, slots, inverse, kv_lens, starts, log_sums, attention, totals,
    protected, slot_stride, head_stride, q_layer_stride, q_row_stride, sums_stride, scale, threshold, L, C, BLOCKS,
    H: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    TILES: tl.constexpr, PAD_G: tl.constexpr, PAD_W: tl.constexpr, ALIGN: tl.constexpr, UPCAST: tl.constexpr,
    KEPT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, TWO: tl.constexpr,
):  # fmt: skip
    """I, row sums and protected entries of one block of candidates of one head, held as one or two tiles of ROWS keys.

    Writes nothing at padding.
    """
    pid = tl.program_id(0)
    head = pid % H
    block = pid // H % BLOCKS
    layer = pid // H // BLOCKS % L
    r = pid // H // BLOCKS // L
    kv_len = tl.load(kv_lens + r)
    start = tl.load(starts + r)
    if block * BLOCK >= kv_len - start:
        return
    size = tl.minimum(BLOCK, kv_len - start - block * BLOCK)
    line = ((r * L + layer) * H + head).to(tl.int64)
    keys = k_first + tl.multiple_of(tl.load(k_offsets + layer), ALIGN) + head * head_stride
    totals += line * C
    protected += line * C
    attention += line * C
    PAD: tl.constexpr = 2 * ROWS if TWO else ROWS
    order += (line * BLOCKS + block) * PAD
    slots += (line * BLOCKS + block) * PAD
    inverse += (line * BLOCKS + block) * PAD

    n0 = tl.arange(0, ROWS)
    j0 = tl.load(order + n0)
    k0, scale0 = _keys_at(keys, slots, inverse, 0, size, slot_stride, D, BLOCK_D, UPCAST, ROWS)
    if TWO:
        n1 = ROWS + n0
        j1 = tl.load(order + n1)
        k1, scale1 = _keys_at(keys, slots, inverse, ROWS, size, slot_stride, D, BLOCK_D, UPCAST, ROWS)

    seen0 = tl.zeros([ROWS], tl.float32)
    seen1 = seen0
    for tile in range(TILES):
        q, token, number, valid = load_queries(
            query_cache, query_rows, r, layer, head, tile * PAD_W, q_layer_stride, q_row_stride,
            WINDOW, GROUP, D, BLOCK_D, PAD_G, PAD_W, UPCAST,
        )  # fmt: skip
        log_sum = load_log_sums(
            log_sums, query_rows, r, layer, line, token, number, valid, sums_stride, H, WINDOW, GROUP, KEPT
        )
        seen0 += looked_at(k0, start + j0, q, token, log_sum, kv_len, scale, WINDOW, PAD_G, PAD_W, ROWS)
        if TWO:
            seen1 += looked_at(k1, start + j1, q, token, log_sum, kv_len, scale, WINDOW, PAD_G, PAD_W, ROWS)
    tl.store(attention + j0, seen0 / WINDOW, mask=j0 >= 0)
    if TWO:
        tl.store(attention + j1, seen1 / WINDOW, mask=j1 >= 0)

    zero = tl.zeros([ROWS], tl.float32)
    none = tl.full([ROWS], -1, tl.int32)
    limit = threshold / scale0
    total, value, index = _compare(k0, n0, k0, 0, scale0, limit, inverse, zero, zero, none, ROWS, True)
    if TWO:
        total, value, index = _compare(k0, n0, k1, ROWS, scale0, limit, inverse, total, value, index, ROWS, False)
    _finish(total, value, index, n0, scale0, order, totals, protected, BLOCK)
    if TWO:
        limit = threshold / scale1
        total, value, index = _compare(k1, n1, k0, 0, scale1, limit, inverse, zero, zero, none, ROWS, False)
        total, value, index = _compare(k1, n1, k1, ROWS, scale1, limit, inverse, total, value, index, ROWS, True)
        _finish(total, value, index, n1, scale1, order, totals, protected, BLOCK)


def fits(k_buffer: torch.Tensor, batch: CompressionBatch, block: int) -> bool:
    """Whether a block's keys fit on chip, and positions into the sort."""
    longest = max(n + evicted for n, evicted in zip(batch.kv_lens, batch.evicted))
    return block <= 2 * tile_rows(k_buffer.shape[2], k_buffer.dtype) and longest < MOST_POSITIONS


def block_scores(
    k_buffers: list[torch.Tensor],
    query_cache: torch.Tensor,
    batch: CompressionBatch,
    positions: torch.Tensor,
    scale: float,
    block: int,
    threshold: float,
    log_sums: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(I, row sums fp32, protected entries in fixed point int32), all [R, L, H, C], undefined at padding."""
    reduction: dict = {}
    if log_sums is None:
        inverse = torch.empty(positions.shape, dtype=torch.float32, device=positions.device)
    else:
        inverse = inverse_lengths_of(k_buffers, batch)
        reduction.update(sums=None, SPLITS=0, SPLIT=0, SPLITS_MAX=0, QUERIES=0, PAD=0)
    arguments = first_pass(k_buffers, query_cache, batch, scale, inverse, reduction, log_sums)
    size, num_layers, num_heads, candidates = positions.shape
    blocks, pad = triton.cdiv(candidates, block), padded(block, 16)
    programs = size * num_layers * num_heads * blocks
    order = torch.empty((programs, pad), dtype=torch.int32, device=positions.device)
    slots = torch.empty((programs, pad), dtype=torch.int32, device=positions.device)
    ordered_inverse = torch.empty((programs, pad), dtype=torch.float32, device=positions.device)
    attention = torch.empty_like(inverse)
    totals = torch.empty_like(inverse)
    protected = torch.empty_like(positions)
    _sort_blocks[(programs,)](
        positions, inverse, batch.rows, batch.lengths.kv_lens, batch.lengths.starts, order, slots, ordered_inverse, protected,
        log_sums=arguments["log_sums"], row_stride=batch.rows.stride(0), L=num_layers, C=candidates, BLOCKS=blocks,
        H=num_heads, BLOCK=block, PAD_BLOCK=pad, KEPT=log_sums is not None, **reduction, num_warps=1,
    )  # fmt: skip
    exact = k_buffers[0].dtype == torch.float32  # such products are made in registers
    two = pad > tile_rows(arguments["D"], k_buffers[0].dtype)
    rows = pad // 2 if two else pad
    del arguments["rows"], arguments["row_stride"]  # it reads slots in order
    _block_scores[(programs,)](
        **arguments, order=order, slots=slots, inverse=ordered_inverse, attention=attention, totals=totals, protected=protected,
        threshold=threshold, BLOCKS=blocks, BLOCK=block, ROWS=rows, TWO=two,
        maxnreg=None if exact else REGISTERS, **OPTIONS,
    )  # fmt: skip
    return attention, totals, protected
