"""Many runs of `python -m benchmarks.accuracy` on the reasoner, several at once, a file each in one folder.

A variant whose file is there is not measured again, so that the same command goes on after an interruption.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

BLOCK = 128


@dataclasses.dataclass(frozen=True)
class Variant:
    """name: of its file, folder/NAME.json, beside its log.  title: to the user.  options: for benchmarks.accuracy, beyond what
    `add_options` gives.  budget: None for full KV.  families: None for all."""

    name: str
    title: str
    options: list[str]
    budget: int | None
    families: list[str] | None = None


def add_options(parser, folder: str):
    """What all variants of a run have in common."""
    add = parser.add_argument
    add("--level", type=int, default=2000, help="tokens of reasoning (default %(default)s)")
    add("--regime", default="default", help="knobs of the problems: default or short (default %(default)s)")
    add("--n", type=int, default=64, help="problems a family (default %(default)s)")
    add("--concurrency", type=int, default=256, help="requests at once (default %(default)s)")
    add("--jobs", type=int, default=1, help="engines at once (default %(default)s)")
    add("--gpus", type=lambda text: text.split(","), help="numbers, shared out among the jobs")
    add("--folder", type=Path, default=Path(folder), help="a file a variant (default %(default)s)")


def measure_all(variants: list[Variant], args) -> list[Path | None] | None:
    """Their files, None for one whose run failed (its log lies beside it); None if Ctrl-C ended it all."""
    args.folder.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        try:
            return list(pool.map(lambda item: _measure(item[1], item[0], args), enumerate(variants)))
        except KeyboardInterrupt:  # the runs get it, too, and end
            pool.shutdown(cancel_futures=True)
            print("\ninterrupted; the same command goes on with what is missing")
            return None


def _measure(variant: Variant, number: int, args) -> Path | None:
    path = args.folder / f"{variant.name}.json"
    if path.exists():
        _check(path, variant, args)
        return path
    env = dict(os.environ)
    if args.gpus:
        env["CUDA_VISIBLE_DEVICES"] = args.gpus[number % len(args.gpus)]
    with path.with_suffix(".log").open("wb") as log:
        command = [*command_of(variant, args), "--out", str(path) + ".part"]
        code = subprocess.run(command, env=env, stdout=log, stderr=subprocess.STDOUT).returncode
    if code == 0:
        os.replace(str(path) + ".part", path)
    print(f"[{variant.title}] {'done' if code == 0 else f'failed ({code})'}", flush=True)
    return path if code == 0 else None


def command_of(variant: Variant, args) -> list[str]:
    """The run of one variant, but for its file."""
    budget = [] if variant.budget is None else ["--budgets", str(variant.budget), "--no-full"]
    families = ["--families", ",".join(variant.families)] if variant.families else []
    return [sys.executable, "-m", "benchmarks.accuracy", "--levels", str(args.level), "--n", str(args.n), *budget, *families,
            "--block", str(BLOCK), "--knobs", args.regime, "--concurrency", str(args.concurrency), *variant.options]  # fmt: skip


def _check(path: Path, variant: Variant, args):
    options = json.loads(path.read_text())["options"]
    wanted = dict(levels=[args.level], knobs=args.regime, n=args.n)
    if variant.budget is not None:
        wanted["budgets"] = [variant.budget]
    if variant.families:
        wanted["families"] = variant.families
    for name, value in wanted.items():
        if options[name] != value:
            raise SystemExit(f"{path} was measured with {name} {options[name]}, not {value}: give another --folder")


def cells(path: Path) -> dict[str, dict]:
    """{family: its record} of one variant."""
    return {cell["family"]: cell for cell in json.loads(path.read_text())["cells"]}


def origin(path: Path) -> str:
    """Commit and device that a variant was measured with."""
    record = json.loads(path.read_text())
    return f"{record['git_commit'] or 'an unknown commit'} on {record['device']}"
