import copy

import pytest
import torch
from triton_cases import DEVICE, assert_same, both

from zipage_kernels import reference
from zipage_kernels import triton as twins
from zipage_kernels.triton import seen

HALF = dict(rtol=2**-7, atol=1e-7)  # the last bit of bf16


@pytest.mark.parametrize(
    "dtype, options",
    [
        (torch.float32, dict(heads=2, group=3, window=3, strided=True)),
        (torch.bfloat16, dict(heads=1, group=5, window=1, head_dim=80)),
        (torch.bfloat16, dict(heads=1, group=7, window=18, head_dim=16)),  # two tiles of queries
    ],
)
@pytest.mark.parametrize("kept", [False, True])
def test_matches_the_reference(kept, dtype, options, monkeypatch):
    monkeypatch.setattr(seen, "SPLIT_ROWS", 32)  # two splits of the longest row
    case, c = both(dtype=dtype, **options)
    case.k_buffers[0][case.slots(2)[5], 0] = torch.nan
    c.k_buffers[0][c.slots(2)[5], 0] = torch.nan
    before = copy.deepcopy(c)
    sums = case.log_sums(0.7) if kept else None
    reference.add_attention(case.k_buffers, case.query_cache, case.tables.seen, case.batch, 0.7, sums)
    twins.add_attention(c.k_buffers, c.query_cache, c.tables.seen, c.batch, 0.7, sums if sums is None else sums.to(DEVICE))
    assert_same(c.tables.seen, case.tables.seen, **HALF)
    assert not torch.equal(c.tables.seen.nan_to_num(-1), before.tables.seen.nan_to_num(-1))
    assert_same(c.tables.importance, before.tables.importance)
