"""Output tokens per second under memory pressure: full KV and zipage in one run, same prompts, lengths and KV pool.

Random weights with a real model's shapes; groups of samples share a prompt; output lengths are lognormal (sigma 1) and capped.
Every mode runs for the same time in a process of its own; the second half, when all are saturated, is what is compared.  A mode
is `full`, `zipage`, or `zipage:budget=1024,block=128,prefix=compress` (any --zipage option).  Prints tables and writes a JSON
file and the time line as CSV (`python -m benchmarks.plots` draws it).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import csv
import itertools
import json
import math
import os
import queue
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import provenance, table, timeline
from benchmarks.measures import percentile
from benchmarks.modes import Mode, parse_modes
from benchmarks.shapes import MODELS, engine_arguments, token_ids
from zipage_sglang.sizing import ceiling

RESULTS = Path(__file__).parent / "results"


def make_load(args) -> tuple[list[list[int]], list[list[int]]]:
    """(prompts, groups): output lengths of the `samples` requests of each prompt."""
    rng, ids = random.Random(args.seed), token_ids(args.model)
    mu = math.log(args.mean) - 0.5  # so that the mean of exp(N(mu, 1)) is `mean`, before the cap
    prompts, groups, left = [], [], args.requests
    while left:
        prompts.append([rng.randrange(ids.start, ids.stop) for _ in range(args.prompt)])
        groups.append([max(16, min(args.cap, int(rng.lognormvariate(mu, 1.0)))) for _ in range(min(args.samples, left))])
        left -= len(groups[-1])
    return prompts, groups


def run(mode: Mode, args, prompts, groups, folder: Path, gpus: queue.Queue) -> dict:
    """Run one mode, on the first GPU that is free if `gpus` names any; {"log", "engine", "seconds", "samples", "arrivals"}."""
    engine = engine_arguments(args.model, args.device, args.attention_backend, 512, folder) | mode.engine | dict(
        max_total_tokens=args.pool, max_running_requests=args.max_running, random_seed=args.seed,
        decode_log_interval=args.log_interval)
    requests = [(i, length) for i, group in enumerate(groups) for length in group]
    # The longest of the first: they run from the start and to the end.
    probes = sorted(range(min(16, len(requests))), key=lambda i: -requests[i][1])[:args.probes]
    name = re.sub(r"[^\w.=-]+", "_", mode.text)
    spec, result, log = folder / f"{name}.spec.json", folder / f"{name}.json", folder / f"{name}.log"
    spec.write_text(json.dumps(dict(engine=engine, prompts=prompts, requests=requests, probes=probes, seconds=args.seconds)))
    result.unlink(missing_ok=True)  # --keep may hold an older one
    gpu = gpus.get()
    print(f"{time.strftime('%H:%M:%S')} {mode.text}: {len(requests)} requests for {args.seconds} s", flush=True)
    with log.open("wb") as out:
        done = subprocess.run([sys.executable, "-m", "benchmarks.load", str(spec), str(result)], stdout=out,
                              stderr=subprocess.STDOUT, timeout=args.seconds + 300, start_new_session=True, check=False,
                              env=os.environ | ({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}))
    gpus.put(gpu)
    text = log.read_text(errors="replace")
    if done.returncode or not result.exists():
        raise SystemExit(f"{mode.text} failed:\n{text[-3000:]}")
    return dict(log=text, engine=engine, **json.loads(result.read_text()))


def summarize(mode: Mode, result: dict, steps: list[dict], args, groups) -> dict:
    """Everything of one mode; means, percentiles and shares are of the second half of the time."""
    half = timeline.second_half(steps)
    if not half:
        raise SystemExit(f"{mode.text}: too few decode steps in the log:\n{result['log'][-3000:]}")
    zipage = result["samples"][-1]["zipage"] or {}
    held = ceiling.held(groups, args.prompt, mode.config)
    summary = timeline.means(half) | timeline.step_times(half) | token_gaps(result)
    summary |= dict(
        rate_whole_run=timeline.means(steps)["rate"],
        held=summary["resident"] / summary["running"], held_expected=held,
        running_expected=ceiling.running(held, args.pool, args.requests, args.max_running),
        retracted=max(timeline.retractions(result["log"]), zipage.get("retractions", 0)),
        finished=result["samples"][-1]["finished"],
    )
    if mode.config:
        promised = args.pool / ceiling.promised(groups, args.prompt, mode.config)
        summary |= plugin_cost(result) | dict(
            compressions=zipage.get("compressions"), buffer_mib=zipage.get("buffer_bytes", 0) / 2**20, promised_running=promised,
            running_over_promised=summary["running"] / min(promised, args.max_running or promised))
    return summary


def token_gaps(result: dict) -> dict:
    """Time between two tokens of a streamed request as its client sees it, ms."""
    gaps = [1000 * (b - a) for times in result["arrivals"] for a, b in itertools.pairwise(times) if a >= result["seconds"] / 2]
    return dict(gap_p50_ms=percentile(gaps, 50), gap_p99_ms=percentile(gaps, 99), gap_max_ms=max(gaps, default=None))


def plugin_cost(result: dict) -> dict:
    """CPU time of the plugin a decode step without its compressions, and a compression, us; GPU time of compressions as a share
    of time; None if not reported."""
    samples = [s for s in result["samples"] if s["time"] >= result["seconds"] / 2] or result["samples"][-1:]
    first, last = samples[0], samples[-1]

    def grown(key):
        before, after = (s["zipage"].get(key) for s in (first, last))
        return None if before is None or after is None else after - before

    steps, host, gpu, seconds = grown("steps"), grown("host_seconds"), grown("gpu_seconds"), last["time"] - first["time"]
    compress, number = grown("compress_seconds"), grown("compressions")
    return dict(host_us_per_step=1e6 * (host - compress) / steps if steps and compress is not None else None,
                host_us_per_compression=1e6 * compress / number if number and compress is not None else None,
                compression_share=gpu / seconds if seconds and gpu is not None else None)


def compare(rows: dict[str, dict], modes: list[Mode]):
    """Add to zipage's rows what they reach of the ceiling, if full KV was run."""
    full = rows.get("full")
    for mode in modes if full else []:
        if mode.config:
            row = rows[mode.text]
            row["ceiling"] = row["running_expected"] / full["running_expected"]
            row["rate_over_full"] = row["rate"] / full["rate"]
            row["share_of_ceiling"] = row["rate_over_full"] / row["ceiling"]
            row["ceiling_measured"] = full["held"] / row["held"]


