"""How many rows to compress when memory is short, and none when it is not: pure functions of integers."""

from __future__ import annotations

from typing import NamedTuple


class Shortage(NamedTuple):
    """KV slots that are missing, 0 or less where none are.

    now: for the tokens of the next decode step.  admission: for the first waiting request, on top of what running requests have
    reserved; None when nobody waits, or when memory is not what keeps it waiting.
    """

    now: int
    admission: int | None

    def __bool__(self) -> bool:
        return self.now > 0 or (self.admission or 0) > 0


class Gain(NamedTuple):
    """KV slots that compressing a row yields: now, and for admission, after what the row will grow to again is reserved."""

    now: int
    admission: int


def victims(gains: list[Gain], shortage: Shortage) -> int:
    """How many of the first rows to compress (gains in the order of preference).

    What is missing now is found at any price.  For a waiting request nobody loses tokens in vain: rows are compressed only if
    they make room for all of it.
    """
    now, admission = shortage.now, shortage.admission or 0
    if sum(max(gain.admission, 0) for gain in gains) < admission:
        admission = 0
    count = 0
    while count < len(gains) and (now > 0 or (admission > 0 and gains[count].admission > 0)):
        now -= gains[count].now
        admission -= gains[count].admission
        count += 1
    return count
