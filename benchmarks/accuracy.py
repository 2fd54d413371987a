"""pass@1 of the reasoner through the real SGLang engine: full KV, and every policy at every budget, in one run.

The same problems everywhere (seeds test-0, test-1, ...), one engine per setting.  Prints a table with 95 % Wilson intervals
and writes everything, one outcome per problem included, to a JSON file.

Other datasets, with a model of your own: --dataset amc23, aime24, gsm8k, math500, livecodebench or longbench (docs/accuracy.md;
`--dataset gsm8k --help` lists their options).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks import engines, provenance, stats, table
from benchmarks.cells import ROOM, Cell, fill
from benchmarks.progress import Progress
from benchmarks.reasoner import tasks
from benchmarks.reasoner.knobs import REGIMES, make_problems
from benchmarks.settings import Setting, make_settings

RESULTS = Path(__file__).parent / "results"
REASONER = "reasoner"


def run(args, done: list[Cell]):
    """Fill `done` setting by setting, so that an interrupted run keeps what it has; each setting gets an equal share of the
    time that is left."""
    settings = settings_of(args)
    end = time.monotonic() + 60 * args.limit_minutes
    for i, setting in enumerate(settings):
        cells = [Cell(setting, family, level, make_problems(family, level, args.n, args.knobs))
                 for level in args.levels for family in args.families]
        done += cells
        _fill_setting(setting, cells, args, time.monotonic() + (end - time.monotonic()) / (len(settings) - i))


def settings_of(args) -> list[Setting]:
    return make_settings(args.policies, args.budgets, not args.no_full, block=args.block, window=args.window, recency=args.recency,
                         redundancy=args.redundancy, pooling=args.pooling, alpha=args.alpha, tau=args.tau, passes=args.passes,
                         prefix=args.prefix, **{"lambda": getattr(args, "lambda")})  # fmt: skip


def _fill_setting(setting: Setting, cells: list[Cell], args, deadline: float):
    longest = max(sum(map(len, p.ids())) for cell in cells for p in cell.problems) + ROOM
    progress = Progress(setting.name)
    progress.show("engine starting")
    start = time.monotonic()
    with engines.open_engine(args.concurrency, args.concurrency * longest + 1024, args.seed, **setting.options) as engine:
        progress.done(f"engine up after {time.monotonic() - start:.0f} s")
        fill(cells, engine, args.concurrency, args.temperature, deadline, lambda cells: progress.show(_state(cells)))
    progress.done(_state(cells))


def _state(cells: list[Cell]) -> str:
    done = sum(len(c.outcomes) for c in cells)
    return f"{done} of {sum(len(c.problems) for c in cells)} answered, {sum(sum(c.outcomes) for c in cells)} right"


def render(cells: list[Cell]) -> str:
    rows = []
    for cell in sorted(cells, key=lambda c: (c.level, tasks.FAMILIES.index(c.family))):  # stable: settings in run order
        r = cell.record()
        rows.append([cell.family, cell.level, cell.setting.name, r["n"], stats.share(r["right"], r["n"]), r["truncated"],
                     *(f"{r[k]:.{d}f}" if r[k] is not None else "-" for k, d in (
                         ("output_tokens_mean", 0), ("compressions_per_request", 1), ("evicted_tokens_per_request", 0)))])
    return table.render(["family", "level", "setting", "n", "pass@1 (95 % interval)", "cut off", "output tokens",
                         "compressions", "evicted"], rows)


def main():
    if _dataset() != REASONER:
        from benchmarks import evaluation

        return evaluation.main(sys.argv[1:])
    args = _arguments()
    origin = provenance.describe()  # first: the commit that the run started from
    cells, complete = [], False
    try:
        run(args, cells)
        complete = True
    except KeyboardInterrupt:
        print("\ninterrupted")
    finally:
        if any(cell.outcomes for cell in cells):
            _report(args, origin, cells, complete)
    sys.exit(0 if complete else 130)


def _report(args, origin: dict, cells: list[Cell], complete: bool):
    print("\n" + render(cells) + "\n\noutput tokens, compressions and evicted tokens: mean per request")
    out = args.out or RESULTS / f"accuracy-{args.knobs}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    record = dict(**origin, options=options, complete=complete, cells=[c.record() for c in cells])
    out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {out}")


def _dataset() -> str:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dataset", default=REASONER)
    return parser.parse_known_args()[0].dataset


def _arguments(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    words = lambda text: text.split(",")
    numbers = lambda text: [int(x) for x in text.split(",")]
    add = parser.add_argument
    add("--dataset", choices=[REASONER], default=REASONER, help="this one (default); others have options of their own, see above")
    add("--families", type=words, default=tasks.FAMILIES, help="comma-separated (default: all)")
    add("--levels", type=numbers, default=[1000], help="tokens of reasoning, comma-separated (default 1000)")
    add("--knobs", choices=REGIMES, default="default", help="'short': small working set (default %(default)s)")
    add("--n", type=int, default=16, help="problems per cell (default %(default)s)")
    add("--policies", type=words, default=["zipage", "recent", "random"], help="default zipage,recent,random; full: only full KV")
    add("--budgets", type=numbers, default=[256], help="--zipage-budget values (default 256)")
    add("--block", type=int, default=64, help="--zipage-block (default %(default)s)")
    knobs = dict(window=int, passes=int, recency=float, redundancy=str, pooling=str, alpha=float, tau=float, prefix=str)
    for name, kind in {**knobs, "lambda": float}.items():
        add(f"--{name}", type=kind, help=f"--zipage-{name} (default: the plugin's)")
    add("--no-full", action="store_true", help="leave full KV out")
    add("--temperature", type=float, default=0.0, help="0: greedy (default)")
    add("--seed", type=int, default=0, help="of the engine's sampler (default %(default)s)")
    add("--concurrency", type=int, default=8, help="requests at once (default %(default)s)")
    add("--limit-minutes", type=float, default=60.0, help="stop early, with fewer problems (default %(default)s)")
    add("--out", type=Path, help="JSON file (default benchmarks/results/accuracy-...)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
