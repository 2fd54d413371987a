"""Decode steps over time, from the lines that SGLang's scheduler logs.

SGLang counts the tokens of every decode batch whose result it has processed; every `interval` of them it divides the count by
the time since its previous decode line and logs that as `gen throughput`.  So with an interval of 1 a line is a step: tokens =
requests running, and running / throughput is the time between the results of two successive decode batches, which with overlap
scheduling too is what a step takes.  Longer intervals give the mean step of each (approximately, if requests end inside one).

A prefill batch runs between two decode batches and is in the time of the step whose line follows its own.  With overlap the
scheduler also launches it, instead of a decode batch, before it processes the decode batch that precedes, so the line before it
does not tell a step's time either.  Both are marked, and percentiles of step times leave both out.
"""

from __future__ import annotations

import itertools
import math
import re

from benchmarks.measures import percentile

FIELDS = ["time", "step_ms", "running", "waiting", "resident", "usage", "rate", "prefill"]
_DECODE = re.compile(r"Decode batch.*?#running-req: (\d+), #token: (\d+), token usage: ([\d.]+).*?"
                     r"gen throughput \(token/s\): ([\d.]+).*?#queue-req: (\d+)")
_RETRACTED = re.compile(r"#retracted_reqs: (\d+)")


def read_steps(log: str, interval: int = 1) -> list[dict]:
    """One dict of FIELDS a decode line: time (end of the step; s since the log's first decode line, whose own duration
    includes the wait before it and is left out), step_ms, requests running and waiting, KV tokens resident, the pool's share
    in use, output tokens per second, and prefill: 1 if a prefill batch is part of the step's time or came right after it."""
    steps, now, prefill = [], None, False
    for line in log.splitlines():
        if "Prefill batch" in line:
            prefill = True
            if steps:
                steps[-1]["prefill"] = 1
        elif match := _DECODE.search(line):
            running, resident, usage, rate, waiting = (float(x) for x in match.groups())
            if now is None:
                now = 0.0
            elif rate > 0 and running > 0:
                seconds = interval * running / rate
                now += seconds
                steps.append(dict(time=round(now, 3), step_ms=round(1000 * seconds / interval, 3), running=int(running),
                                  waiting=int(waiting), resident=int(resident), usage=usage, rate=rate, prefill=int(prefill)))
            prefill = False
    return steps


def retractions(log: str) -> int:
    return sum(map(int, _RETRACTED.findall(log)))


def second_half(steps: list[dict]) -> list[dict]:
    """Steps that begin after half of the time."""
    return [b for a, b in itertools.pairwise(steps) if a["time"] >= steps[-1]["time"] / 2]


def means(steps: list[dict]) -> dict:
    """Means weighted by time; rate = tokens / seconds."""
    total = sum(s["step_ms"] for s in steps)
    mean = lambda key: sum(s[key] * s["step_ms"] for s in steps) / total
    result = {key: mean(key) for key in ("rate", "running", "usage", "resident")}
    return result | {"step_ms": 1000 * result["running"] / result["rate"]}


def step_times(steps: list[dict]) -> dict:
    """Percentiles of the steps without a prefill batch beside them, ms; how many steps that is, and how many there are."""
    alone = [s["step_ms"] for s in steps if not s["prefill"]]
    p50, p99 = percentile(alone, 50), percentile(alone, 99)
    return dict(step_p50_ms=p50, step_p99_ms=p99, step_p99_over_p50=p99 / p50 if alone else None, steps_counted=len(alone),
                steps=len(steps))


def thin(steps: list[dict], most: int = 2000) -> list[dict]:
    """Every n-th step, so that at most `most` are left."""
    return steps[::math.ceil(len(steps) / most) or 1]
