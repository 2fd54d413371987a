"""Problem knobs for two regimes of a task family: `default` (random difficulty) and `short` (small working set)."""

from __future__ import annotations

from benchmarks.reasoner import tasks

REGIMES = ("default", "short")
CHAIN_FACTS_MAX = 99  # the tasks number facts with one token, 01 to 99


def short_knobs(family: str, level: int) -> dict:
    """Knobs that keep what a step needs close by, sized for about `level` chain-of-thought tokens.

    loop: three lines that look one iteration back (working set about 60 tokens); ram: five cells (about 170); chain: six
    base values; recall: ten keys, twelve steps of local work a block.  chain stays random access whatever its knobs.
    """
    if family == "loop":
        return dict(n=_clip((level - 10) / (8 + 18 * 3), 2, 99), lines=3, nvars=4, nconst=1, maxlag=1)
    if family == "ram":
        return dict(n=_clip((level - 10) / (14 * 5 + 11), 1, 99), cells=5)
    if family == "chain":
        return dict(facts=_clip((level - 10) / 16.4, 3, CHAIN_FACTS_MAX), base=6)
    if family == "recall":
        return dict(n=_clip((level - 15) / (21 + 7 * 12), 1, 60), nkeys=10, work=12)
    raise ValueError(f"unknown family {family!r}: choose from {', '.join(tasks.FAMILIES)}")


def make_problems(family: str, level: int, n: int, regime: str = "default", stream: str = "test") -> list[tasks.Problem]:
    """Problems `stream`-0 .. `stream`-(n-1) of one family; report on `test`, never on `eval` (used to pick the weights)."""
    if regime not in REGIMES:
        raise ValueError(f"unknown knobs {regime!r}: choose from {', '.join(REGIMES)}")
    knobs = short_knobs(family, level) if regime == "short" else {}
    return [tasks.gen(family, f"{stream}-{i}", level, **knobs) for i in range(n)]


def _clip(x: float, low: int, high: int) -> int:
    return min(high, max(low, round(x)))
