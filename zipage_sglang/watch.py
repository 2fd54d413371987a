"""Which running requests need a look at a scheduler step, without asking every one of them at every step."""

from __future__ import annotations

from collections import defaultdict


class Composition:
    """Where each request is in a batch; found anew only when the batch holds other requests than before."""

    def __init__(self):
        self._reqs: list | None = None
        self._index: dict[int, int] = {}

    def changed(self, reqs: list) -> bool:
        """Whether the batch holds other requests, or in another order, than at the last call."""
        if reqs == self._reqs:  # a comparison of addresses: a microsecond or two for hundreds
            return False
        self._reqs = list(reqs)
        self._index = {id(req): i for i, req in enumerate(reqs)}
        return True

    def forget(self):
        """The next batch counts as changed, whatever it holds."""
        self._reqs = None

    def index(self, req) -> int | None:
        """The request's batch row, None if it is not in the batch that `changed` last saw."""
        return self._index.get(id(req))


class Watch:
    """Looks are booked by step number.  A row grows by at most one token a step, so a request whose next event is n tokens
    away need not be looked at for n steps; one that was held up meanwhile is found early and booked again."""

    def __init__(self):
        self.now = 0
        self._booked: dict[int, dict] = defaultdict(dict)  # {step: {identity: (request, state)}}

    def book(self, req, state, steps: int):
        """Look at the request in `steps` steps (at least one); its earlier booking is void."""
        state.look_at = self.now + max(1, steps)
        self._booked[state.look_at][id(state)] = (req, state)  # once, should it come back to a step it was moved away from

    def due(self) -> list:
        """The next step begins: (request, state) of all that must be looked at now."""
        self.now += 1
        return [(req, state) for req, state in self._booked.pop(self.now, {}).values() if state.look_at == self.now]
