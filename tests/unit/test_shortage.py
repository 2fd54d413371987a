from hypothesis import given
from hypothesis import strategies as st

from zipage_sglang.pressure import Gain, Shortage, victims

slots = st.integers(-50, 300)
gains = st.lists(st.builds(Gain, st.integers(0, 300), slots, st.just(0)), max_size=8)


def test_nothing_is_compressed_without_a_shortage():
    assert not Shortage(0, None) and not Shortage(-5, -1)
    assert victims([Gain(100, 60)] * 3, Shortage(-5, -1)) == 0


def test_as_few_as_make_room_for_the_first_waiting_request():
    rows = [Gain(132, 100), Gain(92, 60), Gain(42, 10)]
    assert [victims(rows, Shortage(-9, n)) for n in (1, 100, 101, 160, 161, 170)] == [1, 1, 2, 2, 3, 3]


def test_nobody_loses_tokens_for_a_request_that_does_not_fit_anyway():
    assert victims([Gain(132, 100), Gain(92, 60)], Shortage(-9, 161)) == 0


def test_the_next_step_is_made_possible_at_any_price():
    rows = [Gain(40, 8), Gain(32, 0), Gain(32, 0)]
    assert victims(rows, Shortage(41, None)) == 2
    assert victims(rows, Shortage(41, 10**6)) == 2
    assert victims(rows, Shortage(500, None)) == 3


def test_copies_out_of_the_tree_wait_for_their_turn():
    rows = [Gain(40, 8, takes=64), Gain(40, 8, takes=64), Gain(40, 8)]
    assert [victims(rows, Shortage(100, None, free)) for free in (0, 64, 127, 128)] == [1, 1, 1, 3]


def test_a_row_that_costs_room_is_no_reason_to_compress_another():
    assert victims([Gain(1, -1), Gain(0, 1)], Shortage(1, 2)) == 1
    assert victims([Gain(1, -1), Gain(0, 1)], Shortage(1, None)) == 1


@given(gains, slots, st.none() | slots)
def test_enough_and_no_more(rows, now, admission):
    count = victims(rows, Shortage(now, admission))
    assert 0 <= count <= len(rows)
    taken = rows[:count]
    if count < len(rows):
        assert sum(g.now for g in taken) >= now
    if count:
        fewer = taken[:-1]
        possible = sum(max(g.admission, 0) for g in rows) >= (admission or 0)
        assert sum(g.now for g in fewer) < now or possible and sum(g.admission for g in fewer) < (admission or 0)


def test_a_row_for_each_query_slot_that_is_missing():
    rows = [Gain(100, 60, takes=10)] * 4
    assert [victims(rows, Shortage(-5, None, query_slots=n)) for n in (-2, 0, 1, 3, 9)] == [0, 0, 1, 3, 4]
    assert victims(rows, Shortage(-5, None, free=15, query_slots=3)) == 1, "what does not fit comes a step later"
    assert Shortage(-5, None, query_slots=1) and not Shortage(-5, None, query_slots=-1)
