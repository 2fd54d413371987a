"""The paper's evaluation on this engine, as one report: throughput, TPOT, TTFT, step times by concurrency, requests
running and waiting, pool occupancy over time, the time of compressions and of their operations, goodput at request rates.

Everything lies in --out: raw records and rows, tables as CSV, figures, report.html (one file that needs nothing else) and
report.md.  A call does what fits into --limit and writes the report of what is there; the same command goes on, also after
Ctrl-C.  docs/report.md says what is measured how.
"""

from __future__ import annotations

import dataclasses
import shlex
import signal
import sys
import time

from benchmarks import provenance, table
from benchmarks.report import offline, online, operations, options, plan, render
from benchmarks.report.driving import RequestFailed
from benchmarks.report.servers import Servers, flags
from benchmarks.report.state import OtherOptions, State
from benchmarks.server import ServerFailed

RENDER_SECONDS = 20  # kept free at the end of a call with a limit
PATIENCE = 3  # times the expected time that an online unit or the operations may take


def main(argv: list[str] | None = None) -> int:
    """0: all is done, or rendered, or planned; 3: the limit came first, call again; 1: something failed; 130:
    interrupted."""
    opts = options.parse(argv, __doc__)
    end = time.monotonic() + opts.limit - RENDER_SECONDS if opts.limit else None
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as on a terminal, even if started in the background
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # ends as Ctrl-C does: with a report
    units = plan.make_units(opts)
    unknown = set(opts.redo) - {u.name for u in units}
    if unknown:
        sys.exit(f"error: --redo {' '.join(sorted(unknown))}: no such unit; --plan prints them")
    try:
        if opts.plan:
            print(describe(opts, units))
            return 0
        state = State(opts.out, opts.chosen)
    except OtherOptions as error:
        sys.exit(f"error: {error}")
    code = 0 if opts.render else run(opts, units, state, end)
    paths = render.write(state, opts)
    print("written: " + ", ".join(str(p) for p in paths) if paths else "nothing was measured yet", flush=True)
    return code


def run(opts: options.Options, units: list[plan.Unit], state: State, end: float | None) -> int:
    """Measures what is left, as far as the time allows."""
    origin, failed = provenance.describe(), []
    for name in opts.redo:
        state.forget(name)
    todo = [u for u in units if not state.done(u.name)]
    started = [r["server_start_seconds"] for r in state.records().values() if r.get("server_start_seconds")]
    start_seconds = max(started, default=opts.size.start_seconds)
    print(f"{len(units) - len(todo)} of {len(units)} units are done; {_left(todo, None, start_seconds)}", flush=True)
    with Servers(opts, end) as servers:
        while todo:
            start_seconds = max(servers.started or 0, start_seconds)
            unit = plan.next_unit(todo, servers.mode, start_seconds, end - time.monotonic() if end else float("inf"))
            if unit is None:
                names = ", ".join(u.name for u in todo[:3])
                print(f"no time left for {len(todo)} units ({names}, ...); the same command goes on with them", flush=True)
                return 3
            todo.remove(unit)
            try:
                record, rows = _measure(opts, unit, servers, end)
                state.write(unit.name, _complete(opts, unit, servers, record, origin), **rows)
                if record.get("interrupted"):
                    raise KeyboardInterrupt
            except KeyboardInterrupt:
                print("\ninterrupted; what was measured is kept, the same command goes on", flush=True)
                return 130
            except (RequestFailed, ServerFailed, RuntimeError) as error:
                failed.append(unit.name)
                print(f"{unit.name} FAILED: {error}", flush=True)
                servers.stop()
            if todo:
                print(_left(todo, servers.mode, start_seconds), flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}; the same command tries them again", flush=True)
    return 1 if failed else 0


def _measure(opts: options.Options, unit: plan.Unit, servers: Servers, end: float | None) -> tuple[dict, dict]:
    if unit.kind == "operations":
        servers.stop()  # it would hold the GPU's memory, or a core
        return operations.measure(opts, _patience(unit, end)), {}
    mode = opts.modes[unit.mode]
    server = servers.get(mode)
    if unit.kind == "offline":
        # The server may have taken longer to start than expected: a load that is cut off by the call's end is measured
        # again.
        seconds = min(opts.size.unit_seconds, end - time.monotonic()) if end else opts.size.unit_seconds
        record, rows = offline.measure(opts, unit, mode, server, max(1.0, seconds))
        record["partial"] |= seconds < opts.size.unit_seconds and not record["whole"]
        return record, rows
    return online.measure(opts, unit, mode, server, _patience(unit, end))


def _patience(unit: plan.Unit, end: float | None) -> float:
    most = PATIENCE * unit.seconds + 300  # a busy machine takes minutes to import what the client needs
    return max(5.0, min(most, end - time.monotonic())) if end else most


def _complete(opts: options.Options, unit: plan.Unit, servers: Servers, record: dict, origin: dict) -> dict:
    """With what it was and where it comes from."""
    server = (
        dict(server_flags=shlex.join(flags(opts, opts.modes[unit.mode])), server_start_seconds=servers.started)
        if unit.mode
        else {}
    )
    what = {k: v for k, v in dataclasses.asdict(unit).items() if k not in ("rank", "seconds")}
    return dict(
        unit=unit.name,
        **what,
        **record,
        **server,
        origin=dict(origin, time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())),
    )


def _left(todo: list[plan.Unit], running: str | None, start_seconds: float) -> str:
    seconds = 0.0
    for unit in todo:
        seconds += plan.cost(unit, running, start_seconds)
        running = unit.mode
    return f"{len(todo)} units left, about {seconds / 60:.0f} min" if todo else "none is left"


def describe(opts: options.Options, units: list[plan.Unit]) -> str:
    """What would run, call by call, with expected seconds."""
    state_done = set()
    if (opts.out / "raw").exists():
        state = State(opts.out, opts.chosen)
        state_done = {u.name for u in units if state.done(u.name)}
    todo = [u for u in units if u.name not in state_done]
    budget = opts.limit - RENDER_SECONDS if opts.limit else None
    calls = plan.slices(todo, opts.size.start_seconds, budget)
    rows = []
    for n, call in enumerate(calls, 1):
        running = None
        for unit in call:
            seconds = plan.cost(unit, running, opts.size.start_seconds)
            load = plan.load_of(opts, unit) if unit.kind != "operations" else None
            rows.append(
                [unit.name, n, f"{seconds:.0f}", len(load.requests) if load else "-", load.output_tokens if load else "-"]
            )
            running = unit.mode
    text = table.render(["unit", "call", "seconds", "requests", "output tokens"], rows)
    kept = [u for u in todo if not any(u in call for call in calls)]
    notes = [
        f"{len(state_done)} of {len(units)} units are done.  Expected: a server starts in {opts.size.start_seconds:.0f} s "
        f"and answers with {opts.size.tokens_per_second:.0f} tokens/s; a workload that is not done by then is cut off "
        f"after {opts.size.unit_seconds:.0f} s."
    ]
    if kept:
        notes.append(
            f"Do not fit into {opts.limit:.0f} s at all: {', '.join(u.name for u in kept)}.  Raise --limit or lower "
            "--unit-seconds."
        )
    return "\n".join([text, "", *notes])


if __name__ == "__main__":
    sys.exit(main())
