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


def mcnemar(better: int, worse: int) -> float:
    """Two-sided p of the exact McNemar test: problems that only one of two settings solves, were both equally good."""
    from scipy.stats import binomtest  # a second to import

    return float(binomtest(better, better + worse).pvalue) if better + worse else 1.0


def bootstrap(groups: list[list[float]], draws: int = 2000, seed: int = 0) -> tuple[float, float, float]:
    """(mean, low, high): the mean of the groups' means, with its 95 % percentile interval over problems (Efron 1979).

    groups: scores of independent problems, one list per task; each is resampled by itself.  A problem's score is the mean of
    its samples, because samples of one problem are not independent.  Empty groups are left out; no scores at all: NaN.
    """
    import numpy as np

    arrays = [np.asarray(g, dtype=np.float64) for g in groups if len(g)]
    if not arrays:
        return math.nan, math.nan, math.nan
    random = np.random.default_rng(seed)
    means = np.mean([a[random.integers(len(a), size=(draws, len(a)))].mean(axis=1) for a in arrays], axis=0)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.mean([a.mean() for a in arrays])), float(low), float(high)
