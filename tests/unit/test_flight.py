"""Compressions beside the decode steps on a device that is done with one only when somebody waits for it: as late as it may be."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from integer_engine import CONFIG, AsynchronousMachine, LongWindowMachine, Request

from zipage_sglang.flight import Flights


def late(machine) -> type[AsynchronousMachine]:
    """The machine's engine passes a mark when it is waited for.  Until then nobody whose row it changes may be decoded."""

    class Late(machine):
        def __init__(self):
            super().__init__()
            self.marks, rows = {}, self.manager.slots.rows

            def of_the_next_step(reqs):
                for req in reqs:
                    assert self.marks.get(id(req), (req, 0))[1] <= self.engine.passed, "decoded before its compression is over"
                return rows(reqs)

            self.manager.slots.rows = of_the_next_step

        def check_and_enqueue(self, jobs, snapshot, scoring):
            mark = self.engine.enqueued + 1  # the one that will be behind this
            for job in jobs:
                req, _ = self.queries[job.query_rows[0]]
                self.marks[id(req)] = req, mark
            super().check_and_enqueue(jobs, snapshot, scoring)

    Late.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
    return Late


TestLateCompressions = late(AsynchronousMachine).TestCase
TestLateCompressionsOfWholeBlocks = late(LongWindowMachine).TestCase


@pytest.mark.parametrize("kind", [AsynchronousMachine, LongWindowMachine])
@pytest.mark.parametrize("over", [False, True])
def test_who_is_aborted_meanwhile_waits(kind, over):
    """Aborted, it comes back to end, once its compression is over; so do its pages if the step in flight was its last."""
    machine = late(kind)()
    req = Request(5, 0, machine.configured(CONFIG))
    machine.batch.reqs = [req, Request(9, 0, machine.configured(CONFIG))]
    while not machine.manager.parked:
        machine.decode(1)
    assert (item := machine.manager.parked[0]).req is req and item.state.flight.mark > machine.engine.passed
    if over:
        machine.end(req)
    else:
        req.ending = True
        machine.decode(1)
    assert req.over and machine.engine.passed == 1


class Device:
    """Marks are passed in the order in which somebody waits for them; the engine of `Flights`."""

    def __init__(self):
        self.enqueued, self.passed, self.freed, self.waits = 0, set(), [], []

    def mark(self):
        self.enqueued += 1
        return self.enqueued

    def wait_for(self, mark):
        self.waits.append(mark)
        self.passed.add(mark)

    def free(self, remains):
        assert remains in self.passed, "freed before it is over"
        self.freed.append(remains)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["launch", "wait", "land", "later"]), st.integers(0, 5)), max_size=30))
def test_what_a_flight_holds_is_given_back_once_and_after_it(events):
    device = Device()
    flights, launched, slots, now = Flights(device), [], [], 0
    for event, n in events:
        now += event == "later"
        if event == "launch":
            launched.append(flights.launch(now + n, device.enqueued + 1, [len(launched)]))
        elif event == "wait" and launched:
            flights.wait(launched[n % len(launched)])
        elif event == "land":
            slots += flights.land(now)
            assert all((flight.lands <= now) == (flight.mark in device.freed) for flight in launched)
    assert sorted(slots + flights.query_slots) == list(range(len(launched))) and len(device.freed) == len(slots)
    slots += flights.land()  # idle: all of them, however late
    assert sorted(device.freed) == [flight.mark for flight in launched] and not flights.aloft
    assert sorted(device.waits) == sorted(set(device.waits)), "waited for twice"
