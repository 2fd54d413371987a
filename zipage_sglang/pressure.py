"""How many rows to compress when memory or query slots are short, and none when they are not: pure functions of integers."""

from __future__ import annotations

from typing import NamedTuple


ADMISSION_STEPS = 4  # between two looks at what the first waiting request lacks, which takes a look at every request that runs


class Shortage(NamedTuple):
    """What is missing, 0 or less where nothing is; in KV slots but for the last.

    now: for the tokens of the next decode step.  admission: for the first waiting request, on top of what running requests have
    reserved; None when nobody waits, or when memory is not what keeps it waiting.  free: slots to be had.
    query_slots: of requests that come near their trigger, and that rows beyond theirs hold.
    """

    now: int
    admission: int | None
    free: int = 1 << 40
    query_slots: int = 0

    def __bool__(self) -> bool:
        return self.now > 0 or (self.admission or 0) > 0 or self.query_slots > 0


class Gain(NamedTuple):
    """KV slots that compressing a row yields: now, and for admission, after what the row will grow to again is reserved; and
    those that it takes before it yields any, to copy out what the prefix tree owns."""

    now: int
    admission: int
    takes: int = 0


def victims(gains: list[Gain], shortage: Shortage) -> int:
    """How many of the first rows to compress (gains in the order of preference).

    What is missing now is found at any price, query slots (one a row) included.  For a waiting request nobody loses tokens in
    vain: rows are compressed only if they make room for all of it.  Rows of one step give back after all of them have taken,
    so what does not fit comes a step later.
    """
    now, admission = shortage.now, shortage.admission or 0
    waits = 0 < admission <= sum(max(gain.admission, 0) for gain in gains)
    count, free = 0, shortage.free
    while count < len(gains) and (
        now > 0 or count < shortage.query_slots or (waits and admission > 0 and gains[count].admission > 0)
    ):
        gain = gains[count]
        free -= gain.takes
        if count and free < 0:
            break
        now -= gain.now
        admission -= gain.admission
        count += 1
    return count
