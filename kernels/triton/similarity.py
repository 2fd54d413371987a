"""One tile of the matrix of key similarities: what becomes of it before it is gone.

Column n's protected entry is the latest row m (by position) with a cosine above the threshold.  The matrix is symmetric, so
tiles hold column n as their row and reduce along the fast axis.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Stretches differences of cosines until they dwarf positions (below 2**24, exact in fp32).
STRETCH = tl.constexpr(2.0**64)
# Protected entries are summed in units of 1 / (FIXED_POINT / compared keys): at most `compared` of 1 fit in 31 bits.
FIXED_POINT = tl.constexpr(2.0**30)


@triton.jit
def inverse_lengths(keys):
    """1 / length of each key, at most 1e12: fp32 [keys]."""
    wide = keys.to(tl.float32)
    return 1.0 / tl.maximum(tl.sqrt(tl.sum(wide * wide, axis=1)), 1e-12)


@triton.jit
def compare(k_n, n, limit, k_m, m, end, inverse, positions, total, latest, value, index):
    """Adds what keys m say about keys n.

    limit: least similarity times the length of n.  inverse, positions: pointers to the candidates' inverse lengths and
    positions.  total: sum of the cosines.  latest: age (position + 1) of the latest similar key, 0 if none yet; value,
    index: its cosine and its candidate number.  Cosines are left multiplied by the length of n until `finish`.
    """
    cosine = tl.dot(k_n, tl.trans(k_m), input_precision="ieee") * tl.load(inverse + m, mask=m < end, other=0.0)[None, :]
    cosine = tl.where(n[:, None] == m[None, :], 0.0, cosine)
    total += tl.sum(cosine, axis=1)
    age = (tl.load(positions + m, mask=m < end, other=-1) + 1).to(tl.float32)
    # At most 0 where not similar: cheaper than a comparison and a selection.
    age = tl.minimum((cosine - limit[:, None]) * STRETCH, age[None, :])
    tile_latest = tl.max(age, axis=1)
    chosen = tl.maximum(age - (tile_latest - 1.0)[:, None], 0.0)  # 1 at the latest: ages are whole and distinct
    tile_value = tl.sum(chosen * cosine, axis=1)
    tile_index = tl.sum(chosen * m.to(tl.float32)[None, :], axis=1)
    later = tile_latest > latest
    return (
        total,
        tl.where(later, tile_latest, latest),
        tl.where(later, tile_value, value),
        tl.where(later, tile_index, index),
    )


@triton.jit
def finish(total, latest, value, index, n, end, inverse, compared, totals, protected):
    """Writes the row sums, and adds each column's protected entry to those of the row it lies in.

    compared: number of keys a key is compared with.  protected: int32, zero at first; as integers, the entries have the
    same sum in any order.
    """
    inside = n < end
    scale = tl.load(inverse + n, mask=inside, other=0.0)
    tl.store(totals + n, total * scale, mask=inside)
    units = (value * scale * (FIXED_POINT / compared) + 0.5).to(tl.int32)
    found = inside & (latest > 0.0) & (index >= 0.0) & (index < end)  # index is NaN where a key is
    tl.atomic_add(protected + index.to(tl.int32), units, mask=found, sem="relaxed")


@triton.jit
def similarity(totals, protected, j, candidates, compared, tau):
    """R before its softmax of candidates j, -inf past the last one."""
    inside = j < candidates
    taken = tl.load(protected + j, mask=inside, other=0).to(tl.float32) / (FIXED_POINT / compared)
    value = (tl.load(totals + j, mask=inside, other=0.0) - taken) / (tau * compared)
    return tl.where(inside, value, -float("inf"))


@triton.jit
def softmax_sum(totals, protected, candidates, compared, tau, BLOCK: tl.constexpr):
    """Maximum and sum of R's softmax over all candidates of a head."""
    top = tl.full([], -float("inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for first in range(0, candidates, BLOCK):
        value = similarity(totals, protected, first + tl.arange(0, BLOCK), candidates, compared, tau)
        new_top = tl.maximum(top, tl.max(value, axis=0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(value - new_top), axis=0)
        top = new_top
    return top, total


@triton.jit
def softmax_sum_of(values, CHUNKS: tl.constexpr):
    """The same of what is at hand already, in a tuple of chunks of BLOCK values."""
    top = tl.full([], -float("inf"), tl.float32)
    total = tl.zeros([], tl.float32)
    for chunk in tl.static_range(CHUNKS):
        new_top = tl.maximum(top, tl.max(values[chunk], axis=0))
        total = total * tl.exp(top - new_top) + tl.sum(tl.exp(values[chunk] - new_top), axis=0)
        top = new_top
    return top, total
