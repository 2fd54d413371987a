"""Who has which query slot, and where the queries of the next decode step belong."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from zipage_sglang.runtime import Runtime
from zipage_sglang.state import NO_SLOT, RequestState
from zipage_sglang.watch import Composition


class Engine(Protocol):
    """What query slots need of the serving engine."""

    def kv_len(self, req) -> int: ...


class QuerySlots:
    """Gives out the runtime's query slots and knows the row of the query cache for each request of a decode step.

    free: slots that nobody has, the next one last.
    """

    def __init__(self, runtime: Runtime, engine: Engine):
        self.runtime, self.engine = runtime, engine
        # Lowest slot first, so that ranks with equal histories hand out equal slots.
        self.free = list(range(runtime.slots - 1, -1, -1))
        self._holders: list[tuple[Any, RequestState]] = []  # requests that have, or until lately had, a slot
        self._batch = Composition()
        self._stale = True  # somebody got or lost a slot since the last step
        self._index = self._first = self._place = np.zeros(0, dtype=np.int64)

    @property
    def used(self) -> int:
        return self.runtime.slots - len(self.free)

    def give(self, req, state: RequestState) -> bool:
        """Whether the request has a slot now."""
        if state.slot == NO_SLOT:
            if not self.free:
                return False
            state.slot = self.free.pop()
            self._holders.append((req, state))
            self._stale = True
        return True

    def take(self, state: RequestState) -> list[int]:
        """The request has no slot from here on; returns the one that it had, which is not free yet, or nothing."""
        slots = [state.slot] if state.slot != NO_SLOT else []
        state.slot, self._stale = NO_SLOT, True
        return slots

    def give_back(self, state: RequestState):
        """The request's slot, if it has one, is free from here on."""
        self.free += self.take(state)

    def rows(self, reqs: list) -> tuple[np.ndarray, np.ndarray]:
        """Batch rows of the decode step that has just been planned, and the query cache row for each; int64 [n].

        To be asked once for each step.  Every request of a step grows by one token, so that rows advance by one, round the ring
        of their slot, unless the batch or a slot's owner has changed.
        """
        if self._batch.changed(reqs) or self._stale:
            self._find()
        else:
            self._place = (self._place + 1) % self.runtime.window
        return self._index, self._first + self._place

    def _find(self):
        self._holders = [(req, state) for req, state in self._holders if state.slot != NO_SLOT]
        found = [(row, state.slot, self.engine.kv_len(req) + state.evicted - 1)
                 for req, state in self._holders if (row := self._batch.index(req)) is not None]
        self._index, slots, positions = np.array(found, dtype=np.int64).reshape(-1, 3).T
        self._first = self.runtime.query_row(slots, 0)
        self._place = positions % self.runtime.window
        self._stale = False
