"""A window's scores are added to those that tokens carry."""

import copy

import pytest
import torch
from kernel_cases import MIXED, Request, make_case
from test_kernels_attention import naive_attention

from zipage_kernels import ops


def update(case):
    ops.update_importance(case.k_buffers, case.query_cache, case.tables, case.batch, 0.7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_the_formula(dtype):
    case = make_case(MIXED, dtype=dtype)
    before = copy.deepcopy(case)
    update(case)
    touched = torch.zeros(case.tables.positions.shape[1], dtype=torch.bool)
    for r, request in enumerate(case.requests):
        slots = case.slots(r)
        touched[slots] = True
        for layer in range(2):
            for head in range(2):
                seen = torch.tensor(naive_attention(case, r, layer, head, 0.7))
                carried = before.tables.importance[layer, slots, head].float()
                carried[request.stored :] = 0
                found = case.tables.importance[layer, slots, head].float()
                torch.testing.assert_close(found, torch.maximum(seen, carried), rtol=2**-7, atol=0)  # the last bit of bf16
                assert (found[: request.stored] == carried[: request.stored])[carried[: request.stored] > seen[: request.stored]].all()
                positions = case.tables.positions[layer, slots, head]
                fresh = range(request.start + request.stored + request.evicted, request.kv_len + request.evicted)
                assert positions[request.stored :].tolist() == list(fresh)
                assert torch.equal(positions[: request.stored], before.tables.positions[layer, slots[: request.stored], head])
    for new, old in ((case.tables.positions, before.tables.positions), (case.tables.importance, before.tables.importance)):
        assert torch.equal(new[:, ~touched].nan_to_num(-1), old[:, ~touched].nan_to_num(-1))
    for new, old in zip((*case.k_buffers, *case.v_buffers), (*before.k_buffers, *before.v_buffers), strict=True):
        torch.testing.assert_close(new, old, rtol=0, atol=0, equal_nan=True)


def test_seen_once_is_remembered_and_nan_stays():
    case = make_case([Request(kv_len=12, start=2, keep=3)], layers=1)
    slots = case.slots(0)
    update(case)
    first = case.tables.importance[0, slots].clone()
    case.requests = (Request(kv_len=12, start=2, stored=10),)
    case.batch.stored[0] = 10
    case.query_cache[0, case.batch.query_rows[0]] *= -1
    update(case)
    second = case.tables.importance[0, slots]
    assert (second >= first).all() and (second > first).any() and (second == first).any()
    case.tables.importance[0, slots[4], 1] = torch.nan
    update(case)
    assert case.tables.importance[0, slots].isnan().nonzero().tolist() == [[4, 1]]
