"""Window attention added to what earlier windows have seen: the second pass in splits, like the first, so that loads and products
overlap and queries are read once for many keys."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import CompressionBatch
from zipage_kernels.triton.attention import first_pass, load_keys, looked_at, poison_of
from zipage_kernels.triton.layers import bf16_bits, bf16_value, tile_rows
from zipage_kernels.triton.queries import load_window

SPLIT_ROWS = 512  # candidates that one program takes
OPTIONS = dict(num_warps=4, num_stages=2)
KEYS = 64  # of one tile


@triton.jit(
    do_not_specialize=["rows", "query_rows", "kv_lens", "starts", "known", "row_stride", "layer_stride", "L", "C", "SPLITS"]
)
def _add_attention(
    k_first, k_offsets, rows, query_cache, query_rows, kv_lens, starts, log_sums, seen, known,
    row_stride, slot_stride, head_stride, q_layer_stride, q_row_stride, sums_stride, layer_stride, scale, L, C, SPLITS,
    H: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    TILES: tl.constexpr, PAD_G: tl.constexpr, PAD_W: tl.constexpr, ALIGN: tl.constexpr, UPCAST: tl.constexpr,
    KEPT: tl.constexpr, BLOCK: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    """One split of one head's candidates.  seen: the bits of a bf16 table.  known: batch.seen."""
    pid = tl.program_id(0)
    head = pid % H
    split = pid // H % SPLITS
    layer = pid // H // SPLITS % L
    r = pid // H // SPLITS // L
    kv_len = tl.load(kv_lens + r)
    start = tl.load(starts + r)
    first = start + split * SPLIT
    if first >= kv_len:
        return
    end = tl.minimum(first + SPLIT, kv_len)
    line = ((r * L + layer) * H + head).to(tl.int64)
    keys = k_first + tl.multiple_of(tl.load(k_offsets + layer), ALIGN) + head * head_stride
    row = rows + r.to(tl.int64) * row_stride
    table = seen + layer.to(tl.int64) * layer_stride + head
    before = start + tl.load(known + r)
    q, token, log_sum = load_window(
        query_cache, log_sums, query_rows, r, layer, head, line, 0, q_layer_stride, q_row_stride, sums_stride,
        H, WINDOW, GROUP, D, BLOCK_D, PAD_G, PAD_W, UPCAST, KEPT,
    )  # fmt: skip
    poison = poison_of(log_sum)
    for t_first in range(first, end, BLOCK):
        t = t_first + tl.arange(0, BLOCK)
        # Past the end the last row comes again: its result is not stored, and no load needs a mask.
        slots = tl.load(row + tl.minimum(t, kv_len - 1))
        inside = t < end
        # Early, so that it comes while the product is made.
        bits = tl.load(table + slots * H, mask=inside & (t < before), other=0)
        k = load_keys(keys, slots, None, slot_stride, D, BLOCK_D, UPCAST)
        last = t_first + BLOCK - 1
        total = poison + looked_at(k, t, last, q, token, log_sum, kv_len, scale, WINDOW, PAD_G, PAD_W, BLOCK)
        for tile in range(1, TILES):
            q2, token2, log_sum2 = load_window(
                query_cache, log_sums, query_rows, r, layer, head, line, tile * PAD_W, q_layer_stride, q_row_stride, sums_stride,
                H, WINDOW, GROUP, D, BLOCK_D, PAD_G, PAD_W, UPCAST, KEPT,
            )  # fmt: skip
            total += poison_of(log_sum2)
            total += looked_at(k, t, last, q2, token2, log_sum2, kv_len, scale, WINDOW, PAD_G, PAD_W, BLOCK)
        value = total / WINDOW + bf16_value(bits)
        tl.store(table + slots * H, bf16_bits(value), mask=inside)


def add_attention(
    k_buffers: list[torch.Tensor], query_cache: torch.Tensor, seen: torch.Tensor, batch: CompressionBatch, scale: float,
    log_sums: torch.Tensor | None = None,
) -> None:  # fmt: skip
    """See `zipage_kernels.reference.seen.add_attention`."""
    arguments = first_pass(k_buffers, query_cache, batch, scale, kept=log_sums)
    splits = triton.cdiv(batch.C, SPLIT_ROWS)
    _add_attention[(batch.size * len(k_buffers) * splits * arguments["H"],)](
        **arguments, seen=seen.view(torch.int16), known=batch.lengths.seen, layer_stride=seen.stride(0), SPLITS=splits,
        BLOCK=min(KEYS, tile_rows(arguments["D"], k_buffers[0].dtype)), SPLIT=SPLIT_ROWS, **OPTIONS,
    )  # fmt: skip
