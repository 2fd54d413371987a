"""The oracle's scoring steps against hand-computed cases and loops that follow the formulas entry by entry."""
import math

import pytest
import torch

from oracle import scoring

INF = float("inf")


def random_positions(heads, count, generator, span=1000):
    return torch.stack([torch.randperm(span, generator=generator)[:count] for _ in range(heads)])


def test_attention_score_by_hand():
    # One KV head, two query heads, D = 1, scale 1. Rows: prefix, two candidates; window of 2, so the first window query
    # sees rows 0 and 1 and the second sees all three. Logits are logs of small integers.
    log = math.log
    keys = torch.tensor([[[log(2.0)], [0.0], [log(4.0)]]])
    queries = torch.tensor([[[1.0], [0.0]], [[1.0], [-1.0]]])
    # query 0: head 0 (2, 1, -)/3, head 1 (1, 1, -)/2; query 1: head 0 (2, 1, 4)/7, head 1 (1/2, 1, 1/4)/1.75 = (2, 4, 1)/7
    expected = torch.tensor([[(2 / 3 + 2 / 7) / 2, (1 / 2 + 4 / 7) / 2, (0 + 4 / 7) / 2]])
    torch.testing.assert_close(scoring.attention_score(queries, keys, 1.0), expected)


def test_attention_score_entry_by_entry():
    generator = torch.Generator().manual_seed(0)
    window, heads, group, rows, dim, scale = 3, 2, 2, 7, 4, 0.5
    queries = torch.randn(window, heads * group, dim, generator=generator)
    keys = torch.randn(heads, rows, dim, generator=generator)
    expected = torch.zeros(heads, rows)
    for head in range(heads):
        for i in range(window):
            seen = rows - window + i + 1
            for j in range(seen):
                shares = []
                for q in queries[i, head * group : (head + 1) * group]:
                    exp = [math.exp(float(q @ keys[head, row]) * scale) for row in range(seen)]
                    shares.append(exp[j] / sum(exp))
                expected[head, j] += max(shares) / window
    torch.testing.assert_close(scoring.attention_score(queries, keys, scale), expected)


def test_global_score_uses_the_stored_value_of_survivors_only():
    attention = torch.tensor([[0.1, 0.1, 0.1, 0.1]])
    previous = torch.tensor([[0.5, 0.05]]).bfloat16()
    expected = [0.8 * 0.5, 0.1, 0.1, 0.1]
    torch.testing.assert_close(scoring.global_score(attention, previous, 0.8)[0], torch.tensor(expected))
    assert torch.equal(scoring.global_score(attention, previous, 0.0), attention)
    assert torch.equal(scoring.global_score(attention, previous[:, :0], 0.8), attention)


def test_pooling_goes_by_position_not_by_row():
    # In position order 1, 3, 4, 5, 8, 9, 12 the scores are 7 0 0 0 5 1 2: gaps in the positions do not matter.
    positions = torch.tensor([[9, 1, 3, 4, 12, 5, 8]])
    scores = torch.tensor([[1.0, 7, 0, 0, 2, 0, 5]])
    by_position = {1: 7, 3: 7, 4: 7, 5: 5, 8: 5, 9: 5, 12: 5}
    assert scoring.max_pool(scores, positions)[0].tolist() == [by_position[p] for p in positions[0].tolist()]
    negative = torch.tensor([[-1.0, -7, -3, -4, -2, -5, -8]])
    assert (scoring.max_pool(negative, positions) < 0).all()  # the padding is -inf, not 0


def test_redundancy_by_hand():
    # Keys 0, 1, 2 are the same direction, key 3 is orthogonal, key 4 is opposite to key 0. The latest of the similar
    # group by POSITION is row 1: columns 0 and 2 lose their row-1 entry, column 1 loses its latest other one, row 2.
    keys = torch.tensor([[[1.0, 0], [3, 0], [2, 0], [0, 5], [-4, 0]]])
    positions = torch.tensor([[10, 30, 20, 40, 50]])
    # rows:  0: cols 1, 2, 4 = 1 + 1 - 1; 1: col 4 = -1; 2: cols 0, 4 = 1 - 1 (its col 1 is zeroed); 3: 0; 4: -1 * 3
    sums = torch.tensor([[1.0, -1, 0, 0, -3]])
    for mode, divisor in (("flash", 0.4 * 5), ("lightning", 0.4 * 8)):
        got = scoring.redundancy(keys, positions, 8, 0.4, mode)
        torch.testing.assert_close(got, (sums / divisor).softmax(-1))


