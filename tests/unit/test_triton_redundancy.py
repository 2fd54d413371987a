import pytest
import torch
from kernel_cases import Request
from triton_cases import add_duplicates, assert_same, both, positions_of, to_device

from zipage_kernels import reference
from zipage_kernels import triton as twins


def check(case, block, mode, **more):
    positions = positions_of(case)
    c = to_device(case)
    expected = reference.redundancy(case.k_buffers, case.batch, positions, block, 0.4, mode, **more)
    actual = twins.redundancy(
        c.k_buffers, c.batch, positions.to(c.batch.rows.device), block, 0.4, mode, **more
    )
    assert_same(actual, expected, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "mode, block, dtype", [("lightning", 7, torch.float32), ("lightning", 40, torch.bfloat16), ("flash", 0, torch.float32)]
)
def test_duplicate_keys(mode, block, dtype):
    case, _ = both(heads=1, dtype=dtype, strided=True, head_dim=24)
    add_duplicates(case)
    check(case, block, mode)


def test_all_equal_keys():
    case, _ = both([Request(kv_len=40, evicted=9, stored=20, keep=3, count=1)], layers=1, heads=1)
    case.k_buffers[0][case.slots(0)] = 1.5
    check(case, 0, "flash")


def test_threshold():
    case, _ = both([Request(kv_len=20, keep=3)], layers=1, heads=1, head_dim=2)
    check(case, 0, "flash", threshold=0.9)
    check(case, 0, "flash", threshold=0.0)


def test_unknown_mode_is_refused():
    case, c = both(layers=1)
    with pytest.raises(ValueError, match="'none'"):
        twins.redundancy(c.k_buffers, c.batch, positions_of(case), 7, 0.4, "none")
