import naive
import torch
from kernel_cases import MIXED, make_case

from zipage_kernels import ops


def test_matches_the_loop_on_a_mixed_batch():
    case = make_case(MIXED)
    positions = ops.gather_positions(case.tables.positions, case.batch)
    scores = torch.randn(positions.shape, generator=torch.Generator().manual_seed(3))
    scores[positions < 0] = torch.nan  # whatever padding holds is ignored
    pooled = ops.max_pool(scores, positions)
    for r, n in enumerate(case.batch.num_candidates):
        assert (pooled[r, :, :, n:] == -torch.inf).all()
        for layer in range(2):
            for head in range(2):
                expected = naive.pool(
                    scores[r, layer, head, :n].tolist(), positions[r, layer, head, :n].tolist()
                )
                assert pooled[r, layer, head, :n].tolist() == expected


def test_neighbours_are_by_position_not_by_row():
    """Rows 0 and 3 are far apart in the row and neighbours in position; holes between positions do not count."""
    positions = torch.tensor([50, 7, 90, 51, 8, 9, 1000, 2000]).int().view(1, 1, 1, 8)
    scores = torch.tensor([5.0, 0, 0, 0, 0, 0, 0, 0]).view(1, 1, 1, 8)
    # position order: 7 8 9 50 51 90 1000 2000; 50 reaches 8, 9, 51 and 90.
    assert ops.max_pool(scores, positions).flatten().tolist() == [5.0, 0.0, 5.0, 5.0, 5.0, 5.0, 0.0, 0.0]


def test_borders_are_minus_infinity_not_zero():
    scores = torch.tensor([-3.0, -4.0, -5.0]).view(1, 1, 1, 3)
    positions = torch.arange(3).int().view(1, 1, 1, 3)
    assert ops.max_pool(scores, positions).flatten().tolist() == [-3.0, -3.0, -3.0]


def test_kernel_size():
    scores = torch.tensor([0.0, 0, 0, 9, 0, 0, 0]).view(1, 1, 1, 7)
    positions = torch.arange(7).int().view(1, 1, 1, 7)
    assert ops.max_pool(scores, positions, 3).flatten().tolist() == [0.0, 0, 9, 9, 9, 0, 0]
