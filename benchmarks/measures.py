"""Statistics of measured times and ratios."""

from __future__ import annotations

import math
import statistics

# 97.5 % quantiles of Student's t with 1 to 30 degrees of freedom.
_T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110,
         2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)


def percentile(values: list[float], q: float) -> float | None:
    """q in [0, 100], linear between neighbours; None of nothing."""
    if not values:
        return None
    values = sorted(values)
    at = (len(values) - 1) * q / 100
    low, high = math.floor(at), math.ceil(at)
    return values[low] + (values[high] - values[low]) * (at - low)


def mean_interval(values: list[float]) -> tuple[float, float, float]:
    """(mean, low, high): two-sided 95 % t interval; low and high are infinite for a single value."""
    mean, n = statistics.fmean(values), len(values)
    if n < 2:
        return mean, -math.inf, math.inf
    half = _T975[min(n - 1, len(_T975)) - 1] * statistics.stdev(values) / math.sqrt(n)
    return mean, mean - half, mean + half