def render(rows: dict[str, dict]) -> str:
    columns = [
        {"output tok/s": ("rate", 0), "whole run": ("rate_whole_run", 0), "running": ("running", 1), "pool used": ("usage", 2),
         "step ms": ("step_ms", 2), "p50": ("step_p50_ms", 2), "p99": ("step_p99_ms", 2), "p99/p50": ("step_p99_over_p50", 2),
         "gap p50": ("gap_p50_ms", 2), "gap p99": ("gap_p99_ms", 2), "retracted": ("retracted", 0), "finished": ("finished", 0)},
        {"held": ("held", 0), "expected": ("held_expected", 0), "ceiling": ("ceiling", 2), "reached": ("rate_over_full", 2),
         "share": ("share_of_ceiling", 2), "measured ceiling": ("ceiling_measured", 2),
         "running/promised": ("running_over_promised", 2)},
        {"compressions": ("compressions", 0), "host us/step": ("host_us_per_step", 0),
         "host us/compression": ("host_us_per_compression", 0), "GPU share": ("compression_share", 4),
         "buffers MiB": ("buffer_mib", 0)},
    ]
    cell = lambda value, digits: "-" if value is None else f"{value:.{digits}f}"
    return "\n\n".join(table.render(["mode", *heads], [[text, *(cell(row.get(key), digits) for key, digits in heads.values())]
                                                       for text, row in rows.items()]) for heads in columns) + LEGEND


