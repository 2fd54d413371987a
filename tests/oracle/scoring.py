"""Scores and choice of one layer, over all its KV heads at once (source: Compressed PagedAttention, arXiv 2603.08743).

n = rows of the sequence, C = candidates (the last C rows), w = window. Scores are fp32 [H, C] in ROW order; `positions`
int64 [H, C] says when each candidate was generated: after an eviction the two orders differ, and differ per head.
"""
import math

import torch
import torch.nn.functional as F

NEG_INF = float("-inf")


def attention_score(queries, keys, scale):
    """I [H, n]: mean over the window of the max over the group of softmax attention.

    queries [w, Hq, D] of the last w rows, keys [H, n, D]. A window query does not see the rows after its own; the
    denominator covers every row it sees, prefix included; the mean always divides by w.
    """
    window, heads, rows = len(queries), keys.shape[0], keys.shape[1]
    logits = torch.einsum("whgd,hnd->hgwn", queries.unflatten(1, (heads, -1)), keys) * scale
    visible = torch.arange(rows) <= torch.arange(rows - window, rows)[:, None]
    attention = logits.masked_fill(~visible, NEG_INF).softmax(-1)
    return attention.amax(1).sum(1) / window


def global_score(attention, previous, alpha):
    """F [H, C] = max(I, alpha * F_previous) for the leading rows, those that survived the last compression.

    previous: bf16 [H, m], m <= C, the stored F of the first m candidate rows; the other rows have F = I.
    """
    survivors = previous.shape[1]
    scores = attention.clone()
    scores[:, :survivors] = torch.maximum(attention[:, :survivors], alpha * previous.float())
    return scores


def max_pool(scores, positions, size=5):
    """Centred max over `size` neighbours in position order among the candidates, -inf beyond both ends."""
    order = positions.argsort(-1)
    ordered = F.pad(scores.gather(-1, order), (size // 2, size // 2), value=NEG_INF)
    return torch.empty_like(scores).scatter_(-1, order, ordered.unfold(-1, size, 1).amax(-1))


def redundancy(keys, positions, block, tau, mode, threshold=0.5):
    """R [H, C], softmax over all candidates; keys [H, C, D] post-RoPE.

    Cosine similarities with a zero diagonal; in each column, of the rows above `threshold`, the one with the latest
    position is zeroed; R_m = sum_n S[m, n] / (tau * compared keys). "lightning" compares keys within blocks of `block`
    consecutive candidate rows and divides by tau * block, also in a short last block; "flash" compares all candidates.
    """
    candidates = keys.shape[1]
    span = {"lightning": block, "flash": candidates}[mode]
    unit = keys / keys.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    sums = []
    for start in range(0, candidates, span):
        part, when = unit[:, start : start + span], positions[:, start : start + span]
        similar = part @ part.mT
        similar.diagonal(dim1=1, dim2=2).zero_()
        latest, row = torch.where(similar > threshold, when[:, :, None], -1).max(1, keepdim=True)  # per column
        similar.scatter_(1, row, torch.where(latest >= 0, 0.0, similar.gather(1, row)))
        sums.append(similar.sum(2))
    return (torch.cat(sums, -1) / (tau * span)).softmax(-1)


def _mix(x):
    """32-bit finalizer on int64 tensors holding unsigned 32-bit values (products wrap, the low 32 bits stay exact)."""
    x = x ^ (x >> 16)
    x = (x * 0x7FEB352D) & 0xFFFFFFFF
    x = x ^ (x >> 15)
    x = (x * 0x846CA68B) & 0xFFFFFFFF
    return x ^ (x >> 16)


def random_score(seed, layer, positions, count):
    """Hash of (seed, layer, KV head, number of the compression, position) in [0, 1), exact in fp32."""
    state = _mix(torch.tensor(seed & 0xFFFFFFFF))
    state = _mix(state ^ layer)
    state = _mix(state ^ torch.arange(positions.shape[0])[:, None])
    state = _mix(state ^ count)
    return (_mix(state ^ positions) >> 8).float() / 2**24


def forced(positions, true_len, recent, sinks):
    """bool [H, C]: the last `recent` true positions and the first `sinks`."""
    return (positions >= true_len - recent) | (positions < sinks)


def recent_count(window, recency, budget):
    """Tokens always kept at the end: max(w, floor(r K))."""
    return max(window, math.floor(recency * budget))


def select(scores, positions, must_keep, budget):
    """bool [H, C], exactly `budget` per head: forced first, then score descending, then position descending; NaN = -inf.

    Also returns fp32 [H]: score of the last kept minus score of the first dropped token (how close the call was).
    """
    scores = torch.where(scores.isnan(), NEG_INF, scores).masked_fill(must_keep, math.inf)
    by_position = positions.argsort(-1, descending=True)
    ranked, by_score = scores.gather(-1, by_position).sort(dim=-1, descending=True, stable=True)
    kept = by_position.gather(-1, by_score)[:, :budget]
    return torch.zeros_like(must_keep).scatter_(-1, kept, True), ranked[:, budget - 1] - ranked[:, budget]


def fill_holes(keep, budget):
    """Row moves of one head, keep bool [C] -> (sources, holes): the i-th kept row behind `budget` goes to the i-th hole."""
    return budget + keep[budget:].nonzero()[:, 0], (~keep[:budget]).nonzero()[:, 0]
