"""A soak: hours of random requests against real servers with every check on, one setting after the other.

    python -m benchmarks.soak --minutes 60 [--device cpu] [--slice-minutes 6] [--settings 0 3] [--out FILE]

Clients ask problems of the reasoner, shared and their own, whole or cut off, streamed or not; some hang up, some abort; the
server is paused and asked to flush; some settings retract requests by force.  Of each setting: every answer has its tokens,
those of requests that were not retracted are the ones an idle server gives (float32 on the CPU), at the end nothing runs, and
the cache can be flushed.  SGLang's and the plugin's own checks run at every step, and end the server where one fails.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import httpx

from benchmarks import provenance, stats, table
from benchmarks.cells import ROOM
from benchmarks.client import server_state
from benchmarks.reasoner import MODEL_PATH, tasks
from benchmarks.reasoner.knobs import make_problems
from benchmarks.server import Server, ServerFailed, exit_on_sigterm
from benchmarks.soak.clients import Clients, Question
from benchmarks.soak.settings import LOADS, SETTINGS, Load, Setting


def questions_of(load: Load) -> list[Question]:
    problems = [p for family in tasks.FAMILIES for p in make_problems(family, load.level, load.problems, "short")]
    return [Question(p, len(p.cot_toks) + ROOM) for p in problems]


def soak(setting: Setting, load: Load, seconds: float, seed: int, questions: list[Question], folder: Path) -> dict:
    """One server for `seconds` under load.  Fills in what the questions' answers are if they are not known yet."""
    flags = ["--model-path", str(MODEL_PATH), "--skip-tokenizer-init", "--random-seed", "1", *load.flags, *setting.method,
             *setting.flags]  # fmt: skip
    compare = load.exact and setting.steady
    os.environ.update(setting.environment)
    try:
        with Server(flags, folder / f"{seed}.txt") as server:
            clients = Clients(server.url, questions, load.level, compare, seed)
            if compare and setting.retract is None and any(q.expected is None for q in questions):
                asyncio.run(clients.ask_alone())
            start = time.monotonic()
            asyncio.run(clients.run(load.clients, seconds))
            spent = time.monotonic() - start
            time.sleep(3)  # idle: SGLang checks its pools, and dies of a leak
            state = server_state(server.url)["zipage"]
            totals = clients.totals
            if state["running"] or state["parked_now"]:
                totals.wrong.append(f"still running: {state['running']}, parked: {state['parked_now']}")
            if httpx.post(f"{server.url}/flush_cache", timeout=60).status_code != 200:
                totals.wrong.append("the idle server does not flush its cache")
            counts = {k: v for k, v in state.items() if isinstance(v, (int, float))}
            return dict(seconds=spent, requests=clients.count, **dataclasses.asdict(totals), zipage=counts, log=server.last_lines(3))
    except (ServerFailed, OSError, httpx.HTTPError, ExceptionGroup) as error:
        log = (folder / f"{seed}.txt").read_text(errors="replace")[-3000:]
        return dict(seconds=0.0, requests=0, wrong=[f"the server failed: {error!r}"[:500]], log=log)
    finally:
        for name in setting.environment:
            os.environ.pop(name, None)


def row(setting: Setting, run: dict) -> list[str]:
    share = lambda pair: f"{pair[0]}/{pair[1]} ({', '.join(f'{100 * x:.0f}' for x in stats.wilson(*pair))})" if pair[1] else "-"
    if not run["requests"]:
        return [setting.name, *["-"] * 9, str(len(run["wrong"]))]
    state = run["zipage"]
    return [setting.name, f"{run['seconds']:.0f}", str(run["requests"]), str(run["aborted"] + run["left"]), str(run["output_tokens"]),
            str(state["compressions"]), str(run["retracted"]), str(run["compared"]), share(run["steady"]), share(run["recomputed"]),
            str(len(run["wrong"]))]  # fmt: skip


HEADER = ["setting", "s", "requests", "gone", "tokens", "compressions", "retracted", "compared", "right", "right, retracted", "wrong"]


def main(argv: list[str] | None = None) -> int:
    args, runs, interrupted = _arguments(argv), [], False
    exit_on_sigterm()
    try:
        for setting, run in _slices(args):
            runs.append((setting, run))
            print(", ".join(f"{h} {c}" for h, c in zip(HEADER, row(setting, run))), flush=True)
            for line in run["wrong"][:10]:
                print(f"  {line}", flush=True)
            if args.out:
                options = {k: str(v) for k, v in vars(args).items() if k != "origin"}
                record = dict(args.origin, options=options, runs=[dict(setting=s.name, **r) for s, r in runs])
                args.out.write_text(json.dumps(record, indent=1) + "\n")
    except KeyboardInterrupt:
        interrupted = True
        print("\ninterrupted; the slice that was running is not in the table")
    print(table.render(HEADER, [row(*r) for r in runs]))
    wrong = sum(len(r["wrong"]) for _, r in runs)
    print(f"{sum(r['requests'] for _, r in runs)} requests in {sum(r['seconds'] for _, r in runs) / 60:.0f} minutes, {wrong} wrong")
    return 130 if interrupted else int(wrong > 0)


def _slices(args):
    """(setting, what happened), one server after the other until the time under load is over."""
    load, known, left, number = LOADS[args.device], {}, args.minutes * 60, 0
    with tempfile.TemporaryDirectory() as folder:
        while left > 1:
            setting = SETTINGS[args.settings[number % len(args.settings)]]
            questions = known.setdefault(setting.method, questions_of(load))
            run = soak(setting, load, min(left, args.slice_minutes * 60), args.seed + number, questions, Path(folder))
            left -= run["seconds"] or 60  # a server that always fails must end, too
            number += 1
            yield setting, run


def _arguments(argv):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add, every = parser.add_argument, range(len(SETTINGS))
    add("--minutes", type=_positive, default=60.0, help="under load, servers' starts not counted (default %(default)s)")
    add("--slice-minutes", type=_positive, default=6.0, help="of one server (default %(default)s)")
    add("--device", choices=LOADS, default="cpu")
    add("--settings", type=int, nargs="+", metavar="N", choices=every, default=list(every),
        help="default: all of " + ", ".join(f"{i}: {s.name}" for i, s in enumerate(SETTINGS)))  # fmt: skip
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="JSON file of everything")
    args = parser.parse_args(argv)
    args.origin = provenance.describe()  # first: the commit that the run started from
    return args


def _positive(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"must be positive, got {text}")
    return value


if __name__ == "__main__":
    sys.exit(main())