LEGEND = """

All but `whole run`, retracted, finished, compressions and buffers: second half of the time. p50, p99: ms, of steps without a
prefill batch beside them. gap: ms between two tokens of a streamed request. held: KV tokens a running request holds, measured,
and expected of this load. ceiling: requests running over full KV's at equal resident tokens, from what is expected to be held,
and measured; reached: output tok/s over full KV's; share: reached / ceiling. promised: pool / (share of the prompt + K + b).
host: the plugin's own time on the CPU, a step without its compressions and a compression.  GPU share: of time, for compressions."""


def main():
    args = _arguments()
    origin = provenance.describe()
    prompts, groups = make_load(args)
    rows, lines = {}, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        gpus: queue.Queue = queue.Queue()
        for gpu in args.gpus:
            gpus.put(gpu)
        running = concurrent.futures.ThreadPoolExecutor(len(args.gpus))
        for mode, result in zip(args.modes, running.map(lambda m: run(m, args, prompts, groups, folder, gpus), args.modes)):
            steps = timeline.read_steps(result["log"], args.log_interval)
            rows[mode.text] = summarize(mode, result, steps, args, groups)
            lines += [dict(mode=mode.text, **step) for step in timeline.thin(steps)]
            compare(rows, args.modes[: len(rows)])
            print(f"{mode.text}: {json.dumps(rows[mode.text])}", flush=True)
            _write(args, origin, rows, lines)  # after every mode, so that an interrupted run keeps what it has
    print("\n" + render(rows))
    print(f"written: {_out(args)} and .csv")


def _out(args) -> Path:
    return args.out or RESULTS / f"throughput-{args.model}.json"


def _write(args, origin: dict, rows: dict, lines: list[dict]):
    out = _out(args)
    out.parent.mkdir(parents=True, exist_ok=True)
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()} | {"modes": [m.text for m in args.modes]}
    out.write_text(json.dumps(dict(**origin, options=options, summary=rows), indent=1) + "\n")
    with out.with_suffix(".csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, ["mode", *timeline.FIELDS], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


def _arguments(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, default="qwen3-0.6b")
    add("--modes", nargs="+", default=["full", "zipage"], help="comma- or space-separated (default full zipage)")
    add("--seconds", type=int, default=120, help="time of each mode (default %(default)s)")
    add("--requests", type=int, default=768)
    add("--samples", type=int, default=32, help="requests that share a prompt (default %(default)s)")
    add("--prompt", type=int, default=150, help="prompt tokens (default %(default)s)")
    add("--mean", type=int, default=8192, help="mean output tokens before the cap (default %(default)s)")
    add("--cap", type=int, default=16384, help="most output tokens (default %(default)s)")
    add("--pool", type=int, default=300000, help="KV pool in tokens (default %(default)s)")
    add("--max-running", type=int, help="most requests at once (default: SGLang's)")
    add("--budget", type=int, default=2048, help="of zipage modes that do not name one, as are --block and --policy")
    add("--block", type=int, default=256)
    add("--policy", default="zipage")
    add("--probes", type=int, default=4, help="streamed requests, for the time between tokens (default %(default)s)")
    add("--log-interval", type=int, default=1, help="decode steps a log line; percentiles are of steps at 1 (the default)")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--attention-backend", default="flashinfer", help="on cuda (default %(default)s)")
    add("--gpus", type=lambda text: text.split(","), default=[""],
        help="such as 0,1: the modes run at the same time, each on a GPU of its own (default: one after the other)")
    add("--seed", type=int, default=0)
    add("--keep", type=Path, help="folder to keep the engines' logs in")
    add("--out", type=Path, help="JSON file; the time line goes beside it as CSV")
    args = parser.parse_args(argv)
    try:
        args.modes = parse_modes(args.modes, budget=args.budget, block=args.block, policy=args.policy)
    except ValueError as error:
        parser.error(str(error))
    return args


if __name__ == "__main__":
    main()
