import pytest
import torch
from kernel_cases import MIXED, make_case

from zipage_kernels.batch import CompressionBatch


def build(**changes):
    counts = dict(kv_lens=[6, 4], starts=[1, 0], evicted=[0, 3], stored=[0, 2], keeps=[3, 2], counts=[0, 1])
    rows = torch.zeros(2, 7, dtype=torch.int64)
    query_rows = torch.ones(2, 2, dtype=torch.int64)
    return CompressionBatch(**(dict(rows=rows, query_rows=query_rows, **counts) | changes))


def test_sizes():
    batch = make_case(MIXED).batch
    assert batch.size == 4
    assert batch.window == 3
    assert batch.num_candidates == [17, 16, 12, 30]
    assert batch.C == 30


def test_lengths_reach_the_device_as_int32():
    lengths = build().lengths
    assert all(values.dtype == torch.int32 for values in lengths)
    assert [values.tolist() for values in lengths] == [[6, 4], [1, 0], [0, 3], [0, 2], [3, 2], [0, 1], [0, 0], [0, 0]]


def test_candidate_mask_covers_each_request_exactly():
    assert build().candidates.tolist() == [[True] * 5, [True] * 4 + [False]]


def test_candidate_slots_are_the_row_from_the_start_on():
    rows = torch.arange(14).view(2, 7)
    batch = build(rows=rows)
    assert batch.candidate_slots(0).tolist() == [1, 2, 3, 4, 5]
    assert batch.candidate_slots(1).tolist() == [7, 8, 9, 10]


@pytest.mark.parametrize(
    "changes, says",
    [
        (dict(kv_lens=[6]), "kv_lens"),
        (dict(evicted=[0, -1]), "evicted"),
        (dict(counts=[0, 1, 2]), "counts"),
        (dict(query_rows=torch.ones(3, 2, dtype=torch.int64)), "query_rows"),
        (dict(kv_lens=[8, 4]), "request 0: kv_len 8"),
        (dict(kv_lens=[6, 1], stored=[0, 0], keeps=[3, 1]), "request 1: kv_len 1"),
        (dict(keeps=[6, 2]), "request 0: 5 candidates"),
        (dict(stored=[0, 5]), "request 1: 4 candidates"),
    ],
)
def test_contradictions_are_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        build(**changes)
