"""Prompt and output lengths from a file: a synthetic distribution as JSON, or a trace as CSV.

JSON: {"how": where it comes from, "prompt": D, "output": D}; a distribution D is one of

    {"lognormal": {"mean": tokens, "sigma": of the logarithm}}         mean before the cap
    {"quantiles": [[0, 12], [0.5, 300], [1, 9000]]}                    [share, tokens], linear between
    {"samples": [120, 80, ...]}                                        drawn with replacement

CSV: columns `prompt` and `output` (tokens), one row a request; with `question`, rows of equal text share a prompt.  A
trace is taken as it is, in its order, from the start again if it is too short.
"""

from __future__ import annotations

import bisect
import csv
import dataclasses
import json
import math
import random
from pathlib import Path

FOLDER = Path(__file__).parent / "distributions"


class LengthsError(ValueError):
    """A file of lengths cannot be used; the message names it and says what is wrong."""


@dataclasses.dataclass(frozen=True)
class Lengths:
    """name: of the file, how: where it comes from.  trace: [(question, prompt tokens, output tokens)] instead of
    distributions."""

    name: str
    how: str
    prompt: dict = dataclasses.field(default_factory=dict)
    output: dict = dataclasses.field(default_factory=dict)
    trace: tuple[tuple[str, int, int], ...] = ()


def read(path: Path | str) -> Lengths:
    """A shipped one by its name (`amc23`), or a file.  Raises LengthsError."""
    path = shipped if (shipped := FOLDER / f"{path}.json").exists() else Path(path)
    try:
        if path.suffix == ".csv":
            return _trace(path)
        data = json.loads(path.read_text())
        lengths = Lengths(path.stem, data["how"], data["prompt"], data["output"])
        for distribution in (lengths.prompt, lengths.output):
            draw(distribution, random.Random(0))
        return lengths
    except FileNotFoundError:
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.json")))
        raise LengthsError(f"no file {path}, and no lengths of that name (there are {known})") from None
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise LengthsError(
            f"{path}: {type(error).__name__}: {error}; see the docstring of benchmarks/report/lengths.py"
        ) from None


def _trace(path: Path) -> Lengths:
    with path.open(newline="") as f:
        rows = [
            (row.get("question") or str(n), int(row["prompt"]), int(row["output"]))
            for n, row in enumerate(csv.DictReader(f))
        ]
    if not rows or min(min(row[1:]) for row in rows) < 1:
        raise ValueError("no rows, or a length below 1")
    return Lengths(path.stem, f"trace {path.name} of {len(rows)} requests", trace=tuple(rows))


def draw(distribution: dict, rng: random.Random) -> float:
    """One length in tokens, not rounded."""
    ((kind, value),) = distribution.items()
    if kind == "lognormal":
        sigma = float(value["sigma"])
        return rng.lognormvariate(math.log(value["mean"]) - sigma**2 / 2, sigma)
    if kind == "samples":
        return float(rng.choice(value))
    if kind == "quantiles":
        shares, tokens = zip(*value)
        if list(shares) != sorted(set(shares)) or (shares[0], shares[-1]) != (0, 1):
            raise ValueError("quantiles must rise from 0 to 1")
        at = rng.random()
        i = max(1, bisect.bisect_left(shares, at))
        return tokens[i - 1] + (tokens[i] - tokens[i - 1]) * (at - shares[i - 1]) / (shares[i] - shares[i - 1])
    raise ValueError(f"unknown distribution {kind!r}")
