import dataclasses

import pytest
import torch
from kernel_cases import Request
from triton_cases import DEVICE, REQUESTS, assert_same, both, positions_of

from zipage_kernels import reference
from zipage_kernels import triton as twins
from zipage_kernels.triton import attention

CLOSE = dict(rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "dtype, options",
    [
        (torch.float32, dict(heads=2, group=3, window=3, strided=True)),
        (torch.bfloat16, dict(heads=1, group=5, window=1, head_dim=80)),
        (torch.float16, dict(heads=1, group=1, window=5, head_dim=64)),
        (torch.bfloat16, dict(heads=1, group=7, window=18, head_dim=16)),  # two tiles of queries
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_matches_the_reference(kept, dtype, options):
    case, c = both(dtype=dtype, **options)
    sums = case.log_sums(0.7) if kept else None
    expected = reference.attention_score(case.k_buffers, case.query_cache, case.batch, 0.7, sums)
    sums = sums if sums is None else sums.to(DEVICE)
    assert_same(twins.attention_score(c.k_buffers, c.query_cache, c.batch, 0.7, sums), expected, **CLOSE)


def test_keys_and_queries_of_different_types():
    case, c = both(REQUESTS[:1], layers=1)
    for each in (case, c):
        each.query_cache = each.query_cache.bfloat16()
    expected = reference.attention_score(case.k_buffers, case.query_cache, case.batch, 0.7)
    assert_same(twins.attention_score(c.k_buffers, c.query_cache, c.batch, 0.7), expected, **CLOSE)


def test_rows_in_several_splits(monkeypatch):
    monkeypatch.setattr(attention, "SPLIT_ROWS", 32)
    case, c = both(layers=1)
    expected = reference.attention_score(case.k_buffers, case.query_cache, case.batch, 0.7)
    assert_same(twins.attention_score(c.k_buffers, c.query_cache, c.batch, 0.7), expected, **CLOSE)


@pytest.mark.parametrize("kv_len", [90, 100, 120, 128, 132])
def test_host_lengths_only_bound_those_on_the_device(monkeypatch, kv_len):
    """As in a captured graph, where a row can be cut into more splits than the longest one: 120 rows into 4, 132 into 3."""
    monkeypatch.setattr(attention, "SPLIT_ROWS", 32)
    monkeypatch.setattr(attention, "MOST_SPLITS", 4)
    candidates = 60
    case, c = both([Request(kv_len=kv_len, start=kv_len - candidates, keep=20)], layers=1)
    rows = torch.nn.functional.pad(c.batch.rows, (0, 132 - kv_len))
    c.batch = dataclasses.replace(c.batch, rows=rows, kv_lens=[132], starts=[132 - candidates], device_counts=c.batch.lengths)
    expected = reference.attention_score(case.k_buffers, case.query_cache, case.batch, 0.7)
    assert_same(twins.attention_score(c.k_buffers, c.query_cache, c.batch, 0.7), expected, **CLOSE)
    args = 0.7, 0.8, 0.2, 0.4, 16, "lightning", "once"
    z, f = reference.zipage_score(case.k_buffers, case.query_cache, case.tables, case.batch, positions_of(case), *args)
    found = twins.zipage_score(c.k_buffers, c.query_cache, c.tables, c.batch, positions_of(case).to(DEVICE), *args)
    for one, other in zip(found, (z, f)):
        assert_same(one, other, **CLOSE)


def test_large_logits():
    case, c = both(REQUESTS[:1], layers=1, dtype=torch.float16)
    for each in (case, c):
        each.query_cache *= 100
    expected = reference.attention_score(case.k_buffers, case.query_cache, case.batch, 100.0)
    assert_same(twins.attention_score(c.k_buffers, c.query_cache, c.batch, 100.0), expected, rtol=1e-2, atol=1e-6)


def test_nan_of_one_query_spoils_its_group_only():
    case, c = both(REQUESTS[:1], layers=1)
    row = case.batch.query_rows[0, 1]
    for each in (case, c):
        each.query_cache[0, row, 4] = torch.nan  # head 1, whose group of 3 begins at 3
    expected = reference.attention_score(case.k_buffers, case.query_cache, case.batch, 0.7)
    assert expected[0, 0, 1].isnan().all()
    assert_same(twins.attention_score(c.k_buffers, c.query_cache, c.batch, 0.7), expected, **CLOSE)


def test_kept_log_sums_are_used_as_they_are():
    """One more than the right ones halves every weight: nothing is found anew."""
    case, c = both(REQUESTS, layers=1)
    expected = reference.attention_score(case.k_buffers, case.query_cache, case.batch, 0.7)
    sums = case.log_sums(0.7) + 1
    for attend, each in ((reference.attention_score, case), (twins.attention_score, c)):
        found = attend(each.k_buffers, each.query_cache, each.batch, 0.7, sums.to(each.batch.rows.device))
        assert_same(found, expected / 2, **CLOSE)


def test_store_log_sums_writes_named_rows_only():
    cache = torch.full((3, 9, 4), 7.0, device=DEVICE)
    step = torch.randn(3, 8, 4, device=DEVICE)[:, :5]  # a batch is a part of what there is room for
    twins.store_log_sums(step, torch.tensor([3, 0, 8, 0, 1], device=DEVICE), cache)
    for row, source in ((3, 0), (8, 2), (1, 4)):
        assert torch.equal(cache[:, row], step[:, source])
    assert (cache[:, [0, 2, 4, 5, 6, 7]] == 7.0).all()


def test_store_query_writes_named_rows_only():
    cache = torch.full((9, 4, 5), 7.0, dtype=torch.float16, device=DEVICE)
    wide = torch.randn(5, 40, device=DEVICE)  # queries are a slice of the projection
    q = wide[:, 5:25].view(5, 4, 5)
    twins.store_query(q, torch.tensor([3, 0, 8, 0, 1], device=DEVICE), cache)
    for row, source in ((3, 0), (8, 2), (1, 4)):
        assert torch.equal(cache[row], q[source].half())
    assert (cache[[0, 2, 4, 5, 6, 7]] == 7.0).all()
