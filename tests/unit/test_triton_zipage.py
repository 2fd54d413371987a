import copy

import pytest
import torch
from kernel_cases import Request
from triton_cases import REQUESTS, add_duplicates, assert_same, both, memory, positions_of, to_device

from zipage_kernels import ops, reference
from zipage_kernels import triton as twins
from zipage_kernels.triton import fused, zipage
from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import KVBuffers, compress
from zipage_sglang.policies import make_policy


def check(case, block, redundancy="lightning", pooling="once", kept=False):
    sums = case.log_sums(0.7) if kept else None
    knobs = dict(scale=0.7, alpha=0.35, lam=0.6, tau=0.3, block=block, redundancy=redundancy, pooling=pooling)
    positions = positions_of(case)
    c = to_device(case)
    expected = reference.zipage_score(case.k_buffers, case.query_cache, case.tables, case.batch, positions, log_sums=sums, **knobs)
    actual = twins.zipage_score(
        c.k_buffers, c.query_cache, c.tables, c.batch, positions.to(c.batch.rows.device),
        log_sums=sums if sums is None else sums.to(c.batch.rows.device), **knobs,
    )  # fmt: skip
    for ours, wanted in zip(actual, expected, strict=True):
        real = positions >= 0
        assert_same(ours.cpu()[real], wanted[real], rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(
    "dtype, block, kept", [(torch.float32, 7, True), (torch.float32, 40, False), (torch.bfloat16, 33, False), (torch.bfloat16, 33, True)]
)
def test_blocks_on_chip(dtype, block, kept):
    """One tile and two; the second request's candidates are not in position order."""
    case, c = both(heads=1, dtype=dtype, strided=True, head_dim=24)
    assert fused.fits(c.k_buffers[0], c.batch, block)
    add_duplicates(case)
    check(case, block, kept=kept)


def test_blocks_that_do_not_fit():
    case, c = both(REQUESTS[1:], layers=1, heads=1)
    assert not fused.fits(c.k_buffers[0], c.batch, 70)
    check(case, 70)
    check(case, 70, kept=True)


@pytest.mark.parametrize("redundancy, pooling", [("flash", "always"), ("none", "once"), ("lightning", "never")])
def test_other_settings(redundancy, pooling):
    case, _ = both(heads=1)
    check(case, 11, redundancy, pooling)


@pytest.mark.parametrize("pooling", ["once", "never"])
def test_more_candidates_than_are_read_together(monkeypatch, pooling):
    monkeypatch.setattr(zipage, "chunks", lambda candidates: 0)
    monkeypatch.setattr(zipage, "CHUNK", 16)
    case, _ = both(heads=1)
    check(case, 11, pooling=pooling)


def test_all_equal_keys():
    case, _ = both([Request(kv_len=40, evicted=9, stored=20, keep=3, count=1)], layers=1, heads=1)
    case.k_buffers[0][case.slots(0)] = 1.5
    check(case, 40)


def test_nan_key_spoils_its_own_request_and_head():
    case, _ = both(REQUESTS[:2], layers=1)
    case.k_buffers[0][case.slots(0)[3], 1] = torch.nan
    check(case, 7)


def test_whole_compression(monkeypatch):
    """The pipeline on the kernels and on the reference: the same survivors, memory and NaN counts."""
    requests = tuple(Request(**(vars(request) | dict(keep=8))) for request in REQUESTS)
    case, c = both(requests, seed=11)
    for each in (case, c):
        each.query_cache[0, case.batch.query_rows[2, 0], 0] = torch.nan
    config = ZipageConfig(budget=8, block=5, window=3, recency=0.5)

    def run(case):
        t = case.tables
        buffers = KVBuffers(case.k_buffers, case.v_buffers, case.query_cache, t.positions, t.importance, 0.7, seen=t.seen)
        return compress(case.batch, buffers, make_policy(config), config)

    expected = run(case)
    for name in ("gather_positions", "zipage_score", "select_forced", "compact"):
        monkeypatch.setattr(ops, name, getattr(twins, name))
    before = copy.deepcopy(c)
    result = run(c)
    assert_same(result.keep, expected.keep)
    assert_same(result.nan_counts, expected.nan_counts)
    assert result.nan_counts[2] > 0
    for ours, wanted, old in zip(memory(c), memory(case), memory(before), strict=True):
        if ours.dtype == torch.bfloat16:  # of F: its last bit, where two ways of adding round apart
            assert_same(ours, wanted, rtol=2**-7, atol=0)
        else:
            assert_same(ours, wanted)
        assert not torch.equal(ours, old)
