"""Second attention pass and lightning redundancy from one reading of the keys, for blocks that fit on chip.

A block's keys are taken in position order.  Then the latest similar key of a column is the last one, and one maximum over
2 * index + cosine finds it together with its cosine, so that each product is looked at once and leaves no trace.
"""

# mypy: disable-error-code="assignment"
# (tuples of tiles grow in unrolled loops)
from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import MOST_POSITIONS, CompressionBatch
from zipage_kernels.triton.attention import first_pass, load_keys, looked_at, poison_of, reduce_sums
from zipage_kernels.triton.layers import padded, tile_rows
from zipage_kernels.triton.queries import load_window
from zipage_kernels.triton.similarity import FIXED_POINT, STRETCH, inverse_lengths

ROWS = 128  # keys of a tile
OPTIONS = dict(num_warps=8, num_stages=1)
REGISTERS = 128  # a thread: two programs on a multiprocessor, so that one loads while the other computes


@triton.jit(do_not_specialize=["rows", "kv_lens", "starts", "row_stride", "L", "C", "BLOCKS", "SPLITS"])
def _sort_blocks(
    positions, rows, kv_lens, starts, order, slots, protected, sums, log_sums,
    row_stride, L, C, BLOCKS, SPLITS,
    H: tl.constexpr, BLOCK: tl.constexpr, PAD_BLOCK: tl.constexpr, KEPT: tl.constexpr,
    QUERIES: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr, SPLITS_MAX: tl.constexpr,
):  # fmt: skip
    """One block's candidates by position and their slots; -1 and 0 behind the last.

    Also what else must be there before `_block_scores` begins: `protected` 0, and the head's log sums if nobody has them yet.
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


@triton.jit
def _compare(
    k_n, k_m, inverse, scale, limit, total, latest, DIAGONAL: tl.constexpr, FIRST: tl.constexpr, ROWS: tl.constexpr
):
    """Adds what the ROWS keys from the FIRST-th on say about as many keys n.

    inverse: of m.  scale: inverse lengths of n.  limit: STRETCH * least similarity / scale.  Column 8 a + 2 b + c of the
    tile: in a tensor core's result b is a thread's and (a, c) a register's number.  So everything is kept for each b alone,
    and 16 a + 2 c is a constant.
    total: sum of cosine / scale, [ROWS, 4].  latest: the latest similar key's cosine + 2 * number - 4 b + 16, or less than 16.
    """
    cosine = tl.dot(k_n, tl.trans(k_m), input_precision="ieee") * inverse[None, :]
    if DIAGONAL:
        i = tl.arange(0, ROWS)
        cosine = tl.where(i[:, None] == i[None, :], 0.0, cosine)
    cosine = tl.reshape(cosine, [ROWS, ROWS // 8, 4, 2])
    total += tl.sum(tl.sum(cosine, axis=3), axis=1)
    a = tl.arange(0, ROWS // 8)[None, :, None, None]
    c = tl.arange(0, 2)[None, None, None, :]
    entry = cosine * scale[:, None, None, None] + (16 * a + 2 * c + 2 * FIRST + 16).to(tl.float32)
    # At most 0 where not similar: cheaper than a comparison and a selection.
    entry = tl.minimum(entry, cosine * STRETCH - limit[:, None, None, None])
    return total, tl.maximum(latest, tl.max(tl.max(entry, axis=3), axis=1))


@triton.jit
def _finish(total, latest, inverse, n, order, totals, protected, BLOCK: tl.constexpr):
    """See `similarity.finish`.  order: pointer to the block's candidate numbers."""
    j = tl.load(order + n)
    tl.store(totals + j, tl.sum(total, axis=1) * tl.load(inverse + n), mask=j >= 0)
    # The 16 keep what is similar above 4 b.
    latest = tl.max(latest + (4 * tl.arange(0, 4)).to(tl.float32)[None, :], axis=1) - 16.0
    number = tl.floor(latest * 0.5)
    found = (j >= 0) & (latest > 0.0)
    owner = tl.load(order + number.to(tl.int32), mask=found, other=-1)
    units = ((latest - 2.0 * number) * (FIXED_POINT / BLOCK) + 0.5).to(tl.int32)
    tl.atomic_add(protected + owner, units, mask=found & (owner >= 0), sem="relaxed")


@triton.jit
def _attend(
    ks, order, attention, query_cache, query_rows, log_sums, r, layer, head, line, start, last, kv_len, scale,
    q_layer_stride, q_row_stride, sums_stride, H: tl.constexpr,
    WINDOW: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr, Q_TILES: tl.constexpr,
    PAD_G: tl.constexpr, PAD_W: tl.constexpr, UPCAST: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr,
    TILES: tl.constexpr,
):  # fmt: skip
    """Writes I of the keys, a tuple of TILES tiles.  last: the largest row index among them."""
    zero = tl.zeros([ROWS], tl.float32)
    seen = (zero,)
    for _ in tl.static_range(TILES - 1):
        seen = seen + (zero,)
    poison = 0.0
    for tile in tl.static_range(Q_TILES):
        q, token, log_sum = load_window(
            query_cache, log_sums, query_rows, r, layer, head, line, tile * PAD_W, q_layer_stride, q_row_stride, sums_stride,
            H, WINDOW, GROUP, D, BLOCK_D, PAD_G, PAD_W, UPCAST, KEPT,
        )  # fmt: skip
        poison += poison_of(log_sum)
        new = ()
        for i in tl.static_range(TILES):
            t = start + tl.load(order + i * ROWS + tl.arange(0, ROWS))
            new = new + (seen[i] + looked_at(ks[i], t, last, q, token, log_sum, kv_len, scale, WINDOW, PAD_G, PAD_W, ROWS),)
        seen = new
    for i in tl.static_range(TILES):
        j = tl.load(order + i * ROWS + tl.arange(0, ROWS))
        tl.store(attention + j, (seen[i] + poison) / WINDOW, mask=j >= 0)


