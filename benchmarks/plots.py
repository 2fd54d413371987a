"""One picture of a throughput run: running requests, output tokens per second and pool use over time, one line a mode.

Reads the JSON file that `python -m benchmarks.throughput` wrote, or the CSV file beside it, and writes a PNG file.  Needs
matplotlib (`pip install -e .[bench]`).
"""

from __future__ import annotations

import argparse
import csv
import json
from pathlib import Path

PANELS = (("running", "requests running"), ("rate", "output tokens / s"), ("usage", "share of KV pool in use"))


def read_lines(path: Path) -> dict[str, list[dict]]:
    """{mode: rows of numbers} of a time line's CSV file."""
    modes = {}
    with path.open(newline="") as f:
        for row in csv.DictReader(f):
            modes.setdefault(row.pop("mode"), []).append({key: float(value) for key, value in row.items()})
    return modes


def smooth(rows: list[dict], key: str, bins: int = 150) -> tuple[list[float], list[float]]:
    """(times, values): `key` averaged in at most `bins` equal spans of time, so that single steps do not hide the course.

    A rate's mean is tokens / seconds, each row weighing as long as its step (running / rate).
    """
    width = rows[-1]["time"] / bins or 1.0
    sums = {}
    for row in rows:
        weight = row["running"] / row["rate"]
        total = sums.setdefault(min(int(row["time"] / width), bins - 1), [0.0, 0.0])
        total[0] += weight * row[key]
        total[1] += weight
    return [(b + 0.5) * width for b in sorted(sums)], [sums[b][0] / sums[b][1] for b in sorted(sums)]


def draw(modes: dict[str, list[dict]], title: str, out: Path):
    import matplotlib

    matplotlib.use("Agg")  # no display needed
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(PANELS), 1, sharex=True, figsize=(8, 8), layout="constrained")
    for axis, (key, label) in zip(axes, PANELS, strict=True):
        for mode, rows in modes.items():
            axis.plot(*smooth(rows, key), label=mode, linewidth=1.5)
        axis.set_ylabel(label)
        axis.set_ylim(bottom=0)
        axis.grid(alpha=0.3)
    axes[0].legend(loc="best", fontsize="small")
    axes[-1].set_xlabel("time (s)")
    axes[-1].set_xlim(left=0)
    figure.suptitle(title, fontsize="medium")
    figure.savefig(out, dpi=120, metadata={"Software": None})  # the same input gives the same file
    pyplot.close(figure)


def title_of(record: dict) -> str:
    """What was run where, from a result's JSON."""
    o = record["options"]
    return (f"{o['model']}, pool of {o['pool']:,} tokens, prompts of {o['prompt']:,}, outputs of {o['mean']:,} on average\n"
            f"{record['device']}")


def main(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plots", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path, help="JSON or CSV file of a throughput run")
    parser.add_argument("--out", type=Path, help="PNG file (default: beside the result)")
    args = parser.parse_args(argv)
    record = args.result.with_suffix(".json")
    title = title_of(json.loads(record.read_text())) if record.exists() else args.result.stem
    out = args.out or args.result.with_suffix(".png")
    draw(read_lines(args.result.with_suffix(".csv")), title, out)
    print(f"written: {out}")


if __name__ == "__main__":
    main()