@pytest.mark.parametrize("mode", ["lightning", "flash"])
def test_redundancy_entry_by_entry(mode):
    generator = torch.Generator().manual_seed(1)
    heads, count, dim, block, tau = 2, 11, 3, 4, 0.7
    keys = torch.randn(heads, count, dim, generator=generator)
    positions = random_positions(heads, count, generator)
    span = block if mode == "lightning" else count
    expected = torch.zeros(heads, count)
    for head in range(heads):
        for n in range(count):
            column = {}
            for m in range(count):
                if m != n and m // span == n // span:
                    a, b = keys[head, m], keys[head, n]
                    column[m] = float(a @ b / (a.norm() * b.norm()))
            similar = [m for m, value in column.items() if value > 0.5]
            if similar:
                column[max(similar, key=lambda m: int(positions[head, m]))] = 0.0
            for m, value in column.items():
                expected[head, m] += value / (tau * span)
    torch.testing.assert_close(scoring.redundancy(keys, positions, block, tau, mode), expected.softmax(-1))


def test_exactly_half_is_not_similar():
    keys = torch.tensor([[[1.0, 0, 0, 0], [1, 1, 1, 1]]])  # cosine 1/2, exactly representable
    got = scoring.redundancy(keys, torch.tensor([[0, 1]]), 2, 1.0, "flash")
    assert torch.equal(got, torch.tensor([[0.5, 0.5]]))
    keys = torch.tensor([[[1.0, 0, 0, 0], [1, 1, 1, 1], [9, 0, 0, 0]]])
    got = scoring.redundancy(keys, torch.tensor([[0, 1, 2]]), 3, 1.0, "flash")  # 0 and 2: one entry zeroed per column
    torch.testing.assert_close(got, (torch.tensor([[0.5, 1.0, 0.5]]) / 3).softmax(-1))


def test_random_score_is_the_32_bit_hash():
    def mix(x):
        x ^= x >> 16
        x = x * 0x7FEB352D % 2**32
        x ^= x >> 15
        x = x * 0x846CA68B % 2**32
        return x ^ (x >> 16)

    for seed, layer, count in ((0, 0, 0), (2**32 - 1, 35, 7), (2**33 + 5, 1, 2)):
        positions = torch.tensor([[0, 1, 77, 16383], [5, 4, 3, 2]])
        got = scoring.random_score(seed, layer, positions, count)
        for head in range(2):
            for i, position in enumerate(positions[head].tolist()):
                h = mix(mix(mix(mix(mix(seed % 2**32) ^ layer) ^ head) ^ count) ^ position)
                assert got[head, i].item() == (h >> 8) / 2**24


def test_select_order_ties_nan_and_forced():
    positions = torch.tensor([[10, 11, 12, 13, 14, 15]])
    none = torch.zeros(1, 6, dtype=torch.bool)

    def kept(scores, forced, budget):
        return positions[scoring.select(torch.tensor([scores]), positions, forced, budget)[0]].tolist()

    assert kept([1.0, 5, 1, 1, 0, 4], none, 3) == [11, 13, 15]  # of the ties, the latest
    assert kept([1.0, math.nan, -INF, 1, 0, 4], none, 5) == [10, 12, 13, 14, 15]  # NaN ties with -inf
    assert kept([math.nan] * 6, none, 2) == [14, 15]
    forced = scoring.forced(positions, 16, 2, 11)
    assert forced.tolist() == [[True, False, False, False, True, True]]
    assert kept([math.nan, 9.0, 2, 3, -INF, 0], forced, 4) == [10, 11, 14, 15]
    _, gap = scoring.select(torch.tensor([[1.0, 5, 1.5, 1, 0, 4]]), positions, none, 3)
    assert gap.tolist() == [0.5]


def test_select_matches_a_python_sort_per_head():
    generator = torch.Generator().manual_seed(2)
    positions = random_positions(3, 40, generator)
    scores = torch.randint(0, 6, (3, 40), generator=generator).float()
    keep, _ = scoring.select(scores, positions, torch.zeros(3, 40, dtype=torch.bool), 17)
    for head in range(3):
        pairs = sorted(zip(scores[head].tolist(), positions[head].tolist()), reverse=True)[:17]
        assert sorted(positions[head][keep[head]].tolist()) == sorted(position for _, position in pairs)


def test_recent_count():
    assert scoring.recent_count(16, 0.5, 2048) == 1024
    assert scoring.recent_count(16, 0.0, 2048) == 16
    assert scoring.recent_count(4, 0.3, 33) == 9


def test_fill_holes_pairs_tail_survivors_with_holes_in_row_order():
    keep = torch.tensor([1, 0, 0, 1, 0, 1, 1, 0, 1], dtype=torch.bool)
    source, hole = scoring.fill_holes(keep, 5)
    assert (source.tolist(), hole.tolist()) == ([5, 6, 8], [1, 2, 4])
