"""What there is to measure, in which order, and how long it takes."""

from __future__ import annotations

import dataclasses

from benchmarks.report import workloads
from benchmarks.report.options import Options
from benchmarks.report.servers import slug

CALM_SECONDS = 2  # between two units on one server
OPERATIONS_SECONDS = {"cuda": 90, "cpu": 15}


@dataclasses.dataclass(frozen=True)
class Unit:
    """One measurement.  kind: offline, online or operations.  mode: None for operations.  request_rate: a second, of
    online. rank: units of a lower rank come first.  seconds: expected, without a server's start."""

    kind: str
    rank: int
    seconds: float
    mode: str | None = None
    workload: str | None = None
    arrivals: str = "all"
    request_rate: float | None = None

    @property
    def name(self) -> str:
        rate = [] if self.request_rate is None else [f"{self.request_rate:g}"]
        parts = {"offline": [self.workload, self.arrivals, self.mode], "online": [*rate, self.mode], "operations": []}
        return slug("-".join([self.kind, *parts[self.kind]]))


def make_units(options: Options) -> list[Unit]:
    """In the order in which they are run: first what compares the first modes, by mode, so that a server serves several."""
    size, units = options.size, []
    first = [m for m in size.modes if m in size.first_modes]
    others = [m for m in size.modes if m not in size.first_modes]

    def offline(rank: int, mode: str, workload: str, arrivals: str):
        units.append(Unit("offline", rank, _offline_seconds(options, workload, arrivals), mode, workload, arrivals))

    units.append(Unit("operations", 0, OPERATIONS_SECONDS[options.device]))  # first: it wants no server beside it
    for mode in first:
        for pair in size.for_all:
            offline(1, mode, *pair)
    for mode in first:
        for pair in size.for_first[:1]:
            offline(2, mode, *pair)
        units += [
            Unit("online", 2, _online_seconds(options, rate), mode, size.online_workload, f"poisson:{rate:g}", rate)
            for rate in size.rates
        ]
    for mode in others:
        for pair in size.for_all:
            offline(3, mode, *pair)
    for mode in first:
        for pair in size.for_first[1:]:
            offline(4, mode, *pair)
    for workload, arrivals, mode in size.special:
        offline(5, mode, workload, arrivals)
    if size.by_server:
        order = [None, *options.modes]
        units = [dataclasses.replace(unit, rank=order.index(unit.mode)) for unit in units]
    return [unit for unit in units if unit.kind in options.parts]


def load_of(options: Options, unit: Unit) -> workloads.Load:
    """Requests of a unit: the same for every mode.  Arrivals are not in them."""
    from benchmarks.shapes import SHAPES, token_ids

    size = options.size
    workload = workloads.WORKLOADS[unit.workload]
    if options.lengths:
        workload = workload.with_lengths(options.lengths)
    scale, length = size.scale, size.length_scale
    if unit.kind == "online":
        workload, scale = online_workload(workload, online_requests(options, unit.request_rate)), 1.0
        length *= size.online_length
    longest = SHAPES[size.model]["max_position_embeddings"] if size.model in SHAPES else 16384
    return workloads.make_load(workload.scaled(scale), token_ids(size.model), options.seed, length, longest)


def online_requests(options: Options, rate: float) -> int:
    return max(2, round(rate * options.size.online_seconds))


def online_workload(workload: workloads.Workload, requests: int) -> workloads.Workload:
    """Independent users: every request has a prompt of its own."""
    (_, path), *_ = sorted(workload.parts, reverse=True)
    return dataclasses.replace(workload, parts=((requests, path),), samples=1)


def _offline_seconds(options: Options, workload: str, arrivals: str) -> float:
    """At most unit_seconds: that is when the load is cut off."""
    load = load_of(options, Unit("offline", 0, 0, workload=workload))
    from benchmarks.report.arrivals import times

    last = times(arrivals, len(load.requests), options.seed)[-1]
    needed = max(last, load.output_tokens / options.size.tokens_per_second) + max(r.output for r in load.requests) / 100
    return min(needed, options.size.unit_seconds) + CALM_SECONDS


def _online_seconds(options: Options, rate: float) -> float:
    """Until the last answer, at full KV's tokens a second: nothing is cut off there."""
    load = load_of(options, Unit("online", 0, 0, workload=options.size.online_workload, request_rate=rate))
    slowest = load.output_tokens / options.size.tokens_per_second
    return max(options.size.online_seconds, slowest) + max(r.output for r in load.requests) / 100 + 10 + CALM_SECONDS


def next_unit(units: list[Unit], running: str | None, start_seconds: float, left: float) -> Unit | None:
    """Of those that fit into `left` seconds, of the lowest rank: one for the server that is up (`running`: its mode), else
    the first.  None if none fits."""
    fitting = [u for u in units if cost(u, running, start_seconds) <= left]
    return min(fitting, key=lambda u: (u.rank, u.mode not in (None, running)), default=None)


def cost(unit: Unit, running: str | None, start_seconds: float) -> float:
    return unit.seconds + (start_seconds if unit.mode not in (None, running) else 0)


def slices(units: list[Unit], start_seconds: float, limit: float | None) -> list[list[Unit]]:
    """Which units each call does.  A unit that fits into no call is in none."""
    todo, result = list(units), []
    while todo:
        left, running, now = limit if limit is not None else float("inf"), None, []
        while unit := next_unit(todo, running, start_seconds, left):
            left -= cost(unit, running, start_seconds)
            running = unit.mode
            todo.remove(unit)
            now.append(unit)
        if not now:
            break
        result.append(now)
    return result
