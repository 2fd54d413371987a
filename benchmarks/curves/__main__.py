"""Accuracy against memory: every policy at every budget, as tables, a plot (SVG), Markdown and JSON.

    python -m benchmarks.curves --n 64 --level 2000 --gpus 0,1 --jobs 30 --out curves-reasoner.json
    python -m benchmarks.curves --model smollm2 --budgets 256 512 1024 1536 --out curves-smollm2.json

The reasoner: a run of `python -m benchmarks.accuracy` for each policy and budget, --jobs at a time.  SmolLM2: the records of
`python -m benchmarks.language_model`, and what is missing of them.  What is there is not measured again, so that the same
command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path

from benchmarks import provenance, variants
from benchmarks.curves import points
from benchmarks.curves.policies import POLICIES, flags_of
from benchmarks.server import exit_on_sigterm


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    exit_on_sigterm()
    origin = provenance.describe()  # first: the commit that the run started from
    if args.model == "reasoner":
        from benchmarks.curves import reasoner as subject
    else:
        from benchmarks.curves import smollm2 as subject
    curves = subject.measure(args)
    if curves is None:
        return 130
    if not curves.budgets:
        print("nothing was measured")
        return 1
    print(points.tables(curves) + "\n\n" + curves.note)
    if args.out:
        write(args, origin, curves)
    return int(not curves.complete)


def write(args, origin: dict, curves: points.Curves):
    options = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}  # places say nothing
    policies = {policy: flags_of(policy) for policy in curves.policies}
    record = dict(**origin, options=options, policies=policies, **dataclasses.asdict(curves))
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(points.page(origin, curves, args.out.with_suffix(".svg").name))
    try:
        from benchmarks.curves import figure

        figure.draw(curves, args.out.with_suffix(".svg"))
    except ImportError:
        print("no matplotlib here (pip install 'zipage-sglang[bench]'): no picture; the same command draws it later")
        return
    print(f"\nwritten: {args.out}, .md and .svg")


def arguments(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.curves", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--model", choices=("reasoner", "smollm2"), default="reasoner", help="(default %(default)s)")
    add("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), help="beside full KV (default: all)")
    add("--budgets", type=int, nargs="+", default=[256, 512, 768, 1024, 1536], help="K (default 256 512 768 1024 1536)")
    add("--out", type=Path, help="JSON file; .md and .svg are written beside it")
    variants.add_options(parser.add_argument_group("reasoner"), ".curves")
    group = parser.add_argument_group("smollm2")
    group.add_argument("--documents", type=int, default=16, help="the first N (default: all)")
    group.add_argument("--known", action="store_true", help="measure nothing, show what is there")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
