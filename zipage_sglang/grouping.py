"""Whether requests that wait for room wait for one more decode step, so that several are admitted at once: integers only."""

from __future__ import annotations

GROUP = 32
"""Requests that run for each one of a full group.

An admission stalls all R that run for s steps; a place that is empty for a step costs 1 / R of a step.  With outputs of L tokens
R / L places come free in a step, and groups of k cost s R / (k L) + (k - 1) / 2R of it: least with k = R * sqrt(2 s / L).
R / 32 is that for s = 2 and L = 4,096, and costs are flat around it.  Where outputs are longer places come free more rarely, and
what is lost by waiting is bounded by `Groups.most`.  With fewer than 64 requests a full group is one: nobody waits for company.
"""


class Groups:
    """One per scheduler.  Decides by step numbers and counts that tensor-parallel ranks have alike."""

    def __init__(self, most: int):
        """most: decode steps without an admission while there may be room; 0: no groups."""
        self.most = most
        self.last = 0  # step of the latest prefill
        self.rows: int | None = None  # requests that fitted when somebody was left waiting for room, None where nobody was
        self.prompt: list[int] | None = None  # of the latest request that was prefilled

    def waits(self, now: int, rows: int, waiting: int) -> bool:
        """Whether room was short at the last look, the latest prefill is no more than so many steps ago, and a full group, or all
        that wait, have no place each yet.  rows: requests that hold KV."""
        if self.rows is None or now - self.last > self.most:
            return False
        group = min(self.rows // GROUP, waiting)
        return group > 1 and self.rows - rows < group

    def looked(self, now: int, prefill: bool, full: bool, rows: int):
        """SGLang has looked whom it can admit.  prefill: this step is one.  full: room was short for somebody who waits.
        rows: requests that hold KV now."""
        if prefill:
            self.last = now
        if not full:
            self.rows = None
        elif prefill or self.rows is None:  # a look in vain says nothing new about how many fit
            self.rows = rows
