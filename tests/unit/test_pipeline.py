import copy
import math

import naive
import pytest
import torch
from kernel_cases import MIXED, Request, make_case
from test_policies import naive_features, rows, view_of

from zipage_kernels import ops
from zipage_kernels.reference.select_forced import forced
from zipage_sglang.config import POLICIES, ZipageConfig
from zipage_sglang.pipeline import KVBuffers, compress
from zipage_sglang.policies import Policy, make_policy


def buffers_of(case):
    t = case.tables
    return KVBuffers(case.k_buffers, case.v_buffers, case.query_cache, t.positions, t.importance, 0.7, 2, 4, t.seen)


def naive_scores(config, case, r, layer, head):
    attention, previous, positions, keys = naive_features(case, r, layer, head)
    count = case.requests[r].count
    if config.policy == "attention":
        return attention, None, positions
    if config.policy == "recent":
        return positions, None, positions
    if config.policy == "random":
        return [naive.random_score(config.seed, 2 + layer, 4 + head, count, p) for p in positions], None, positions
    request = case.requests[r]
    seen = case.tables.seen[layer, case.slots(r)[: request.seen], head].tolist() + [0.0] * (len(attention) - request.seen)
    importance = [max((i + s) / (request.windows + 1), config.alpha * f) for i, s, f in zip(attention, seen, previous)]
    used = naive.pool(importance, positions) if config.pooling == "once" and count == 0 else importance
    share = naive.redundancy(keys, positions, config.block, config.tau, config.redundancy)
    return [config.lam * f - (1 - config.lam) * s for f, s in zip(used, share)], importance, positions


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("redundancy", ["lightning", "flash"])
@pytest.mark.parametrize("recency, dtype", [(0.0, torch.float32), (0.75, torch.bfloat16)])
def test_whole_compression_matches_the_loops(policy, redundancy, recency, dtype):
    requests = tuple(Request(**(vars(request) | dict(keep=8))) for request in MIXED)
    case = make_case(requests, seed=11, dtype=dtype)
    config = ZipageConfig(
        budget=8, block=5, window=3, policy=policy, redundancy=redundancy, recency=recency, lam=0.5, seed=3
    )
    before = copy.deepcopy(case)
    result = compress(case.batch, buffers_of(case), make_policy(config), config)
    assert result.nan_counts.tolist() == [0, 0, 0, 0]
    for r, layer, head, _ in rows(before):
        scores, importance, positions = naive_scores(config, before, r, layer, head)
        true_len = requests[r].kv_len + requests[r].evicted
        reserve = max(3, math.floor(recency * 8))
        scores = [math.inf if p >= true_len - reserve else z for z, p in zip(scores, positions)]
        survivors = naive.best(scores, positions, 8)
        assert torch.nonzero(result.keep[r, layer, head]).flatten().tolist() == survivors
        slots = case.slots(r)
        for target, source in enumerate(naive.fill_holes(survivors, 8)):
            slot = slots[target]
            for old, new in ((before.k_buffers, case.k_buffers), (before.v_buffers, case.v_buffers)):
                assert torch.equal(new[layer][slot, head], old[layer][slots[source], head])
            assert case.tables.positions[layer, slot, head] == positions[source]
            if importance is not None:
                stored = case.tables.importance[layer, slot, head].item()
                # One unit of bf16, where fp32 and the loops' doubles round apart.
                assert stored == pytest.approx(importance[source], rel=2**-8)


def test_forced_are_the_last_positions_and_the_sinks():
    requests = (Request(kv_len=12, start=0, evicted=31, stored=8, keep=8, count=3), Request(kv_len=9, start=1, keep=3))
    case = make_case(requests)
    positions = ops.gather_positions(case.tables.positions, case.batch)
    always = forced(positions, case.batch, reserve=3, sinks=2)
    for r, layer, head, n in rows(case):
        true_len = requests[r].kv_len + requests[r].evicted
        for j, position in enumerate(positions[r, layer, head].tolist()):
            sink = requests[r].start == 0 and position < 2  # a kept prompt, even of one token, holds the sinks already
            assert always[r, layer, head, j].item() == (j < n and (sink or position >= true_len - 3))
    assert always[0, ..., -3:].all() and always[1, ..., 5:8].all() and not always[1, ..., 8:].any()


