"""Compressions on a stream of their own (`--zipage-async-steps`), and what nobody may have until they are over.

Their requests are parked for a fixed number of steps, because tensor-parallel ranks must agree and none of them may ask a device
whether it is done.  Lengths and rows say at once what they will be; only what the compression still reads or writes, pages and
query slots, is given back later.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, Protocol

import torch


class Segment(NamedTuple):
    """KV slots that a row has no more.  slots: int64 [n], in row order.  start: row index of the first, a page boundary."""

    slots: torch.Tensor
    start: int


class Remains(NamedTuple):
    """What requests have no more once they are compressed.

    locks: of the prefix tree, on rows whose slots a compression reads, until it is over.
    """

    segments: list[Segment]
    locks: list


class Engine(Protocol):
    """What flights need of the serving engine."""

    def mark(self) -> Any: ...
    def wait_for(self, mark): ...
    def free(self, remains: Remains): ...


@dataclasses.dataclass(eq=False)
class Flight:
    """Compressions that were launched together.

    lands: manager step before which they are over.  mark: what the device passes behind them.  remains, query_slots: what they
    hold.
    """

    lands: int
    mark: Any
    remains: Remains
    query_slots: list[int]
    awaited: bool = False


class Flights:
    """Those under way, first launched first."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.aloft: list[Flight] = []

    def launch(self, lands: int, remains: Remains, query_slots: list[int]) -> Flight:
        flight = Flight(lands, self.engine.mark(), remains, query_slots)
        self.aloft.append(flight)
        return flight

    def wait(self, flight: Flight | None):
        """Decode steps, and whatever else is enqueued with them, come after the flight from here on."""
        if flight is not None and not flight.awaited:
            self.engine.wait_for(flight.mark)
            flight.awaited = True

    def land(self, before: int | None = None) -> list[int]:
        """Give back what flights due before this manager step hold, by default all of them; returns the query slots."""
        landed = [f for f in self.aloft if before is None or f.lands <= before]
        for flight in landed:
            self.wait(flight)
            self.engine.free(flight.remains)
        self.aloft = [f for f in self.aloft if f not in landed]
        return [slot for flight in landed for slot in flight.query_slots]

    @property
    def segments(self) -> list[Segment]:
        return [segment for flight in self.aloft for segment in flight.remains.segments]

    @property
    def query_slots(self) -> list[int]:
        return [slot for flight in self.aloft for slot in flight.query_slots]
