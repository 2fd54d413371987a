"""Options of `python -m benchmarks.report`, with the size's values where nothing else is said."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from benchmarks.modes import Mode, parse_modes
from benchmarks.report import arrivals, workloads
from benchmarks.report.sizes import SIZES, Size

PARTS = ("offline", "online", "operations")
# Of a size: what a number means.  Other modes, workloads and rates may join later.
_SAME = (
    "model",
    "pool",
    "budget",
    "block",
    "scale",
    "length_scale",
    "unit_seconds",
    "online_workload",
    "online_length",
    "online_seconds",
    "stream_interval",
    "probes",
)


@dataclasses.dataclass(frozen=True)
class Options:
    """size: with everything that the command line changes.  limit: s of this call, None for none.  lengths: a file for all
    workloads, None for theirs.  chosen: what may not change from one call to the next, for the output folder."""

    name: str
    size: Size
    modes: dict[str, Mode]
    parts: tuple[str, ...]
    device: str
    attention_backend: str
    lengths: str | None
    seed: int
    out: Path
    limit: float | None
    plan: bool
    render: bool
    redo: tuple[str, ...]

    @property
    def notes(self) -> list[str]:
        """What a reader of the numbers must know."""
        return [
            "Requests are generated to their last token (EOS is ignored), temperature 0.6, streamed. A workload that is "
            f"not answered whole is cut off after {self.size.unit_seconds:g} s in every mode.",
            "full: SGLang's default flags, on the same model, pool and page size. radix=off: without its prefix cache. "
            "when=pressure: requests are compressed only when others need their pages.",
            "async_steps=N: compressions run on a stream of their own, and their requests sit out N decode steps; without it "
            "they run between two decode steps. passes=1: the last w queries before a compression score; otherwise all since "
            "the last one do, unless async_steps or when=pressure is set. There is no switch for hybrid scheduling: every request "
            "has a query slot as long as its queries are to score.",
            "There is no layer stride: all layers are scored in one pass.",
        ]

    @property
    def chosen(self) -> dict:
        kept = {name: getattr(self.size, name) for name in _SAME}
        return dict(
            size=self.name,
            **kept,
            device=self.device,
            lengths=self.lengths,
            seed=self.seed,
            attention_backend=self.attention_backend,
        )


def parse(argv: list[str] | None, description: str) -> Options:
    """Exits with one line if the options do not fit together."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add(
        "--size",
        choices=SIZES,
        required=True,
        help="Qwen3 shapes with random weights, on a GPU; tiny: the reasoner, on the CPU",
    )
    add("--out", type=Path, help="folder of everything; a second call goes on there (default .report/SIZE)")
    add(
        "--limit",
        type=float,
        metavar="SECONDS",
        help="end after this time; the same command goes on (default: until all is done)",
    )
    add("--plan", action="store_true", help="only print what would run, and how long that takes")
    add("--render", action="store_true", help="measure nothing; write the report of what is there")
    add("--redo", nargs="+", default=[], metavar="UNIT", help="measure these again (names as --plan prints them)")
    add("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    add("--modes", nargs="+", help="full, zipage, zipage:budget=1024, full:radix=off, ... instead of the size's")
    add(
        "--workloads",
        nargs="+",
        metavar="NAME[@ARRIVALS]",
        help="of every mode, instead of the size's: "
        f"{', '.join(workloads.WORKLOADS)}; arrivals: all, poisson:RATE, bursts:SIZE:SECONDS",
    )
    add("--lengths", help="file of prompt and output lengths for all workloads (JSON, or a trace as CSV)")
    add(
        "--scale",
        type=_scale,
        help="share of the requests, questions and samples shrunk evenly; `fit`: so that the slowest mode "
        "ends within --unit-seconds",
    )
    add("--length-scale", type=float, help="of prompts, outputs and their maximum")
    add("--unit-seconds", type=float, help="that one workload runs in one mode, at most")
    add("--pool", type=int, help="KV pool in tokens, of every mode")
    add("--budget", type=int, help="K of zipage modes that do not name one, as is --block")
    add("--block", type=int)
    add("--rates", type=float, nargs="+", help="online: requests a second")
    add("--online-seconds", type=float, help="online: requests are sent for so long")
    add("--tpot-ms", type=float, help="online: a request that needs longer per token is not good")
    add("--device", choices=["cuda", "cpu"], help="(default: cpu for tiny, else cuda)")
    add("--attention-backend", default="flashinfer", help="on cuda (default %(default)s)")
    add("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    try:
        return _options(args)
    except ValueError as error:
        parser.error(str(error))


def _scale(text: str):
    return text if text == "fit" else float(text)


def _options(args) -> Options:
    size = SIZES[args.size]
    given = {
        name: getattr(args, name)
        for name in ("length_scale", "unit_seconds", "pool", "budget", "block", "online_seconds", "tpot_ms")
    }
    for name, value in given.items():
        if value is not None and value <= 0:
            raise ValueError(f"--{name.replace('_', '-')} must be positive, got {value}")
    size = dataclasses.replace(size, **{name: value for name, value in given.items() if value is not None})
    if args.rates:
        if min(args.rates) <= 0:
            raise ValueError(f"--rates must be positive, got {args.rates}")
        size = dataclasses.replace(size, rates=tuple(args.rates))
    if args.workloads:
        size = dataclasses.replace(size, for_all=tuple(map(_workload, args.workloads)), for_first=(), special=())
    modes = parse_modes(args.modes or list(size.modes), budget=size.budget, block=size.block)
    if args.modes:
        texts = tuple(mode.text for mode in modes)
        size = dataclasses.replace(
            size,
            modes=texts,
            special=() if args.workloads else size.special,
            first_modes=tuple(t for t in texts if t in size.first_modes) or texts[:2],
        )
    modes += parse_modes([mode for *_, mode in size.special], budget=size.budget, block=size.block) if size.special else []
    if args.lengths:
        args.lengths = workloads.own_lengths(args.lengths)
    if args.scale is not None:
        if args.scale != "fit" and not 0 < args.scale <= 1:
            raise ValueError(f"--scale must be above 0 and at most 1, or `fit`, got {args.scale}")
        size = dataclasses.replace(size, scale=fit(size, args.lengths, args.seed) if args.scale == "fit" else args.scale)
    device = args.device or ("cpu" if args.size == "tiny" else "cuda")
    return Options(
        args.size,
        size,
        {m.text: m for m in modes},
        tuple(args.parts),
        device,
        args.attention_backend,
        args.lengths,
        args.seed,
        args.out or _default_out(args.size),
        args.limit,
        args.plan,
        args.render,
        tuple(args.redo),
    )


def _default_out(size: str) -> Path:
    return Path(".report") / size


def _workload(text: str) -> tuple[str, str]:
    name, _, pattern = text.partition("@")
    if name not in workloads.WORKLOADS:
        raise ValueError(f"--workloads {text}: {name!r} is none of {', '.join(workloads.WORKLOADS)}")
    arrivals.times(pattern or "all", 1)
    return name, pattern or "all"


def fit(size: Size, path: str | None, seed: int) -> float:
    """The largest scale at which the largest workload's output tokens fit unit_seconds at the size's tokens a second."""
    names = {name for name, _ in size.for_all + size.for_first} | {name for name, *_ in size.special}
    chosen = [w.with_lengths(path) if path else w for w in map(workloads.WORKLOADS.get, names)]
    tokens = max(workloads.make_load(w, range(1, 9), seed, size.length_scale).output_tokens for w in chosen)
    return min(1.0, size.unit_seconds * size.tokens_per_second / tokens)
