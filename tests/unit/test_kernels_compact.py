import copy

import naive
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import MIXED, Request, make_case

from zipage_kernels import ops


def random_keep(case, seed):
    """Exactly K survivors of every head, different ones."""
    heads = case.k_buffers[0].shape[1]
    keep = torch.zeros(case.batch.size, len(case.k_buffers), heads, case.batch.C, dtype=torch.bool)
    rng = torch.Generator().manual_seed(seed)
    for r, n in enumerate(case.batch.num_candidates):
        for row in keep[r].flatten(0, 1):
            row[torch.randperm(n, generator=rng)[: case.requests[r].keep]] = True
    return keep


def memory(case):
    """Everything that compact may write."""
    return [*case.k_buffers, *case.v_buffers, case.tables.positions, case.tables.importance]


def check(case, keep, importance):
    """Runs compact and compares every slot with the loop, the untouched ones bit by bit."""
    positions = ops.gather_positions(case.tables.positions, case.batch)
    expected = copy.deepcopy(case)
    for r, request in enumerate(case.requests):
        slots = case.slots(r)
        for layer in range(len(case.k_buffers)):
            for head in range(case.k_buffers[0].shape[1]):
                survivors = torch.nonzero(keep[r, layer, head]).flatten().tolist()
                for target, source in enumerate(naive.fill_holes(survivors, request.keep)):
                    for before, after in (
                        (case.k_buffers[layer], expected.k_buffers[layer]),
                        (case.v_buffers[layer], expected.v_buffers[layer]),
                    ):
                        after[slots[target], head] = before[slots[source], head]
                    expected.tables.positions[layer, slots[target], head] = positions[r, layer, head, source]
                    if importance is not None:
                        rounded = naive.bf16(importance[r, layer, head, source].item())
                        expected.tables.importance[layer, slots[target], head] = rounded
    ops.compact(case.k_buffers, case.v_buffers, case.tables, case.batch, keep, positions, importance)
    for actual, wanted in zip(memory(case), memory(expected), strict=True):
        torch.testing.assert_close(actual, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("strided", [False, True])
def test_mixed_batch(dtype, strided):
    case = make_case(MIXED, dtype=dtype, heads=3, strided=strided)
    keep = random_keep(case, seed=2)
    check(case, keep, torch.rand(keep.shape, generator=torch.Generator().manual_seed(4)))


def test_importance_table_is_left_alone_without_importance():
    case = make_case(MIXED)
    check(case, random_keep(case, seed=3), None)


def test_policy_without_importance_needs_no_table():
    case = make_case(MIXED)
    keep = random_keep(case, seed=3)
    positions = ops.gather_positions(case.tables.positions, case.batch)
    case.tables.importance = None
    ops.compact(case.k_buffers, case.v_buffers, case.tables, case.batch, keep, positions, None)
    kept = case.tables.positions[0, case.slots(3)[:5], 0]
    assert sorted(kept.tolist()) == positions[3, 0, 0, keep[3, 0, 0]].tolist()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_kept_set(data):
    n = data.draw(st.integers(1, 12))
    kept = data.draw(st.integers(0, n))
    start = data.draw(st.integers(0, 3))
    case = make_case([Request(kv_len=start + n, start=start, keep=kept)], layers=1, heads=2, head_dim=2, window=1)
    keep = torch.zeros(1, 1, 2, n, dtype=torch.bool)
    for head in range(2):
        keep[0, 0, head, data.draw(st.permutations(range(n)))[:kept]] = True
    check(case, keep, torch.rand(keep.shape))


@pytest.mark.parametrize("kept", [[0, 1, 2], [4, 5, 6], [0, 5, 6], [1, 3, 4]])
def test_holes_fill_in_row_order(kept):
    """K and V carry their old row number: survivors in front stay, those behind arrive in order."""
    case = make_case([Request(kv_len=9, start=2, keep=3)], layers=1, heads=1, head_dim=1)
    slots = case.slots(0)
    for buffer in (*case.k_buffers, *case.v_buffers):
        buffer[slots, 0, 0] = torch.arange(7.0)
    keep = torch.zeros(1, 1, 1, 7, dtype=torch.bool)
    keep[..., kept] = True
    positions = ops.gather_positions(case.tables.positions, case.batch)
    ops.compact(case.k_buffers, case.v_buffers, case.tables, case.batch, keep, positions, None)
    expected = {(0, 1, 2): [0, 1, 2], (4, 5, 6): [4, 5, 6], (0, 5, 6): [0, 5, 6], (1, 3, 4): [3, 1, 4]}[tuple(kept)]
    assert case.k_buffers[0][slots[:3], 0, 0].tolist() == expected
    assert case.v_buffers[0][slots[:3], 0, 0].tolist() == expected
    assert case.tables.positions[0, slots[:3], 0].tolist() == [2 + row for row in expected]


def test_importance_rounds_to_nearest_even():
    case = make_case([Request(kv_len=4, keep=4)], layers=1, heads=1)
    values = [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 0.3]
    positions = ops.gather_positions(case.tables.positions, case.batch)
    keep = torch.ones(1, 1, 1, 4, dtype=torch.bool)
    importance = torch.tensor(values).view(1, 1, 1, 4)
    ops.compact(case.k_buffers, case.v_buffers, case.tables, case.batch, keep, positions, importance)
    stored = case.tables.importance[0, case.slots(0), 0].tolist()
    assert stored[:3] == [1.0, 1 + 2**-6, 1 + 2**-7]
    assert stored == [naive.bf16(value) for value in values]


def test_copy_slots_copies_everything_and_nothing_else():
    case = make_case(MIXED, strided=True)
    src = case.batch.rows[3, [4, 0, 9]]
    dst = case.batch.rows[1, [7, 2, 3]]
    before = copy.deepcopy(case)
    ops.copy_slots(case.k_buffers, case.v_buffers, case.tables, src, dst)
    slot_dims = [0, 0, 0, 0, 1, 1]  # K and V of two layers, then the tables, [L, S, H]
    for after, old, slot_dim in zip(memory(case), memory(before), slot_dims, strict=True):
        wanted = old.index_copy(slot_dim, dst, old.index_select(slot_dim, src))
        torch.testing.assert_close(after, wanted, rtol=0, atol=0, equal_nan=True)


def test_copy_slots_without_importance():
    case = make_case(MIXED)
    case.tables.importance = None
    src, dst = case.batch.rows[0, :2], case.batch.rows[2, :2]
    ops.copy_slots(case.k_buffers, case.v_buffers, case.tables, src, dst)
    assert torch.equal(case.tables.positions[:, dst], case.tables.positions[:, src])
    assert torch.equal(case.v_buffers[1][dst], case.v_buffers[1][src])
