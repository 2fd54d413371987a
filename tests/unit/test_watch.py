"""Looks that are booked for a later step."""

from integer_engine import CONFIG

from zipage_sglang.state import RequestState
from zipage_sglang.watch import Watch


def test_the_last_booking_counts():
    watch, state = Watch(), RequestState(start=0, prefill_len=0, config=CONFIG)
    watch.book("r", state, 2)
    watch.book("r", state, 3)
    assert [watch.due() for _ in range(4)] == [[], [], [("r", state)], []]


def test_a_booking_that_comes_back_to_its_first_step_is_one_look():
    watch, state = Watch(), RequestState(start=0, prefill_len=0, config=CONFIG)
    for steps in (3, 1, 3):
        watch.book("r", state, steps)
    assert [watch.due() for _ in range(3)] == [[], [], [("r", state)]]
