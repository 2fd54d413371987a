"""Window attention in two passes over the keys: per query the logarithm of its softmax sum, then the weights, reduced.  The
first pass is left out where the attention that served the queries has kept those sums.

Logits never reach memory.  Keys are read in splits whose length depends on the request's own row alone, so that its scores
do not depend on what it is batched with.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import CompressionBatch
from zipage_kernels.triton.layers import LOG2_E, layer_table, padded, tile_rows, upcast
from zipage_kernels.triton.queries import load_queries, load_window, window_tiles

# Rows that one program of the first pass takes (whole tiles), more where that makes over MOST_SPLITS splits of a row.
SPLIT_ROWS = 512
MOST_SPLITS = 16
FIRST_PASS_KEYS = 64  # keys of one tile
FIRST_PASS = dict(num_warps=4, num_stages=2)


@triton.jit
def split_rows(kv_len, SPLIT: tl.constexpr, SPLITS_MAX: tl.constexpr):
    """Rows of one split of the first pass.  A batch may have more splits than a request has rows for."""
    return tl.cdiv(tl.cdiv(kv_len, SPLITS_MAX), SPLIT) * SPLIT


@triton.jit
def load_keys(keys, slots, inside, slot_stride, D: tl.constexpr, BLOCK_D: tl.constexpr, UPCAST: tl.constexpr):
    """One head's keys of some slots, [slots, BLOCK_D]; 0 where not `inside`, if that is given (such a slot may hold
    anything)."""
    d = tl.arange(0, BLOCK_D)
    mask = (d < D)[None, :]
    if inside is not None:
        mask = inside[:, None] & mask
    tile = tl.load(keys + slots[:, None] * slot_stride + d[None, :], mask=mask, other=0.0)
    if UPCAST:
        tile = tile.to(tl.float32)
    return tile


@triton.jit(
    do_not_specialize=["rows", "query_rows", "kv_lens", "starts", "row_stride", "L", "C", "SPLITS"]
)
def _softmax_sums(
    k_first, k_offsets, rows, query_cache, query_rows, kv_lens, starts, sums,
    row_stride, slot_stride, head_stride, q_layer_stride, q_row_stride, scale, L, C, SPLITS,
    H: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    TILES: tl.constexpr, PAD_G: tl.constexpr, PAD_W: tl.constexpr, ALIGN: tl.constexpr, UPCAST: tl.constexpr,
    BLOCK_T: tl.constexpr, SPLIT: tl.constexpr, SPLITS_MAX: tl.constexpr,
):  # fmt: skip
    """First pass: maximum and sum (of powers of 2) of the logits of one split, for one tile of window tokens.

    sums: fp32 [R, L, H, SPLITS, 2, GROUP * WINDOW].
    """
    QUERIES: tl.constexpr = PAD_G * PAD_W
    pid = tl.program_id(0)
    head = pid % H  # fastest, because the heads of a token are neighbours in memory
    tile = pid // H % TILES
    split = pid // H // TILES % SPLITS
    layer = pid // H // TILES // SPLITS % L
    r = pid // H // TILES // SPLITS // L
    kv_len = tl.load(kv_lens + r)
    length = split_rows(kv_len, SPLIT, SPLITS_MAX)
    if split * length >= kv_len:
        return
    q, token, number, valid = load_queries(
        query_cache, query_rows, r, layer, head, tile * PAD_W, q_layer_stride, q_row_stride,
        WINDOW, GROUP, D, BLOCK_D, PAD_G, PAD_W, UPCAST,
    )  # fmt: skip
    last_visible = kv_len - WINDOW + token
    keys = k_first + tl.multiple_of(tl.load(k_offsets + layer), ALIGN) + head * head_stride
    row = rows + r.to(tl.int64) * row_stride
    line = ((r * L + layer) * H + head).to(tl.int64)

    end = tl.minimum((split + 1) * length, kv_len)
    top = tl.full([QUERIES], -float("inf"), tl.float32)
    total = tl.zeros([QUERIES], tl.float32)
    for first in range(split * length, end, BLOCK_T):
        t = first + tl.arange(0, BLOCK_T)
        # Past the end the last row comes again: it is not visible there, and no load needs a mask.
        slots = tl.load(row + tl.minimum(t, kv_len - 1))
        k = load_keys(keys, slots, None, slot_stride, D, BLOCK_D, UPCAST)
        dots = tl.dot(q, tl.trans(k), input_precision="ieee")
        if first + BLOCK_T > kv_len - WINDOW + 1:  # else all of it is visible
            dots = tl.where(t[None, :] <= last_visible[:, None], dots, -float("inf"))
        new_top = tl.maximum(top, tl.max(dots, axis=1))
        shift = tl.where(new_top == -float("inf"), 0.0, new_top * scale)  # nothing visible yet
        total = total * tl.exp2(top * scale - shift) + tl.sum(tl.exp2(dots * scale - shift[:, None]), axis=1)
        top = new_top
    out = sums + (line * SPLITS + split) * 2 * GROUP * WINDOW + number
    tl.store(out, top * scale, mask=valid)
    tl.store(out + GROUP * WINDOW, total, mask=valid)


@triton.jit
def reduce_sums(
    sums, out, line, kv_len, SPLITS,
    QUERIES: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr, SPLITS_MAX: tl.constexpr,
):  # fmt: skip
    """Writes log2 of each query's softmax sum over all splits of one head.  line: int64, the head's number."""
    x = tl.arange(0, PAD)
    sums += line * SPLITS * 2 * QUERIES + x
    valid = x < QUERIES
    top = tl.load(sums, mask=valid, other=0.0)  # finite: every query sees row 0
    total = tl.load(sums + QUERIES, mask=valid, other=1.0)
    for split in range(1, tl.cdiv(kv_len, split_rows(kv_len, SPLIT, SPLITS_MAX))):
        split_top = tl.load(sums + split * 2 * QUERIES, mask=valid, other=0.0)
        split_total = tl.load(sums + split * 2 * QUERIES + QUERIES, mask=valid, other=1.0)
        new_top = tl.maximum(top, split_top)
        total = total * tl.exp2(top - new_top) + split_total * tl.exp2(split_top - new_top)
        top = new_top
    tl.store(out + line * QUERIES + x, top + tl.log2(total), mask=valid)


@triton.jit(do_not_specialize=["kv_lens", "L", "SPLITS"])
def _log_sums(
    sums, kv_lens, out, L, SPLITS,
    H: tl.constexpr, QUERIES: tl.constexpr, PAD: tl.constexpr, SPLIT: tl.constexpr, SPLITS_MAX: tl.constexpr,
):  # fmt: skip
    """log2 of each query's softmax sum over all splits of one head: fp32 [R, L, H, QUERIES]."""
    line = tl.program_id(0).to(tl.int64)
    reduce_sums(sums, out, line, tl.load(kv_lens + line // H // L), SPLITS, QUERIES, PAD, SPLIT, SPLITS_MAX)


@triton.jit
def looked_at(
    keys, t, last, q, token, log_sum, kv_len, scale,
    WINDOW: tl.constexpr, PAD_G: tl.constexpr, PAD_W: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sum over the tile's window tokens of the largest weight in the group, for ROWS keys at row indices t: fp32 [ROWS].

    last: at least the largest of t.  log_sum: +inf for queries that do not exist, so that their weights are 0.  The caller adds
    `poison_of` it.
    """
    weights = tl.exp2(tl.dot(keys, tl.trans(q), input_precision="ieee") * scale - log_sum[None, :])
    if last > kv_len - WINDOW:
        weights = tl.where(t[:, None] <= (kv_len - WINDOW + token)[None, :], weights, 0.0)
    best = tl.max(tl.reshape(weights, [ROWS, PAD_G, PAD_W]), axis=1)
    return tl.sum(best, axis=1)


@triton.jit
def poison_of(log_sum):
    """NaN where a query has it, else 0.  A maximum drops NaN; a query has NaN in all of its weights or in none, and then in its
    sum."""
    return tl.sum(tl.where(log_sum != log_sum, log_sum, 0.0), axis=0)


@triton.jit(
    do_not_specialize=["rows", "query_rows", "kv_lens", "starts", "row_stride", "L", "C", "BLOCKS"]
)
def _attention(
    k_first, k_offsets, rows, query_cache, query_rows, kv_lens, starts, log_sums, out,
    row_stride, slot_stride, head_stride, q_layer_stride, q_row_stride, sums_stride, scale, L, C, BLOCKS,
    H: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    TILES: tl.constexpr, PAD_G: tl.constexpr, PAD_W: tl.constexpr, ALIGN: tl.constexpr, UPCAST: tl.constexpr,
    KEPT: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Second pass: I of BLOCK_C candidates of one head."""
    pid = tl.program_id(0)
    head = pid % H
    block = pid // H % BLOCKS
    layer = pid // H // BLOCKS % L
    r = pid // H // BLOCKS // L
    kv_len = tl.load(kv_lens + r)
    j = block * BLOCK_C + tl.arange(0, BLOCK_C)
    t = tl.load(starts + r) + j
    inside = t < kv_len
    keys = k_first + tl.multiple_of(tl.load(k_offsets + layer), ALIGN) + head * head_stride
    slots = tl.load(rows + r.to(tl.int64) * row_stride + t, mask=inside, other=0)
    k = load_keys(keys, slots, inside, slot_stride, D, BLOCK_D, UPCAST)
    line = ((r * L + layer) * H + head).to(tl.int64)
    last = tl.load(starts + r) + block * BLOCK_C + BLOCK_C - 1
    total = tl.zeros([BLOCK_C], tl.float32)
    for tile in range(TILES):
        q, token, log_sum = load_window(
            query_cache, log_sums, query_rows, r, layer, head, line, tile * PAD_W, q_layer_stride, q_row_stride, sums_stride,
            H, WINDOW, GROUP, D, BLOCK_D, PAD_G, PAD_W, UPCAST, KEPT,
        )  # fmt: skip
        total += looked_at(k, t, last, q, token, log_sum, kv_len, scale, WINDOW, PAD_G, PAD_W, BLOCK_C) + poison_of(log_sum)
    tl.store(out + line * C + j, tl.where(inside, total / WINDOW, -float("inf")), mask=j < C)


def first_pass(
    k_buffers: list[torch.Tensor],
    query_cache: torch.Tensor,
    batch: CompressionBatch,
    scale: float,
    reduction: dict | None = None,
    kept: torch.Tensor | None = None,
) -> dict:
    """Runs the first pass.

    Returns the arguments, by name, of a kernel that does the second.  reduction: filled with those of `reduce_sums`, which
    the caller then runs in a kernel of his own before the second pass, to save a launch.  kept: log sums of the query cache; with
    them nothing is run or filled.
    """
    table = layer_table(k_buffers)
    dtype = table.first.dtype
    num_heads, head_dim = table.first.shape[1:]
    group = query_cache.shape[2] // num_heads
    arguments = dict(
        k_first=table.first, k_offsets=table.offsets, rows=batch.rows, query_cache=query_cache,
        query_rows=batch.query_rows, kv_lens=batch.lengths.kv_lens, starts=batch.lengths.starts,
        row_stride=batch.rows.stride(0), slot_stride=table.slot_stride, head_stride=table.head_stride,
        q_layer_stride=query_cache.stride(0), q_row_stride=query_cache.stride(1), scale=scale * LOG2_E,
        L=len(k_buffers), C=batch.C, H=num_heads, WINDOW=batch.window, GROUP=group, D=head_dim,
        BLOCK_D=padded(head_dim, 16), ALIGN=table.align, UPCAST=upcast(dtype, query_cache.dtype),
    )  # fmt: skip
    # Fewer queries at a time than in the first pass: their sums take registers too.
    tiles = window_tiles(batch.window, group, 16 if dtype == torch.float32 else 64)
    second = dict(TILES=tiles.count, PAD_G=tiles.pad_g, PAD_W=tiles.pad_w, KEPT=kept is not None, sums_stride=0)
    if kept is not None:
        assert kept[0].is_contiguous()
        return arguments | second | dict(log_sums=kept, sums_stride=kept.stride(0))
    # Enough for every row up to the longest, as a captured graph needs it: a shorter row can have more splits than a longer one.
    splits = min(MOST_SPLITS, triton.cdiv(max(batch.kv_lens), SPLIT_ROWS))
    lines = batch.size * len(k_buffers) * num_heads
    queries = group * batch.window
    sums = torch.empty((lines, splits, 2, queries), dtype=torch.float32, device=batch.rows.device)
    log_sums = torch.empty((lines, queries), dtype=torch.float32, device=batch.rows.device)
    tiles = window_tiles(batch.window, group, 16 if dtype == torch.float32 else 128)
    split = dict(SPLITS=splits, SPLIT=SPLIT_ROWS, SPLITS_MAX=MOST_SPLITS)
    _softmax_sums[(lines * tiles.count * splits,)](
        **arguments, **split, sums=sums, TILES=tiles.count, PAD_G=tiles.pad_g,
        PAD_W=tiles.pad_w, BLOCK_T=min(FIRST_PASS_KEYS, tile_rows(head_dim, dtype)), **FIRST_PASS,
    )  # fmt: skip
    last = dict(sums=sums, **split, QUERIES=queries, PAD=padded(queries))
    if reduction is None:
        _log_sums[(lines,)](kv_lens=arguments["kv_lens"], out=log_sums, L=len(k_buffers), H=num_heads, **last, num_warps=1)
    else:
        reduction.update(last)
    return arguments | second | dict(log_sums=log_sums)


def attention_score(
    k_buffers: list[torch.Tensor], query_cache: torch.Tensor, batch: CompressionBatch, scale: float,
    log_sums: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """See `zipage_kernels.reference.attention.attention_score`."""
    arguments = first_pass(k_buffers, query_cache, batch, scale, kept=log_sums)
    num_layers, num_heads, size = len(k_buffers), arguments["H"], batch.C
    out = torch.empty((batch.size, num_layers, num_heads, size), dtype=torch.float32, device=batch.rows.device)
    block = tile_rows(arguments["D"], k_buffers[0].dtype)
    blocks = triton.cdiv(size, block)
    _attention[(batch.size * num_layers * blocks * num_heads,)](
        **arguments, out=out, BLOCKS=blocks, BLOCK_C=block, num_warps=8, num_stages=1
    )
    return out
