import torch
from kernel_cases import GARBAGE, MIXED, make_case

from zipage_kernels import ops


def test_positions_come_from_the_table_then_from_the_row():
    case = make_case(MIXED, layers=3)
    positions = ops.gather_positions(case.tables.positions, case.batch)
    assert positions.dtype == torch.int32 and positions.shape == (4, 3, 2, 30)
    for r, request in enumerate(MIXED):
        for layer in range(3):
            for head in range(2):
                expected = []
                for j, slot in enumerate(case.slots(r)):
                    fresh = request.start + j + request.evicted
                    stored = case.tables.positions[layer, slot, head].item()
                    expected.append(stored if j < request.stored else fresh)
                expected += [-1] * (30 - len(expected))
                assert positions[r, layer, head].tolist() == expected
    assert positions.max() < GARBAGE


def test_positions_of_a_request_are_distinct():
    """The case builder's own promise, which every tie rule relies on."""
    case = make_case(MIXED)
    positions = ops.gather_positions(case.tables.positions, case.batch)
    for r, n in enumerate(case.batch.num_candidates):
        for row in positions[r, :, :, :n].flatten(0, 1):
            assert len(set(row.tolist())) == n


def test_importance_of_survivors_only():
    case = make_case(MIXED, heads=3)
    importance = ops.gather_importance(case.tables.importance, case.batch)
    assert importance.dtype == torch.float32 and importance.shape == (4, 2, 3, 30)
    for r, request in enumerate(MIXED):
        for layer in range(2):
            for head in range(3):
                stored = case.slots(r)[: request.stored]
                expected = [case.tables.importance[layer, slot, head].item() for slot in stored]
                expected += [0.0] * (30 - len(expected))
                assert importance[r, layer, head].tolist() == expected


def test_rows_are_zero_behind_their_ends():
    table = torch.arange(50, dtype=torch.int32).view(5, 10)
    out = torch.full((3, 8), 7)
    ops.gather_rows(table, torch.tensor([4, -1, 0], dtype=torch.int32), torch.tensor([3, 5, 8], dtype=torch.int32), out)
    assert out.tolist() == [[40, 41, 42, 0, 0, 0, 0, 0], [0] * 8, list(range(8))]
