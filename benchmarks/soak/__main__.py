"""A soak: hours of random requests against real servers with every check on, one setting after the other.

    python -m benchmarks.soak --minutes 60 [--device cpu] [--slice-minutes 6] [--settings 0 3] [--out FILE]
    python -m benchmarks.soak --merge FILE...       # one table of several, also of those that were interrupted

Clients ask problems of the reasoner, shared and their own, whole or cut off, streamed or not; some hang up, some abort; the
server is paused and asked to flush; some settings retract requests by force.  Of each setting: every answer has its tokens,
those of requests that were not retracted are the ones an idle server gives (float32 on the CPU), at the end nothing runs, no
query slot is taken, and the cache can be flushed.  SGLang's and the plugin's own checks run at every step, and end the server where one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import aiohttp
import httpx

from benchmarks import provenance
from benchmarks.cells import ROOM
from benchmarks.client import server_state
from benchmarks.reasoner import MODEL_PATH, tasks
from benchmarks.reasoner.knobs import make_problems
from benchmarks.server import Server, ServerFailed
from benchmarks.soak import report
from benchmarks.soak.clients import Clients, Question, Totals
from benchmarks.soak.settings import LOADS, SETTINGS, Load, Setting


def questions_of(load: Load) -> list[Question]:
    problems = [p for family in tasks.FAMILIES for p in make_problems(family, load.level, load.problems, "short")]
    return [Question(p, len(p.cot_toks) + ROOM) for p in problems]


class Interrupted(KeyboardInterrupt):
    """Ctrl-C or SIGTERM in the middle of a slice.  run: what it was until then."""

    def __init__(self, run: dict):
        super().__init__()
        self.run = run


def soak(setting: Setting, load: Load, seconds: float, seed: int, questions: list[Question], folder: Path) -> dict:
    """One server for `seconds` under load.  Fills in what the questions' answers are if they are not known yet.  Raises Interrupted."""
    flags = ["--model-path", str(MODEL_PATH), "--skip-tokenizer-init", "--random-seed", "1", *setting.server_flags(load)]
    compare = load.exact and setting.steady
    os.environ.update(setting.environment)
    clients = start = None

    def record(state: dict, log: str, *wrong: str) -> dict:
        spent = 0.0 if start is None else time.monotonic() - start
        totals = dataclasses.asdict(clients.totals if clients else Totals())
        return dict(seconds=spent, requests=clients.count if clients else 0, **totals | dict(wrong=[*totals["wrong"], *wrong]),
                    zipage={k: v for k, v in state.items() if isinstance(v, (int, float))}, log=log)  # fmt: skip

    try:
        with Server(flags, folder / f"{seed}.txt") as server:
            clients = Clients(server.url, questions, load.level, compare, seed)
            try:
                if compare and setting.retract is None and any(q.expected is None for q in questions):
                    asyncio.run(clients.ask_alone())
                start = time.monotonic()
                asyncio.run(clients.run(load.clients, seconds, load.drain, lambda: server.process.poll() is None))
                return record(*_at_rest(server, clients.totals))
            except KeyboardInterrupt:
                raise Interrupted(record(server_state(server.url).get("zipage", {}), server.last_lines(3))) from None
    except (ServerFailed, OSError, httpx.HTTPError, aiohttp.ClientError, ExceptionGroup) as error:
        log = (folder / f"{seed}.txt").read_text(errors="replace")[-3000:]
        return record({}, log, f"the server failed: {error!r}"[:500])
    finally:
        for name in setting.environment:
            os.environ.pop(name, None)


def _at_rest(server: Server, totals: Totals) -> tuple[dict, str]:
    """What the server says of itself, and the end of its log, once nobody asks; adds what is wrong with that."""
    time.sleep(3)  # idle: SGLang checks its pools, and dies of a leak
    state = server_state(server.url)["zipage"]
    if state["running"] or state["parked_now"]:
        totals.wrong.append(f"still running: {state['running']}, parked: {state['parked_now']}")
    if state["query_slots_used"] or state["compressed"]:
        totals.wrong.append(f"query slots in use: {state['query_slots_used']}, compressed rows: {state['compressed']}")
    if state["failures"] or state["nan_scores"]:
        totals.wrong.append(f"compressions that failed: {state['failures']}, scores that are NaN: {state['nan_scores']}")
    if httpx.post(f"{server.url}/flush_cache", timeout=60).status_code != 200:
        totals.wrong.append("the idle server does not flush its cache")
    return state, server.last_lines(3)


def main(argv: list[str] | None = None) -> int:
    args, runs, interrupted = _arguments(argv), [], False
    if args.merge:
        return report.merge(args.merge)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as on a terminal, even if started in the background
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # `timeout` sends it
    try:
        for run in _slices(args):
            _add(args, runs, run)
    except Interrupted as error:
        interrupted = True
        _add(args, runs, dict(error.run, interrupted=True))
    except KeyboardInterrupt:
        interrupted = True
    if interrupted:
        print("\ninterrupted; of a slice that was cut off there is what was known by then")
    wrong = report.show(runs)
    return 130 if interrupted else int(wrong > 0)


def _add(args, runs: list[dict], run: dict):
    """Tell it, and write everything so far."""
    runs.append(run)
    print(", ".join(f"{h} {c}" for h, c in zip(report.HEADER, report.row(run["setting"], [run]))), flush=True)
    for line in run["wrong"][:10]:
        print(f"  {line}", flush=True)
    if args.out:
        options = {k: str(v) for k, v in vars(args).items() if k != "origin"}
        whole = args.out.with_name(args.out.name + ".part")  # whoever stops us in the middle leaves the last file as it was
        whole.write_text(json.dumps(dict(args.origin, options=options, runs=runs), indent=1) + "\n")
        whole.replace(args.out)


def _slices(args):
    """What happened, one server after the other until the time under load is over."""
    load, known, left, number = LOADS[args.device], {}, args.minutes * 60, 0
    with tempfile.TemporaryDirectory() as folder:
        while left > 1:
            setting = SETTINGS[args.settings[number % len(args.settings)]]
            questions = known.setdefault(setting.method, questions_of(load))
            seconds = min(left, args.slice_minutes * 60)
            try:
                run = soak(setting, load, seconds, args.seed + number, questions, Path(folder))
            except Interrupted as error:
                error.run = dict(setting=setting.name, **error.run)
                raise
            left -= min(run["seconds"], seconds) or 60  # a server that always fails must end, too
            number += 1
            yield dict(setting=setting.name, **run)


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add, every = parser.add_argument, range(len(SETTINGS))
    add("--minutes", type=_positive, default=60.0, help="under load, servers' starts and last answers not counted (default %(default)s)")
    add("--slice-minutes", type=_positive, default=6.0, help="of one server (default %(default)s)")
    add("--device", choices=LOADS, default="cpu")
    add("--settings", type=int, nargs="+", metavar="N", choices=every, default=list(every),
        help="default: all of " + ", ".join(f"{i}: {s.name}" for i, s in enumerate(SETTINGS)))  # fmt: skip
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="JSON file of everything, written after each slice")
    add("--merge", type=Path, nargs="+", metavar="FILE", help="only print one table of these --out files")
    args = parser.parse_args(argv)
    if args.merge:
        return args
    args.origin = provenance.describe()  # first: the commit that the run started from
    return args


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
