"""Statistics of yes/no outcomes."""

from __future__ import annotations

import math

Z95 = 1.959963984540054  # two-sided 95 % quantile of the normal distribution


def wilson(right: int, n: int, z: float = Z95) -> tuple[float, float]:
    """Wilson score interval (Wilson 1927) of a share `right`/`n`, both ends in [0, 1].

    Unlike the normal interval it has a width at 0 and at n right, which happens here all the time.  n = 0: (0, 1).
    """
    if not 0 <= right <= n:
        raise ValueError(f"{right} right answers out of {n}")
    if n == 0:
        return 0.0, 1.0
    p = right / n
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    # The ends at 0 and n right are exactly 0 and 1; the sum above misses them by rounding.
    return (0.0 if right == 0 else centre - half), (1.0 if right == n else centre + half)


def share(right: int, n: int) -> str:
    """`75 % (46-91)`: pass@1 in per cent with its 95 % interval."""
    if n == 0:
        return "-"
    low, high = wilson(right, n)
    return f"{100 * right / n:.0f} % ({100 * low:.0f}-{100 * high:.0f})"
