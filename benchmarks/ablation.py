"""One knob at a time: what each does to the reasoner's accuracy, beside the default and the paper's settings.

    python -m benchmarks.ablation --budget 512 --n 64 --gpus 0,1 --jobs 20 --out FILE [--knobs window recency]

Every variant is one run of `python -m benchmarks.accuracy`, --jobs at a time, on the same problems; rows are compared with the
default's problem by problem (exact McNemar test over all families).  A variant that is there is not measured again, so that
the same command goes on after an interruption.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benchmarks import provenance, table, variants
from benchmarks.reasoner import tasks
from benchmarks.server import exit_on_sigterm
from benchmarks.stats import mcnemar, wilson

# knob -> {value: what differs from the defaults (lambda 0.2, alpha 0.8, tau 0.4, w 16, b 128, all windows,
# pooling once, lightning, r 0.5)}
ZIPAGE = ["--policies", "zipage"]
VARIANTS: dict[str, dict[str, list[str]]] = {
    "default": {"": ZIPAGE},
    "paper": {"r 0, 1 pass": [*ZIPAGE, "--recency", "0", "--passes", "1"]},
    "recency": {r: [*ZIPAGE, "--recency", r] for r in ("0", "0.25", "0.75", "0.9")},
    "window": {w: [*ZIPAGE, "--window", w] for w in ("4", "32")},
    "passes": {f"{p} of {w}": [*ZIPAGE, "--passes", p, "--window", w] for p, w in (("1", "16"), ("4", "16"), ("1", "64"), ("1", "128"))},
    "alpha": {a: [*ZIPAGE, "--alpha", a] for a in ("0", "0.95", "1")},
    "lambda": {v: [*ZIPAGE, "--lambda", v] for v in ("0.05", "0.5", "0.9")},
    "redundancy": {"none": [*ZIPAGE, "--redundancy", "none", "--lambda", "1"], "flash": [*ZIPAGE, "--redundancy", "flash"]},
    "tau": {t: [*ZIPAGE, "--tau", t] for t in ("0.04", "4")},
    "pooling": {p: [*ZIPAGE, "--pooling", p] for p in ("never", "always")},
    "block": {b: [*ZIPAGE, "--block", b] for b in ("32", "64", "256")},
    "policy": {p: ["--policies", p] for p in ("attention", "random", "recent")},
}


def names(knobs: list[str]) -> list[tuple[str, str]]:
    return [(knob, value) for knob in VARIANTS if knob in knobs or knob == "default" for value in VARIANTS[knob]]


def variants_of(knobs: list[str], budget: int) -> dict[tuple[str, str], variants.Variant]:
    return {(knob, value): variants.Variant(f"{knob}-{value or 'default'}", f"{knob} {value}", VARIANTS[knob][value], budget)
            for knob, value in names(knobs)}


def outcomes(path: Path) -> dict[str, list[bool]]:
    """{family: right or not, by problem}."""
    return {family: cell["outcomes"] for family, cell in variants.cells(path).items()}


def rows(found: dict[tuple[str, str], dict[str, list[bool]]]) -> list[dict]:
    """A row a variant: pass@1 of each family and their mean, and how it differs from the default."""
    base, result = found[("default", "")], []
    for (knob, value), cells in found.items():
        per_family = {f: sum(cells[f]) / len(cells[f]) for f in tasks.FAMILIES if f in cells}
        pairs = [(a, b) for f in per_family for a, b in zip(cells[f], base.get(f, []), strict=False)]
        better, worse = sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)
        right, n = sum(map(sum, cells.values())), sum(map(len, cells.values()))
        result.append(dict(knob=knob, value=value, families=per_family, mean=sum(per_family.values()) / len(per_family), right=right,
                           n=n, wilson95=wilson(right, n), better=better, worse=worse, p=mcnemar(better, worse)))  # fmt: skip
    return result


def render(result: list[dict]) -> str:
    head = ["variant", *tasks.FAMILIES, "mean %", "95 %", "better", "worse", "p"]
    lines = [
        [f"{r['knob']} {r['value']}".strip(), *(f"{100 * r['families'].get(f, float('nan')):.0f}" for f in tasks.FAMILIES),
         f"{100 * r['mean']:.1f}", "{:.0f}-{:.0f}".format(*(100 * x for x in r["wilson95"])), r["better"], r["worse"],
         f"{r['p']:.3f}" if r["knob"] != "default" else "-"] for r in result
    ]  # fmt: skip
    return table.render(head, lines)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ablation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    add = parser.add_argument
    add("--knobs", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="only these, and the default")
    add("--budget", type=int, default=512, help="K (default %(default)s)")
    variants.add_options(parser, ".ablation")
    add("--out", type=Path, help="JSON file of the table")
    args = parser.parse_args(argv)
    exit_on_sigterm()
    origin, chosen = provenance.describe(), variants_of(args.knobs, args.budget)
    paths = variants.measure_all(list(chosen.values()), args)
    if paths is None:
        return 130
    found = {name: outcomes(path) for name, path in zip(chosen, paths, strict=True) if path}
    if ("default", "") not in found:
        print("the default did not run; nothing to compare with")
        return 1
    result = rows(found)
    print(render(result))
    if args.out:
        options = {k: str(v) for k, v in vars(args).items()}
        args.out.write_text(json.dumps(dict(**origin, options=options, rows=result), indent=1) + "\n")
    return int(None in paths)


if __name__ == "__main__":
    sys.exit(main())
