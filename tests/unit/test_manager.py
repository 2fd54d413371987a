"""The manager under random arrivals, finishes, aborts and retractions: lengths add up, slots have one owner, no query is lost."""

from hypothesis import settings
from integer_engine import (
    AllWindowsMachine,
    AsynchronousMachine,
    LimitedMachine,
    LongWindowMachine,
    ManagerMachine,
    PassesMachine,
    PressureMachine,
)

MACHINES = (
    ManagerMachine, PressureMachine, LimitedMachine, AsynchronousMachine, PassesMachine, AllWindowsMachine, LongWindowMachine,
)  # fmt: skip
for machine in MACHINES:
    machine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestManager = ManagerMachine.TestCase
TestManagerUnderPressure = PressureMachine.TestCase
TestManagerWithALimit = LimitedMachine.TestCase
TestManagerBesideSteps = AsynchronousMachine.TestCase
TestManagerWithPasses = PassesMachine.TestCase
TestManagerWithAllWindows = AllWindowsMachine.TestCase
TestManagerWithALongWindow = LongWindowMachine.TestCase
