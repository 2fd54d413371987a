"""The query cache: writing it from inside the decode graph, and reading a window's queries as tiles."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from zipage_kernels.triton.layers import padded


@triton.jit
def _store_query(q, dst, cache, q_stride, cache_stride, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    """BLOCK elements of one row of q."""
    index = tl.program_id(0)
    row = tl.load(dst + index)
    if row != 0:
        element = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(q + index.to(tl.int64) * q_stride + element, mask=element < SIZE)
        tl.store(cache + row * cache_stride + element, values.to(cache.dtype.element_ty), mask=element < SIZE)


def store_query(q: torch.Tensor, dst: torch.Tensor, cache_layer: torch.Tensor) -> None:
    """See `zipage_kernels.reference.attention.store_query`.  Its grid depends on shapes only, so a CUDA graph can hold it."""
    size = q.shape[1] * q.shape[2]
    flat = q.reshape(q.shape[0], size)
    block = min(padded(size), 2048)
    _store_query[(len(q), triton.cdiv(size, block))](
        flat, dst, cache_layer, flat.stride(0), cache_layer.stride(0), SIZE=size, BLOCK=block
    )


@triton.jit
def _store_log_sums(step, dst, log_sums, step_layer_stride, layer_stride, Q_HEADS: tl.constexpr, BLOCK: tl.constexpr):
    """One layer's of one row of the batch."""
    row = tl.load(dst + tl.program_id(0))
    if row != 0:
        head = tl.arange(0, BLOCK)
        layer = tl.program_id(1).to(tl.int64)
        found = tl.load(step + layer * step_layer_stride + tl.program_id(0) * Q_HEADS + head, mask=head < Q_HEADS)
        tl.store(log_sums + layer * layer_stride + row * Q_HEADS + head, found, mask=head < Q_HEADS)


def store_log_sums(step: torch.Tensor, dst: torch.Tensor, log_sums: torch.Tensor) -> None:
    """See `zipage_kernels.reference.attention.store_log_sums`.  For a CUDA graph, as `store_query` is."""
    layers, size, heads = step.shape
    _store_log_sums[(size, layers)](
        step, dst, log_sums, step.stride(0), log_sums.stride(0), Q_HEADS=heads, BLOCK=padded(heads), num_warps=1
    )


class WindowTiles(NamedTuple):
    """How a window's queries are cut: a tile holds all heads of a group (pad_g) for pad_w window tokens."""

    pad_g: int
    pad_w: int
    count: int  # type: ignore[assignment]  # nobody asks this tuple to count


def window_tiles(window: int, group: int, most: int) -> WindowTiles:
    """At most `most` queries in a tile where the group allows it, but the 16 that a matrix product needs."""
    pad_g = padded(group)
    pad_w = max(min(padded(window), most // pad_g), 16 // pad_g, 1)
    return WindowTiles(pad_g, pad_w, triton.cdiv(window, pad_w))


@triton.jit
def load_queries(
    query_cache, query_rows, r, layer, head, first, layer_stride, row_stride,
    WINDOW: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    PAD_G: tl.constexpr, PAD_W: tl.constexpr, UPCAST: tl.constexpr,
):  # fmt: skip
    """The queries of window tokens first .. first + PAD_W, [PAD_G * PAD_W, BLOCK_D], heads outermost.

    Also returns the window token of each, its number among the group's WINDOW * GROUP queries, and whether it exists (it
    is 0 otherwise).
    """
    x = tl.arange(0, PAD_G * PAD_W)
    g = x // PAD_W
    token = first + x % PAD_W
    valid = (g < GROUP) & (token < WINDOW)
    row = tl.load(query_rows + r * WINDOW + token, mask=valid, other=0).to(tl.int64)
    d = tl.arange(0, BLOCK_D)
    element = layer.to(tl.int64) * layer_stride + row * row_stride + (head * GROUP + g) * D
    q = tl.load(query_cache + element[:, None] + d[None, :], mask=valid[:, None] & (d < D)[None, :], other=0.0)
    if UPCAST:
        q = q.to(tl.float32)
    return q, token, g * WINDOW + token, valid


@triton.jit
def load_window(
    query_cache, log_sums, query_rows, r, layer, head, line, first, layer_stride, row_stride, sums_stride,
    H: tl.constexpr, WINDOW: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, BLOCK_D: tl.constexpr,
    PAD_G: tl.constexpr, PAD_W: tl.constexpr, UPCAST: tl.constexpr, KEPT: tl.constexpr,
):  # fmt: skip
    """`load_queries`: the queries and the window token of each; and log2 of their softmax sums, +inf for those that do not exist,
    so that their weights are 0.

    log_sums: with KEPT those of the query cache, fp32 [L, M*w + 1, H * GROUP], else of the first pass, [R, L, H, GROUP * WINDOW].
    line: int64, the head's number among all of the batch.
    """
    q, token, number, valid = load_queries(
        query_cache, query_rows, r, layer, head, first, layer_stride, row_stride,
        WINDOW, GROUP, D, BLOCK_D, PAD_G, PAD_W, UPCAST,
    )  # fmt: skip
    if KEPT:
        row = tl.load(query_rows + r * WINDOW + token, mask=valid, other=0).to(tl.int64)
        at = layer.to(tl.int64) * sums_stride + row * (H * GROUP) + line % H * GROUP + number // WINDOW
    else:
        at = line * GROUP * WINDOW + number
    return q, token, tl.load(log_sums + at, mask=valid, other=float("inf"))
