"""The paper's score from its raw parts, in one pass over each head's candidates."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import CompressionBatch, Tables
from zipage_kernels.triton import fused
from zipage_kernels.triton.attention import attention_score
from zipage_kernels.triton.layers import CHUNK, bf16_value, chunks
from zipage_kernels.triton.redundancy import compared_keys, similarity_sums
from zipage_kernels.triton.similarity import similarity, softmax_sum, softmax_sum_of

THRESHOLD = 0.5
REGISTERS = 128  # of a thread of `_combine`: four programs on a multiprocessor


@triton.jit
def _importance(
    i, candidates, attention, order, importance, seen, row, stored, known, windows, alpha,
    H: tl.constexpr, ORDERED: tl.constexpr, SEEN: tl.constexpr,
):  # fmt: skip
    """F of the candidates at places i, -inf outside; also which candidates those are.

    known: candidates that have a sum of so many windows in `seen` (the bits of a bf16 table).
    """
    inside = (i >= 0) & (i < candidates)
    j = tl.load(order + i, mask=inside, other=0) if ORDERED else i
    survivor = inside & (j < stored)
    slots = tl.load(row + j, mask=survivor, other=0)
    previous = tl.load(importance + slots * H, mask=survivor, other=0.0).to(tl.float32)
    now = tl.load(attention + j, mask=inside, other=-float("inf"))
    if SEEN:
        before = inside & (j < known)
        bits = tl.load(seen + tl.load(row + j, mask=before, other=0) * H, mask=before, other=0)
        now = (now + bf16_value(bits)) / (windows + 1)
    value = tl.maximum(now, alpha * previous, propagate_nan=tl.PropagateNan.ALL)
    return tl.where(inside, value, -float("inf")), j


@triton.jit
def _pooled(
    value, i, candidates, attention, order, importance, seen, row, stored, known, windows, alpha, pooled,
    H: tl.constexpr, POOL: tl.constexpr, ORDERED: tl.constexpr, SEEN: tl.constexpr,
):  # fmt: skip
    """The largest F of places i and their neighbours if `pooled`, else `value`, that of the places themselves."""
    if POOL > 0:
        if pooled:
            for distance in tl.static_range(-2, 3):
                if distance != 0:
                    near, _ = _importance(
                        i + distance, candidates, attention, order, importance, seen, row, stored, known, windows, alpha,
                        H, ORDERED, SEEN,
                    )  # fmt: skip
                    value = tl.maximum(value, near, propagate_nan=tl.PropagateNan.ALL)
    return value


@triton.jit
def _one_by_one(
    attention, totals, protected, order, importance, seen, row, scores, new_importance, line, candidates, stored, known, windows,
    compared, top, total, pooled, alpha, lam, tau, C,
    H: tl.constexpr, REDUNDANCY: tl.constexpr, POOL: tl.constexpr, ORDERED: tl.constexpr, SEEN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """F and Z in chunks of BLOCK candidates, each written before the next is read.  top, total: of the softmax."""
    for first in range(0, C, BLOCK):
        i = first + tl.arange(0, BLOCK)
        value, j = _importance(
            i, candidates, attention, order, importance, seen, row, stored, known, windows, alpha, H, ORDERED, SEEN
        )
        used = _pooled(
            value, i, candidates, attention, order, importance, seen, row, stored, known, windows, alpha, pooled,
            H, POOL, ORDERED, SEEN,
        )  # fmt: skip
        if REDUNDANCY:
            other = similarity(totals + line, protected + line, j, candidates, compared, tau)
            used = lam * used - (1.0 - lam) * (tl.exp(other - top) / total)
        inside = i < candidates
        # Places past the last candidate are padding in row order too.
        j = tl.where(inside, j, i)
        tl.store(scores + line + j, tl.where(inside, used, -float("inf")), mask=i < C)
        tl.store(new_importance + line + j, value, mask=i < C)


@triton.jit(
    do_not_specialize=["rows", "kv_lens", "starts", "stored", "counts", "known", "windows", "row_stride", "layer_stride", "L",
                       "C", "block"]  # fmt: skip
)
def _combine(
    attention, totals, protected, order, importance, seen, rows, kv_lens, starts, stored, counts, known, windows, scores,
    new_importance, row_stride, layer_stride, alpha, lam, tau, L, C, block,
    H: tl.constexpr, REDUNDANCY: tl.constexpr, POOL: tl.constexpr, ORDERED: tl.constexpr, SEEN: tl.constexpr,
    CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """F and Z of all candidates of one head, both -inf at padding.

    POOL: 0 never, 1 at a request's first compression, 2 always.  ORDERED: neighbours are those of `order` (candidates by
    position, padding first); otherwise those of the row.  CHUNKS: of BLOCK candidates, all read before any is looked at, so
    that their waits overlap (if not ORDERED); 0: any number, one after the other.
    """
    pid = tl.program_id(0)
    head = pid % H
    layer = pid // H % L
    r = pid // H // L
    start = tl.load(starts + r)
    candidates = tl.load(kv_lens + r) - start
    survivors = tl.load(stored + r)
    have_sums = tl.load(known + r)
    before = tl.load(windows + r)
    row = rows + r.to(tl.int64) * row_stride + start
    importance += layer.to(tl.int64) * layer_stride + head
    if SEEN:
        seen += layer.to(tl.int64) * layer_stride + head
    line = pid.to(tl.int64) * C
    attention += line
    if ORDERED:
        order += line + C - candidates
    compared = tl.where(block == 0, candidates, block)
    pooled = False if POOL == 0 else ((POOL == 2) | (tl.load(counts + r) == 0))
    if CHUNKS > 0:
        values = ()
        others = ()
        for chunk in tl.static_range(CHUNKS):
            i = chunk * BLOCK + tl.arange(0, BLOCK)
            value, _ = _importance(
                i, candidates, attention, order, importance, seen, row, survivors, have_sums, before, alpha, H, False, SEEN
            )
            values = values + (value,)  # type: ignore[assignment]  # grows here
            if REDUNDANCY:
                other = similarity(totals + line, protected + line, i, candidates, compared, tau)
                others = others + (other,)  # type: ignore[assignment]
        top = 0.0
        total = 1.0
        if REDUNDANCY:
            top, total = softmax_sum_of(others, CHUNKS)
        if pooled:  # neighbours are read from memory in any case
            _one_by_one(
                attention, totals, protected, order, importance, seen, row, scores, new_importance, line, candidates, survivors,
                have_sums, before, compared, top, total, pooled, alpha, lam, tau, C, H, REDUNDANCY, POOL, ORDERED, SEEN, BLOCK,
            )  # fmt: skip
        else:
            for chunk in tl.static_range(CHUNKS):
                i = chunk * BLOCK + tl.arange(0, BLOCK)
                used = values[chunk]  # type: ignore[var-annotated]
                if REDUNDANCY:
                    used = lam * used - (1.0 - lam) * (tl.exp(others[chunk] - top) / total)
                tl.store(scores + line + i, tl.where(i < candidates, used, -float("inf")), mask=i < C)
                tl.store(new_importance + line + i, values[chunk], mask=i < C)
    else:
        top = 0.0
        total = 1.0
        if REDUNDANCY:
            top, total = softmax_sum(totals + line, protected + line, candidates, compared, tau, BLOCK)
        _one_by_one(
            attention, totals, protected, order, importance, seen, row, scores, new_importance, line, candidates, survivors,
            have_sums, before, compared, top, total, pooled, alpha, lam, tau, C, H, REDUNDANCY, POOL, ORDERED, SEEN, BLOCK,
        )  # fmt: skip


def zipage_score(
    k_buffers: list[torch.Tensor],
    query_cache: torch.Tensor,
    tables: Tables,
    batch: CompressionBatch,
    positions: torch.Tensor,
    scale: float,
    alpha: float,
    lam: float,
    tau: float,
    block: int,
    redundancy: str,
    pooling: str,
    log_sums: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `zipage_kernels.reference.zipage.zipage_score`."""
    compared = 0 if redundancy == "none" else compared_keys(redundancy, block)
    totals = protected = None
    if redundancy == "lightning" and fused.fits(k_buffers[0], batch, block):
        attention, totals, protected = fused.block_scores(
            k_buffers, query_cache, batch, positions, scale, block, THRESHOLD, log_sums
        )
    else:
        attention = attention_score(k_buffers, query_cache, batch, scale, log_sums)
        if redundancy != "none":
            totals, protected = similarity_sums(k_buffers, batch, positions, compared, THRESHOLD)
    pooled = {"never": 0, "once": 1, "always": 2}[pooling]
    # Rows that have never been compressed lie in position order.
    scattered = pooled == 2 and any(batch.counts)
    order = positions.argsort(dim=-1) if scattered else None
    scores, importance = torch.empty_like(attention), torch.empty_like(attention)
    size, num_layers, num_heads, candidates = positions.shape
    table, lengths = tables.importance, batch.lengths
    assert table is not None
    _combine[(size * num_layers * num_heads,)](
        attention, totals, protected, order, table, None if tables.seen is None else tables.seen.view(torch.int16), batch.rows,
        lengths.kv_lens, lengths.starts, lengths.stored, lengths.counts, lengths.seen, lengths.windows, scores, importance,
        batch.rows.stride(0), table.stride(0), alpha, lam, tau, num_layers, candidates, compared, H=num_heads,
        REDUNDANCY=totals is not None, POOL=pooled, ORDERED=scattered, SEEN=tables.seen is not None,
        CHUNKS=0 if scattered else chunks(candidates), BLOCK=CHUNK, maxnreg=REGISTERS,
    )  # fmt: skip
    return scores, importance
