"""Windows of w that follow one another score as one window of all their tokens."""

import copy
import dataclasses

import pytest
import torch
from kernel_cases import MIXED, Request, make_case
from test_kernels_attention import naive_attention
from test_pipeline import buffers_of

from zipage_kernels import ops
from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import compress, score
from zipage_sglang.policies import make_policy

HALF = dict(rtol=2**-7, atol=1e-7)  # the last bit of bf16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_matches_the_formula(dtype):
    case = make_case(MIXED, dtype=dtype)
    before = case.tables.seen.clone()
    ops.add_attention(case.k_buffers, case.query_cache, case.tables.seen, case.batch, 0.7)
    touched = torch.zeros(before.shape[1], dtype=torch.bool)
    for r, request in enumerate(case.requests):
        slots = case.slots(r)
        touched[slots] = True
        for layer in range(2):
            for head in range(2):
                expected = torch.tensor(naive_attention(case, r, layer, head, 0.7))
                expected[: request.seen] += before[layer, slots[: request.seen], head].float()
                torch.testing.assert_close(case.tables.seen[layer, slots, head].float(), expected, **HALF)
    assert torch.equal(case.tables.seen[:, ~touched].nan_to_num(-1), before[:, ~touched].nan_to_num(-1))


def test_three_windows_are_one():
    """Down to what is kept: of two windows' sums and the last one, as of one window three times as long."""
    request = Request(kv_len=60, start=4, evicted=20, stored=30, keep=30, count=3)
    one = make_case([request], window=18, seed=6)
    three, w, rows = copy.deepcopy(one), 6, one.batch.query_rows
    for n in range(3):
        end = request.kv_len - (2 - n) * w
        counts = dict(kv_lens=[end], query_rows=rows[:, n * w : (n + 1) * w], seen=[end - 4 - w if n else 0], windows=[n])
        batch = dataclasses.replace(three.batch, **counts)
        if n < 2:
            score(batch, buffers_of(three))
    config = ZipageConfig(budget=30, block=26, window=6, recency=0.5, passes=3)
    found = compress(batch, buffers_of(three), make_policy(config), config)
    wanted = compress(one.batch, buffers_of(one), make_policy(config), config)
    assert torch.equal(found.keep, wanted.keep) and not wanted.nan_counts.any()
    slots = one.slots(0)[:30]
    assert torch.equal(three.tables.positions[:, slots], one.tables.positions[:, slots])
    torch.testing.assert_close(three.tables.importance[:, slots].float(), one.tables.importance[:, slots].float(), rtol=2**-6, atol=0)
    only_last = copy.deepcopy(one)  # it matters
    last = compress(dataclasses.replace(batch, seen=[0], windows=[0]), buffers_of(only_last), make_policy(config), config)
    assert not torch.equal(last.keep, wanted.keep)
