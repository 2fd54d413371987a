import naive
import pytest
import torch
from kernel_cases import MIXED, Request, make_case

from zipage_sglang.config import POLICIES, ZipageConfig
from zipage_sglang.pipeline import KVBuffers
from zipage_sglang.policies import View, make_policy


def config(**changes):
    return ZipageConfig(**(dict(budget=8, block=4, window=3, recency=0.0) | changes))


def view_of(case, first_layer=0, first_kv_head=0):
    t = case.tables
    return View(
        case.batch,
        KVBuffers(
            case.k_buffers, case.v_buffers, case.query_cache, t.positions, t.importance, 0.7, first_layer, first_kv_head
        ),
    )


def rows(case):
    """(r, layer, head, candidates of r) of every row of an output."""
    for r, n in enumerate(case.batch.num_candidates):
        for layer in range(len(case.k_buffers)):
            for head in range(case.k_buffers[0].shape[1]):
                yield r, layer, head, n


def naive_features(case, r, layer, head):
    """I, previous F, positions and keys of the candidates, as Python numbers."""
    request, slots = case.requests[r], case.slots(r)
    group = case.query_cache.shape[2] // case.k_buffers[0].shape[1]
    queries = case.query_cache[layer, case.batch.query_rows[r]]
    keys = case.k_buffers[layer][:, head]
    attention = naive.window_attention(
        keys[case.batch.rows[r, : request.kv_len]].tolist(),
        [queries[:, head * group + g].tolist() for g in range(group)],
        0.7,
        request.start,
    )
    previous, positions = [0.0] * len(slots), []
    for j, slot in enumerate(slots):
        if j < request.stored:
            previous[j] = case.tables.importance[layer, slot, head].item()
            positions.append(case.tables.positions[layer, slot, head].item())
        else:
            positions.append(request.start + j + request.evicted)
    return attention, previous, positions, keys[slots].tolist()


@pytest.mark.parametrize("redundancy", ["lightning", "flash", "none"])
@pytest.mark.parametrize("pooling", ["once", "never", "always"])
def test_zipage_formula_on_a_mixed_batch(redundancy, pooling):
    case = make_case(MIXED)
    alpha, lam, tau = 0.35, 0.6, 0.3
    chosen = config(alpha=alpha, lam=lam, tau=tau, redundancy=redundancy, pooling=pooling, block=7, budget=9)
    view = view_of(case)
    scores = make_policy(chosen).score(view)
    assert scores.dtype == torch.float32 and scores.shape == (4, 2, 2, 30)
    for r, layer, head, n in rows(case):
        attention, previous, positions, keys = naive_features(case, r, layer, head)
        importance = [max(i, alpha * f) for i, f in zip(attention, previous)]
        used = importance
        if pooling == "always" or (pooling == "once" and case.requests[r].count == 0):
            used = naive.pool(importance, positions)
        expected = used
        if redundancy != "none":
            shares = naive.redundancy(keys, positions, 7, tau, redundancy)
            expected = [lam * f - (1 - lam) * share for f, share in zip(used, shares)]
        actual = scores[r, layer, head, :n]
        torch.testing.assert_close(actual, torch.tensor(expected), rtol=1e-5, atol=1e-6)
        # What is remembered is never pooled.
        torch.testing.assert_close(
            view.importance[r, layer, head, :n], torch.tensor(importance), rtol=1e-5, atol=1e-6
        )


def test_both_terms_of_the_global_score_matter():
    """The case above covers survivors that win by memory and by attention, and pooling that changes something."""
    case = make_case(MIXED)
    view = view_of(case)
    attention, remembered = view.attention(), 0.35 * view.previous()
    survivors = view.previous() > 0
    assert (attention > remembered)[survivors].any() and (attention < remembered)[survivors].any()


def test_attention_is_the_raw_score_and_remembers_nothing():
    case = make_case(MIXED)
    expected = {row: naive_features(case, *row[:3])[0] for row in rows(case)}
    case.tables.importance = None  # such a policy has no table
    view = view_of(case)
    scores = make_policy(config(policy="attention")).score(view)
    for (r, layer, head, n), attention in expected.items():
        torch.testing.assert_close(scores[r, layer, head, :n], torch.tensor(attention), rtol=1e-5, atol=1e-7)
    assert view.importance is None


def test_recent_is_the_position():
    case = make_case(MIXED)
    scores = make_policy(config(policy="recent")).score(view_of(case))
    assert scores.dtype == torch.float32
    assert torch.equal(scores, view_of(case).positions.float())


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
def test_random_is_the_hash_of_global_indices(seed):
    case = make_case(MIXED, heads=3)
    scores = make_policy(config(policy="random", seed=seed)).score(view_of(case, first_layer=9, first_kv_head=6))
    assert scores.dtype == torch.float32
    positions = view_of(case).positions
    for r, layer, head, n in rows(case):
        expected = [
            naive.random_score(seed, 9 + layer, 6 + head, case.requests[r].count, position)
            for position in positions[r, layer, head, :n].tolist()
        ]
        assert scores[r, layer, head, :n].tolist() == expected


def test_random_known_values():
    """Pins the hash itself: kept sets must not change between versions."""
    case = make_case([Request(kv_len=4, keep=2)], layers=1, heads=1)
    scores = make_policy(config(policy="random", seed=7)).score(view_of(case))
    assert (scores.flatten() * 2**24).long().tolist() == [9439490, 5968685, 10021000, 8628600]


def test_random_looks_uniform():
    case = make_case([Request(kv_len=400, keep=2)], layers=3, heads=4)
    scores = make_policy(config(policy="random")).score(view_of(case)).flatten()
    histogram = torch.histc(scores, bins=10, min=0.0, max=1.0)
    assert scores.unique().numel() > 4790 and histogram.min() > 400 and histogram.max() < 560


@pytest.mark.parametrize("policy", POLICIES)
def test_only_zipage_stores_importance(policy):
    assert make_policy(config(policy=policy)).stores_importance == (policy == "zipage")


@pytest.mark.parametrize("policy", POLICIES)
def test_scores_of_a_request_do_not_depend_on_its_neighbours(policy):
    """Alone or in a batch: the same scores, up to rounding."""
    together = make_case(MIXED)
    scores = make_policy(config(policy=policy)).score(view_of(together))
    for r, request in enumerate(MIXED):
        alone = make_case([request])
        alone.k_buffers, alone.v_buffers, alone.tables = together.k_buffers, together.v_buffers, together.tables
        alone.query_cache = together.query_cache
        alone.batch.rows, alone.batch.query_rows = together.batch.rows[r : r + 1], together.batch.query_rows[r : r + 1]
        n = request.kv_len - request.start
        torch.testing.assert_close(make_policy(config(policy=policy)).score(view_of(alone))[0], scores[r, :, :, :n])
