"""Exact top K without sorting: the K-th best score is found bit by bit, by counting."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from zipage_kernels.batch import CompressionBatch

RESIDENT = 4096  # candidates whose scores fit in a program's registers; more are counted from memory
LEAST = tl.constexpr(-(2**31))  # sorts below every score


@triton.jit
def _sort_keys(scores, positions, j, candidates, newest, sinks, FORCED: tl.constexpr):
    """int32 keys in the order of the scores (-0 as 0, NaN as -inf, forced as +inf, LEAST at padding), positions, and how
    many NaN were not forced."""
    candidate = j < candidates
    score = tl.load(scores + j, mask=candidate, other=0.0)
    position = tl.load(positions + j, mask=candidate, other=-1)
    nan = score != score
    value = tl.where(nan, -float("inf"), score)
    if FORCED:
        always = candidate & ((position >= newest) | (position < sinks))
        value = tl.where(always, float("inf"), value)
        nan &= ~always
    bits = tl.where(value == 0.0, 0.0, value).to(tl.int32, bitcast=True)
    keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # as integers, negative floats are ordered the other way around
    return tl.where(candidate, keys, LEAST), position, tl.sum(nan.to(tl.int32), axis=0)


@triton.jit
def _count(
    keys, position, saved, positions, candidates, least, equal, oldest,
    TIES: tl.constexpr, ON_CHIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Candidates with a key >= least; with TIES, those with the key `equal` and a position >= oldest."""
    count = tl.zeros([], tl.int32)
    if ON_CHIP:
        hit = (keys == equal) & (position >= oldest) if TIES else keys >= least
        count += tl.sum(hit.to(tl.int32), axis=0)
    else:
        for first in range(0, candidates, BLOCK):
            j = first + tl.arange(0, BLOCK)
            key = tl.load(saved + j, mask=j < candidates, other=LEAST)
            hit = key >= least
            if TIES:
                hit = (key == equal) & (tl.load(positions + j, mask=j < candidates, other=-1) >= oldest)
            count += tl.sum(hit.to(tl.int32), axis=0)
    return count


@triton.jit(do_not_specialize=["kv_lens", "starts", "evicted", "keeps", "L", "C", "reserve", "sinks"])
def _select(
    scores, positions, kv_lens, starts, evicted, keeps, saved, keep, nan_counts, L, C, reserve, sinks,
    H: tl.constexpr, FORCED: tl.constexpr, ON_CHIP: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The survivors of one head.  saved: int32 [R, L, H, C], room for sort keys that do not fit ON_CHIP."""
    pid = tl.program_id(0)
    r = pid // H // L
    kv_len = tl.load(kv_lens + r)
    start = tl.load(starts + r)
    candidates = kv_len - start
    newest = kv_len + tl.load(evicted + r) - reserve  # positions from here on are forced, and those before `sinks`
    sinks = tl.where(start == 0, sinks, 0)
    wanted = tl.load(keeps + r)
    line = pid.to(tl.int64) * C
    scores += line
    positions += line
    keep += line
    keys, position, nans = _sort_keys(
        scores, positions, tl.arange(0, BLOCK), candidates, newest, sinks, FORCED
    )
    if not ON_CHIP:
        saved += line
        tl.store(saved + tl.arange(0, BLOCK), keys)
        for first in range(BLOCK, C, BLOCK):
            j = first + tl.arange(0, BLOCK)
            keys, _, more = _sort_keys(scores, positions, j, candidates, newest, sinks, FORCED)
            tl.store(saved + j, keys, mask=j < C)
            nans += more
        tl.debug_barrier()  # what other threads saved is read below
    if FORCED:
        if nans > 0:
            tl.atomic_add(nan_counts + r, nans.to(tl.int64), sem="relaxed")

    # The largest `least` that at least `wanted` keys reach; setting the highest bit of LEAST makes it 0, hence the xor.
    least = tl.full([], LEAST, tl.int32)
    count = candidates
    bit = tl.full([], 31, tl.int32)
    while (bit >= 0) & (count != wanted):
        trial = least ^ (tl.full([], 1, tl.int32) << bit)
        reached = _count(keys, position, saved, positions, candidates, trial, 0, 0, False, ON_CHIP, BLOCK)
        least = tl.where(reached >= wanted, trial, least)
        count = tl.where(reached >= wanted, reached, count)
        bit -= 1

    # More keys than wanted reach it: of those equal to it, the latest positions.
    oldest = tl.zeros([], tl.int32)
    if count != wanted:
        equal = _count(keys, position, saved, positions, candidates, 0, least, 0, True, ON_CHIP, BLOCK)
        wanted -= count - equal
        bit = tl.full([], 30, tl.int32)
        while (bit >= 0) & (equal != wanted):
            trial = oldest | (tl.full([], 1, tl.int32) << bit)
            reached = _count(keys, position, saved, positions, candidates, 0, least, trial, True, ON_CHIP, BLOCK)
            oldest = tl.where(reached >= wanted, trial, oldest)
            equal = tl.where(reached >= wanted, reached, equal)
            bit -= 1

    for first in range(0, C, BLOCK):
        j = first + tl.arange(0, BLOCK)
        if not ON_CHIP:
            keys = tl.load(saved + j, mask=j < C, other=LEAST)
            position = tl.load(positions + j, mask=j < C, other=-1)
        best = (keys > least) | ((keys == least) & (position >= oldest))
        tl.store(keep + j, best, mask=j < C)


def _selected(
    scores: torch.Tensor, positions: torch.Tensor, batch: CompressionBatch, forced: tuple[int, int] | None
) -> tuple[torch.Tensor, torch.Tensor | None]:
    scores = scores.contiguous()
    size, num_layers, num_heads, candidates = scores.shape
    lengths = batch.lengths
    on_chip = candidates <= RESIDENT
    keep = torch.empty(scores.shape, dtype=torch.bool, device=scores.device)
    saved = None if on_chip else torch.empty_like(positions)
    nan_counts = None if forced is None else torch.zeros(size, dtype=torch.int64, device=scores.device)
    reserve, sinks = forced or (0, 0)
    block = min(RESIDENT, 1024 if candidates <= 1024 else 4096)
    _select[(size * num_layers * num_heads,)](
        scores, positions, lengths.kv_lens, lengths.starts, lengths.evicted, lengths.keeps, saved, keep, nan_counts,
        num_layers, candidates, reserve, sinks,
        H=num_heads, FORCED=forced is not None, ON_CHIP=on_chip, BLOCK=block, num_warps=max(1, block // 512),
    )  # fmt: skip
    return keep, nan_counts


def select(scores: torch.Tensor, positions: torch.Tensor, batch: CompressionBatch) -> torch.Tensor:
    """See `zipage_kernels.reference.select.select`."""
    return _selected(scores, positions, batch, None)[0]


def select_forced(
    scores: torch.Tensor, positions: torch.Tensor, batch: CompressionBatch, reserve: int, sinks: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """See `zipage_kernels.reference.select_forced.select_forced`."""
    keep, forced = _selected(scores, positions, batch, (reserve, sinks))
    assert forced is not None
    return keep, forced
