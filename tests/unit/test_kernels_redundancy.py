import importlib

import naive
import pytest
import torch
from kernel_cases import MIXED, Request, make_case

from zipage_kernels import ops

# The package exports a function of the same name.
module = importlib.import_module("zipage_kernels.reference.redundancy")


def run(case, block=7, tau=0.4, mode="lightning", **more):
    positions = ops.gather_positions(case.tables.positions, case.batch)
    return ops.redundancy(case.k_buffers, case.batch, positions, block, tau, mode, **more), positions


def check(case, block, tau, mode):
    scores, positions = run(case, block, tau, mode)
    assert scores.dtype == torch.float32 and scores.shape == positions.shape
    for r, n in enumerate(case.batch.num_candidates):
        assert (scores[r, :, :, n:] == 0).all()
        for layer, k_buffer in enumerate(case.k_buffers):
            for head in range(k_buffer.shape[1]):
                keys = k_buffer[case.slots(r), head].tolist()
                expected = naive.redundancy(keys, positions[r, layer, head, :n].tolist(), block, tau, mode)
                torch.testing.assert_close(
                    scores[r, layer, head, :n], torch.tensor(expected), rtol=1e-5, atol=1e-7
                )


@pytest.mark.parametrize("mode", ["lightning", "flash"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [1, 7, 40])
def test_matches_the_formula(mode, dtype, block):
    check(make_case(MIXED, dtype=dtype, strided=True), block, 0.4, mode)


@pytest.mark.parametrize("mode", ["lightning", "flash"])
def test_columns_in_chunks_are_the_same(mode, monkeypatch):
    """Chunks that do not divide the candidates, so the diagonal lies in every chunk."""
    monkeypatch.setattr(module, "CHUNK", 5)
    check(make_case(MIXED), 11, 0.3, mode)


@pytest.mark.parametrize("mode", ["lightning", "flash"])
def test_duplicate_keys(mode):
    case = make_case(MIXED, seed=5)
    for r in range(len(MIXED)):
        slots = case.slots(r)
        for k_buffer in case.k_buffers:
            k_buffer[slots[1::3]] = k_buffer[slots[0]].clone()
            k_buffer[slots[2::5]] = -2.5 * k_buffer[slots[0]]
    check(case, 7, 0.4, mode)


def test_latest_duplicate_is_protected_by_position_not_by_row():
    """Three equal keys, the latest of them in the first row: it is no more redundant than a key like no other."""
    case = make_case([Request(kv_len=7, evicted=6, stored=4, keep=4, count=1)], layers=1, heads=1, head_dim=4)
    slots = case.slots(0)
    case.k_buffers[0][slots] = torch.eye(4)[[0, 0, 0, 1, 2, 2, 3]][:, None]
    case.tables.positions[0, slots[:4], 0] = torch.tensor([9, 3, 8, 5]).int()
    scores, _ = run(case, block=7, tau=1.0)
    # Column 0 forgives row 2 (position 8), columns 1 and 2 forgive row 0 (position 9); of two equal keys, each is the
    # latest of the other's column.
    expected = torch.tensor([0.0, 2, 1, 0, 0, 0, 0]) / 7
    torch.testing.assert_close(scores[0, 0, 0], expected.softmax(0))


def test_all_equal_keys_rank_by_age():
    case = make_case([Request(kv_len=6, keep=3)], layers=1, heads=1)
    case.k_buffers[0][case.slots(0)] = 1.5
    scores, _ = run(case, mode="flash", tau=1.0)
    # Every column but the last forgives the last row, the last column forgives the one before it.
    expected = torch.tensor([5.0, 5, 5, 5, 4, 0]) / 6
    torch.testing.assert_close(scores[0, 0, 0], expected.softmax(0))


def test_threshold_is_strict_and_negative_similarity_counts():
    case = make_case([Request(kv_len=3, keep=3)], layers=1, heads=1, head_dim=2, window=1)
    case.k_buffers[0][case.slots(0), 0] = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    equal_to_threshold, _ = run(case, mode="flash", tau=1.0, threshold=1.0)
    torch.testing.assert_close(equal_to_threshold[0, 0, 0], (torch.tensor([0.0, 0, -2]) / 3).softmax(0))
    above, _ = run(case, mode="flash", tau=1.0)
    torch.testing.assert_close(above[0, 0, 0], (torch.tensor([-1.0, -1, -2]) / 3).softmax(0))


def test_key_of_length_zero_is_similar_to_nothing():
    case = make_case([Request(kv_len=5, keep=3)], layers=1, heads=1)
    case.k_buffers[0][case.slots(0)] = 2.0
    case.k_buffers[0][case.slots(0)[2]] = 0.0
    scores, _ = run(case, mode="flash", tau=1.0)
    torch.testing.assert_close(scores[0, 0, 0], (torch.tensor([3.0, 3, 0, 2, 0]) / 5).softmax(0))


def test_unknown_mode_is_refused():
    with pytest.raises(ValueError, match="'none'"):
        run(make_case(MIXED), mode="none")
