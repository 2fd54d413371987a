import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import MIXED, Request, make_case

from zipage_kernels import ops


def select(scores, positions, keep):
    """One head of one request."""
    n = len(scores)
    batch = make_case([Request(kv_len=n, keep=keep)], layers=1, heads=1, window=1).batch
    keeps = ops.select(torch.tensor(scores).view(1, 1, 1, n), torch.tensor(positions).int().view(1, 1, 1, n), batch)
    assert keeps.dtype == torch.bool
    return torch.nonzero(keeps[0, 0, 0]).flatten().tolist()


def test_mixed_batch_keeps_exactly_k_of_each():
    case = make_case(MIXED, heads=3)
    positions = ops.gather_positions(case.tables.positions, case.batch)
    scores = torch.randn(positions.shape, generator=torch.Generator().manual_seed(1))
    scores[positions < 0] = torch.inf  # whatever padding holds is ignored
    keep = ops.select(scores, positions, case.batch)
    for r, (request, n) in enumerate(zip(MIXED, case.batch.num_candidates)):
        assert not keep[r, :, :, n:].any()
        for layer in range(2):
            for head in range(3):
                row = scores[r, layer, head, :n].tolist(), positions[r, layer, head, :n].tolist()
                kept = torch.nonzero(keep[r, layer, head]).flatten().tolist()
                assert kept == naive.best(*row, request.keep)


VALUES = st.sampled_from([-float("inf"), -1.0, -0.0, 0.0, 0.5, float("inf"), float("nan")])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_ties_and_special_values(data):
    scores = data.draw(st.lists(VALUES, min_size=1, max_size=9))
    positions = data.draw(st.permutations(range(0, 3 * len(scores), 3)))
    keep = data.draw(st.integers(0, len(scores)))
    assert select(scores, positions, keep) == naive.best(scores, positions, keep)


def test_all_equal_scores_keep_the_latest():
    assert select([1.0] * 6, [4, 40, 3, 30, 2, 20], 3) == [1, 3, 5]


def test_nan_loses_against_minus_one_and_ties_with_minus_infinity():
    nan, inf = float("nan"), float("inf")
    assert select([nan, -1.0, nan], [5, 0, 9], 1) == [1]
    assert select([nan, -inf, nan], [5, 0, 9], 2) == [0, 2]
    assert select([nan, -inf, nan], [5, 10, 9], 2) == [1, 2]


@pytest.mark.parametrize("worst", [float("nan"), -float("inf")])
def test_padding_is_never_kept_even_if_every_candidate_is_worthless(worst):
    case = make_case([Request(kv_len=6, keep=6), Request(kv_len=9, keep=2)], layers=1)
    positions = ops.gather_positions(case.tables.positions, case.batch)
    keep = ops.select(torch.full(positions.shape, worst), positions, case.batch)
    assert keep[0, 0, 0].tolist() == [True] * 6 + [False] * 3
    assert keep[1, 0, 0].tolist() == [False] * 7 + [True] * 2
