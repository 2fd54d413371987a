"""When requests come: all at once, as a Poisson process, or in bursts.

all                     everything at time 0
poisson:RATE            RATE requests a second on average, independent of each other
bursts:SIZE:SECONDS     SIZE at once, every SECONDS
"""

from __future__ import annotations

import dataclasses
import random

from benchmarks.report.workloads import Load


def times(pattern: str, count: int, seed: int = 0) -> list[float]:
    """Seconds after the start, rising, the first at 0.  Raises ValueError."""
    kind, *numbers = pattern.split(":")
    try:
        if kind == "all" and not numbers:
            return [0.0] * count
        if kind == "poisson":
            (rate,) = map(float, numbers)
            if rate > 0:
                rng, now, result = random.Random(seed), 0.0, []
                for _ in range(count):
                    result.append(now)
                    now += rng.expovariate(rate)
                return result
        if kind == "bursts":
            size, seconds = int(numbers[0]), float(numbers[1])
            if size > 0 and seconds > 0 and len(numbers) == 2:
                return [seconds * (n // size) for n in range(count)]
    except (ValueError, IndexError):
        pass
    raise ValueError(
        f"arrival pattern {pattern!r}: must be `all`, `poisson:RATE` or `bursts:SIZE:SECONDS` with positive numbers"
    )


def arrange(load: Load, pattern: str, seed: int = 0) -> Load:
    """The same requests in a random order (the same for every mode), with times; `all` keeps the order as it is."""
    requests = list(load.requests)
    if pattern != "all":
        random.Random(seed).shuffle(requests)
    at = times(pattern, len(requests), seed)
    return dataclasses.replace(load, requests=[dataclasses.replace(r, arrival=t) for r, t in zip(requests, at)])
