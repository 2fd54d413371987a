import pytest
import torch
from kernel_cases import Request
from triton_cases import DEVICE, REQUESTS, assert_same, both, memory, positions_of

from zipage_kernels import reference
from zipage_kernels import triton as twins
from zipage_kernels.triton.layers import layer_table


def random_keep(case, seed=2):
    keep = torch.zeros(positions_of(case).shape, dtype=torch.bool)
    rng = torch.Generator().manual_seed(seed)
    for r, n in enumerate(case.batch.num_candidates):
        for row in keep[r].flatten(0, 1):
            row[torch.randperm(n, generator=rng)[: case.requests[r].keep]] = True
    return keep


def check(case, c, keep, importance):
    positions = positions_of(case)
    device = c.batch.rows.device
    reference.compact(case.k_buffers, case.v_buffers, case.tables, case.batch, keep, positions, importance)
    on_device = None if importance is None else importance.to(device)
    twins.compact(c.k_buffers, c.v_buffers, c.tables, c.batch, keep.to(device), positions.to(device), on_device)
    for ours, wanted in zip(memory(c), memory(case), strict=True):
        assert_same(ours, wanted)


@pytest.mark.parametrize("dtype, strided", [(torch.float32, True), (torch.bfloat16, False)])
def test_compact(dtype, strided):
    case, c = both(dtype=dtype, strided=strided, heads=3)
    keep = random_keep(case)
    importance = torch.rand(keep.shape, generator=torch.Generator().manual_seed(4))
    importance[0, 0, 0, 0] = torch.nan
    importance[1, 0, 0, :4] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 3e38])
    check(case, c, keep, importance)


def test_compact_without_importance():
    case, c = both()
    check(case, c, random_keep(case), None)


@pytest.mark.parametrize("kept", [[0, 1, 2], [37, 38, 39], [0, 20, 39], [1, 3, 30]])
def test_which_hole_gets_which_survivor(kept):
    case, c = both([Request(kv_len=42, start=2, keep=3)], layers=1, heads=1)
    keep = torch.zeros(1, 1, 1, 40, dtype=torch.bool)
    keep[..., kept] = True
    check(case, c, keep, torch.rand(keep.shape))


def test_nothing_to_move():
    case, c = both([Request(kv_len=9, keep=9), Request(kv_len=6, keep=0)], layers=1, heads=1)
    check(case, c, random_keep(case), torch.rand(2, 1, 1, 9))


def test_more_moves_than_one_program_makes():
    case, c = both([Request(kv_len=150, keep=70)], layers=1, heads=1)
    keep = torch.zeros(1, 1, 1, 150, dtype=torch.bool)
    keep[..., 80:] = True
    check(case, c, keep, torch.rand(keep.shape))


@pytest.mark.parametrize("importance", [True, False])
def test_copy_slots(importance):
    case, c = both(strided=True)
    src, dst = case.batch.rows[2, list(range(2, 40))], case.batch.rows[:2, :19].flatten()
    for each in (case, c):
        if not importance:
            each.tables.importance = None
    device = c.batch.rows.device
    reference.copy_slots(case.k_buffers, case.v_buffers, case.tables, src, dst)
    twins.copy_slots(c.k_buffers, c.v_buffers, c.tables, src.to(device), dst.to(device))
    for ours, wanted in zip(memory(c)[: 6 if importance else 5], memory(case), strict=False):
        assert_same(ours, wanted)


def test_gather():
    case, c = both(heads=3)
    assert_same(twins.gather_positions(c.tables.positions, c.batch), positions_of(case))
    expected = reference.gather_importance(case.tables.importance, case.batch)
    assert_same(twins.gather_importance(c.tables.importance, c.batch), expected)


@pytest.mark.parametrize("kernel_size", [3, 5])
def test_max_pool(kernel_size):
    case, c = both()
    positions = positions_of(case)
    scores = torch.randn(positions.shape, generator=torch.Generator().manual_seed(3))
    scores[0, 0, 0, 5] = torch.nan
    expected = reference.max_pool(scores, positions, kernel_size)
    device = c.batch.rows.device
    assert_same(twins.max_pool(scores.to(device), positions.to(device), kernel_size), expected)


def test_layers_must_be_alike():
    _, c = both(REQUESTS[:1])
    with pytest.raises(ValueError, match="all layers"):
        layer_table([c.k_buffers[0], c.k_buffers[1][:, :1]])
    with pytest.raises(ValueError, match="contiguous"):
        layer_table([buffer.transpose(1, 2) for buffer in c.k_buffers])


def test_gather_rows():
    rng = torch.Generator().manual_seed(3)
    table = torch.randint(0, 2**31 - 1, (6, 1500), dtype=torch.int32, generator=rng)
    index, kv_lens = (torch.tensor(v, dtype=torch.int32) for v in ([5, -1, 0, 2], [1100, 9, 1, 1500]))
    outs = [torch.full((4, 1500), -1) for _ in range(2)]
    reference.gather_rows(table, index, kv_lens, outs[0])
    on_device = [t.to(DEVICE) for t in (table, index, kv_lens, outs[1])]
    twins.gather_rows(*on_device)
    assert_same(on_device[-1], outs[0])