class Fixed(Policy):
    """Scores given from outside."""

    def __init__(self, scores):
        object.__setattr__(self, "scores", scores)

    def score(self, view):
        return self.scores


def test_nan_counts_as_worst_and_is_counted_unless_forced():
    requests = (Request(kv_len=10, keep=6), Request(kv_len=7, start=2, keep=4))
    case = make_case(requests, layers=2, heads=1)
    scores = torch.zeros(2, 2, 1, 10)
    scores[0, 0, 0, [1, 2, 3, 9]] = torch.nan  # 9 is forced
    scores[0, 1, 0, 8] = torch.nan  # forced
    scores[1, 1, 0, [0, 5, 6, 7]] = torch.nan  # 5 and later are padding
    config = ZipageConfig(budget=6, block=3, window=3, recency=0.0)
    result = compress(case.batch, buffers_of(case), Fixed(scores), config)
    assert result.nan_counts.tolist() == [3, 1]
    assert torch.nonzero(result.keep[0, 0, 0]).flatten().tolist() == [4, 5, 6, 7, 8, 9]
    assert torch.nonzero(result.keep[0, 1, 0]).flatten().tolist() == [4, 5, 6, 7, 8, 9]
    assert torch.nonzero(result.keep[1, 1, 0]).flatten().tolist() == [1, 2, 3, 4]


def test_all_equal_scores_keep_the_latest_positions():
    case = make_case([Request(kv_len=14, evicted=9, stored=9, keep=9, count=2)], heads=2)
    before = view_of(case).positions
    config = ZipageConfig(budget=9, block=5, window=3, recency=0.0)
    result = compress(case.batch, buffers_of(case), Fixed(torch.zeros(1, 2, 2, 14)), config)
    for layer in range(2):
        for head in range(2):
            kept = before[0, layer, head][result.keep[0, layer, head]].tolist()
            assert sorted(kept) == sorted(before[0, layer, head].tolist())[-9:]


@pytest.mark.parametrize("policy", POLICIES)
def test_many_compressions_in_a_row(policy):
    """Decode and compress eight times: what lies in a slot is always the token that the tables name.

    K and V of a token spell its position, so a wrong move, a stale table or a lost head shows at once.
    """
    budget, block, window, prompt, heads = 12, 5, 3, 4, 2
    config = ZipageConfig(budget=budget, block=block, window=window, policy=policy, recency=0.5)
    case = make_case([Request(kv_len=prompt + budget + block, start=prompt, keep=budget)], heads=heads, seed=2)
    kv_len, true_len, stored = prompt + budget + block, prompt + budget + block, 0
    rng = torch.Generator().manual_seed(8)

    def write(row, position):
        slot = case.batch.rows[0, row]
        for layer in range(2):
            case.k_buffers[layer][slot] = torch.randn(heads, 5, generator=rng)
            case.k_buffers[layer][slot, :, 0] = position / 8
            case.v_buffers[layer][slot] = -float(position)

    for row in range(kv_len):
        write(row, row)
    alive = {(layer, head): set(range(prompt, true_len)) for layer in range(2) for head in range(heads)}
    for count in range(8):
        request = Request(kv_len, prompt, true_len - kv_len, stored, budget, count)
        fresh = make_case([request], heads=heads)
        fresh.batch.rows, fresh.batch.query_rows = case.batch.rows, case.batch.query_rows
        compress(fresh.batch, buffers_of(case), make_policy(config), config)
        slots = case.batch.rows[0, prompt : prompt + budget]
        for layer in range(2):
            positions = case.tables.positions[layer, slots]
            torch.testing.assert_close(case.k_buffers[layer][slots][:, :, 0], positions / 8)
            torch.testing.assert_close(case.v_buffers[layer][slots][:, :, 0], -positions.float())
            for head in range(heads):
                kept = set(positions[:, head].tolist())
                assert len(kept) == budget
                assert set(range(true_len - 6, true_len)) <= kept <= alive[layer, head]
                alive[layer, head] = kept | set(range(true_len, true_len + block))
        kv_len, stored = prompt + budget, budget
        for _ in range(block):
            write(kv_len, true_len)
            kv_len, true_len = kv_len + 1, true_len + 1