@triton.jit(do_not_specialize=["query_rows", "kv_lens", "starts", "L", "C", "BLOCKS"])
def _block_scores(
    k_first, k_offsets, query_cache, query_rows, order, slots, inverse, kv_lens, starts, log_sums, attention, totals,
    protected, slot_stride, head_stride, q_layer_stride, q_row_stride, sums_stride, scale, threshold, L, C, BLOCKS,
    H: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    TILES: tl.constexpr, PAD_G: tl.constexpr, PAD_W: tl.constexpr, ALIGN: tl.constexpr, UPCAST: tl.constexpr,
    KEPT: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, COUNT: tl.constexpr,
):  # fmt: skip
    """I, row sums and protected entries of one block of candidates of one head, held as COUNT tiles of ROWS keys.

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
    order += (line * BLOCKS + block) * (COUNT * ROWS)
    slots += (line * BLOCKS + block) * (COUNT * ROWS)
    inverse += (line * BLOCKS + block) * (COUNT * ROWS)
    last = start + block * BLOCK + size - 1

    ks = ()
    for i in tl.static_range(COUNT):
        n = i * ROWS + tl.arange(0, ROWS)
        k = load_keys(keys, tl.load(slots + n).to(tl.int64), n < size, slot_stride, D, BLOCK_D, UPCAST)
        ks = ks + (k,)
    for i in tl.static_range(COUNT):
        tl.store(inverse + i * ROWS + tl.arange(0, ROWS), inverse_lengths(ks[i]))
    tl.debug_barrier()  # inverse lengths are read by other threads than wrote them
    _attend(
        ks, order, attention, query_cache, query_rows, log_sums, r, layer, head, line, start, last, kv_len, scale,
        q_layer_stride, q_row_stride, sums_stride, H, WINDOW, GROUP, D, BLOCK_D, TILES, PAD_G, PAD_W, UPCAST, KEPT, ROWS,
        COUNT,
    )  # fmt: skip
    sums = ()
    latests = ()
    scales = ()
    limits = ()
    for i in tl.static_range(COUNT):
        scale_n = tl.load(inverse + i * ROWS + tl.arange(0, ROWS))
        scales = scales + (scale_n,)
        limits = limits + (threshold / scale_n * STRETCH,)
        sums = sums + (tl.zeros([ROWS, 4], tl.float32),)
        latests = latests + (tl.zeros([ROWS, 4], tl.float32),)
    for m in tl.static_range(COUNT):
        new_sums = ()
        new_latests = ()
        scale_m = tl.load(inverse + m * ROWS + tl.arange(0, ROWS))
        for n in tl.static_range(COUNT):
            total, latest = _compare(
                ks[n], ks[m], scale_m, scales[n], limits[n], sums[n], latests[n], n == m, m * ROWS, ROWS
            )
            new_sums = new_sums + (total,)
            new_latests = new_latests + (latest,)
        sums = new_sums
        latests = new_latests
    for i in tl.static_range(COUNT):
        _finish(sums[i], latests[i], inverse, i * ROWS + tl.arange(0, ROWS), order, totals, protected, BLOCK)


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
    reduction: dict = dict(sums=None, SPLITS=0, SPLIT=0, SPLITS_MAX=0, QUERIES=0, PAD=0)
    arguments = first_pass(k_buffers, query_cache, batch, scale, reduction, log_sums)
    size, num_layers, num_heads, candidates = positions.shape
    blocks, pad = triton.cdiv(candidates, block), padded(block, 16)
    programs = size * num_layers * num_heads * blocks
    order = torch.empty((programs, pad), dtype=torch.int32, device=positions.device)
    slots = torch.empty((programs, pad), dtype=torch.int32, device=positions.device)
    lengths = torch.empty((programs, pad), dtype=torch.float32, device=positions.device)
    attention = torch.empty(positions.shape, dtype=torch.float32, device=positions.device)
    totals = torch.empty_like(attention)
    protected = torch.empty_like(positions)
    _sort_blocks[(programs,)](
        positions, batch.rows, batch.lengths.kv_lens, batch.lengths.starts, order, slots, protected,
        log_sums=arguments["log_sums"], row_stride=batch.rows.stride(0), L=num_layers, C=candidates, BLOCKS=blocks,
        H=num_heads, BLOCK=block, PAD_BLOCK=pad, KEPT=arguments["KEPT"], **reduction, num_warps=1,
    )  # fmt: skip
    exact = k_buffers[0].dtype == torch.float32  # such products are made in registers
    rows = min(pad, ROWS, tile_rows(arguments["D"], k_buffers[0].dtype))
    del arguments["rows"], arguments["row_stride"]  # it reads slots in order
    _block_scores[(programs,)](
        **arguments, order=order, slots=slots, inverse=lengths, attention=attention, totals=totals, protected=protected,
        threshold=threshold, BLOCKS=blocks, BLOCK=block, ROWS=rows, COUNT=pad // rows,
        maxnreg=None if exact else REGISTERS, **OPTIONS,
    )  # fmt: skip
    return attention, totals, protected
