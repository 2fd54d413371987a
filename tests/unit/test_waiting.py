"""Requests that wait for a query slot or a compression: in turn, and not for ever."""

import pytest
from integer_engine import CONFIG, AllWindowsMachine, AsynchronousMachine, LimitedMachine, ManagerMachine, PressureMachine, Request


def finished_in(machine, steps):
    """Steps until each of the machine's requests has been compressed twice."""
    done = {}
    for n in range(steps):
        machine.decode(1)
        machine.lengths_add_up_and_slots_have_one_owner()
        for i, req in enumerate(machine.everybody):
            if i not in done and req.zipage and req.zipage.count == 2:
                done[i] = n
    return done


@pytest.mark.parametrize("kind", [ManagerMachine, LimitedMachine, AsynchronousMachine])
def test_nobody_waits_for_ever(kind):
    """Eight at once for three query slots, which eight need more than all the time: they share them, first come first served."""
    machine = kind()
    machine.everybody = [Request(5, 0) for _ in range(8)]
    machine.batch.reqs = list(machine.everybody)
    done = finished_in(machine, 3 * (CONFIG.cap + CONFIG.block))
    assert len(done) == 8 and not machine.engine.retracted
    shared = 2 * 8 * (CONFIG.window + 1) / 3  # two windows each, and the step in which a slot changes hands
    assert machine.manager.stats.parked >= 5 and max(done.values()) <= CONFIG.cap + shared + CONFIG.block + CONFIG.window


def test_nobody_waits_for_ever_where_all_windows_score():
    """A slot is had for a block; who has had one waits until the others have."""
    machine = AllWindowsMachine()
    config = machine.config
    machine.everybody = [Request(5, 0, config) for _ in range(8)]
    machine.batch.reqs = list(machine.everybody)
    done = finished_in(machine, config.cap + 6 * 3 * (config.block + 1))
    assert len(done) == 8 and not machine.engine.retracted
    # Two blocks each, eight requests on three slots, and the steps in which slots change hands.
    assert machine.manager.stats.parked >= 8 and max(done.values()) <= config.cap + 2 * 3 * (config.block + 2)


def test_who_ends_before_the_next_compression_has_no_slot():
    machine = AllWindowsMachine()
    machine.batch.reqs = [Request(5, 0, machine.config, remaining=20) for _ in range(4)] + [Request(5, 0, machine.config)]
    machine.decode(19)
    assert machine.manager.stats.parked == 0 and machine.manager.slots.used == 1 and machine.manager.stats.passes == 0


def test_requests_that_came_together_wait_once_and_are_spread_out_then():
    machine = ManagerMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(5)]
    machine.decode(CONFIG.cap + 6 * CONFIG.block)
    first = machine.manager.stats.parked
    machine.decode(20 * CONFIG.block)
    assert 2 <= first <= 8 and machine.manager.stats.parked == first


def test_who_waits_first_is_served_first():
    machine = LimitedMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(3)]
    early = machine.batch.reqs[2]
    machine.decode(CONFIG.cap)
    assert [r.zipage.count for r in machine.batch.reqs] == [0, 0, 0]
    early.zipage.parked_at = 1  # it has been waiting
    machine.decode(1)
    assert early.zipage.count == 1 and machine.batch.reqs == [early] and len(machine.manager.parked) == 2
    machine.decode(1)
    assert machine.manager.stats.compressions == 2 and len(machine.batch.reqs) == 2


def test_a_parked_request_that_is_aborted_comes_back_to_end_without_a_slot():
    machine = ManagerMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(4)]
    machine.decode(CONFIG.cap - CONFIG.window + 1)
    (parked,) = machine.manager.parked
    parked.req.ending = True
    machine.decode(1)
    assert parked.req.over and not machine.manager.parked and len(machine.batch.reqs) == 3


def test_rows_that_grow_on_do_not_keep_query_slots_from_others():
    """Under `pressure` a row beyond its trigger holds its slot as long as there is room; three of them hold all there are."""
    machine = PressureMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(8)]
    everybody = list(machine.batch.reqs)
    machine.decode(150)
    assert min(req.decoded for req in everybody) > 75
    assert machine.manager.stats.compressions >= 5 and not machine.engine.retracted


def test_rows_grow_on_as_long_as_there_is_a_slot_for_everybody():
    machine = PressureMachine()
    machine.batch.reqs = [Request(5, 0) for _ in range(3)]
    machine.decode(100)
    assert [req.decoded for req in machine.batch.reqs] == [100] * 3 and machine.manager.stats.compressions == 0
