"""Output tokens per second under memory pressure: full KV and zipage in one run, same prompts, lengths and KV pool.

Random weights with a real model's shapes; groups of samples share a prompt; output lengths are lognormal (sigma 1) and capped.
Every mode runs for the same time in a process of its own; the second half, when both are saturated, is what is compared.
Prints a table and writes a JSON file and the time line as CSV.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import provenance, table
from benchmarks.shapes import SHAPES, model_folder

RESULTS = Path(__file__).parent / "results"
DECODE = re.compile(r"Decode batch.*?#running-req: (\d+), #token: (\d+), token usage: ([\d.]+).*?gen throughput \(token/s\): ([\d.]+)"
                    r".*?#queue-req: (\d+)")
RETRACTED = re.compile(r"#retracted_reqs: (\d+)")
INTERVAL = 20  # decode steps between two log lines


def make_load(args):
    """(prompts, lengths): groups of `samples` requests share a prompt of `prompt` tokens."""
    rng = random.Random(args.seed)
    mu = math.log(args.mean) - 0.5  # so that the mean of exp(N(mu, 1)) is `mean`, before the cap
    prompts, lengths = [], []
    while len(prompts) < args.requests:
        ids = [rng.randrange(1000, 100000) for _ in range(args.prompt)]
        for _ in range(min(args.samples, args.requests - len(prompts))):
            prompts.append(ids)
            lengths.append(max(16, min(args.cap, int(rng.lognormvariate(mu, 1.0)))))
    return prompts, lengths


def run(mode: str, args, folder: Path) -> dict:
    prompts, lengths = make_load(args)
    engine = dict(
        model_path=str(model_folder(args.model, folder)), load_format="dummy", skip_tokenizer_init=True, dtype="bfloat16",
        attention_backend=args.attention_backend, max_total_tokens=args.pool, random_seed=args.seed,
        cuda_graph_max_bs_decode=512, disable_prefill_cuda_graph=True, grammar_backend="none", log_level="info",
        decode_log_interval=INTERVAL,
    )
    if mode == "zipage":
        engine |= dict(enable_zipage=True, zipage_budget=args.budget, zipage_block=args.block, zipage_policy=args.policy)
    spec, result, log = folder / f"{mode}.spec.json", folder / f"{mode}.json", folder / f"{mode}.log"
    spec.write_text(json.dumps(dict(engine=engine, prompts=prompts, lengths=lengths, seconds=args.seconds)))
    print(f"{time.strftime('%H:%M:%S')} {mode}: {len(prompts)} requests for {args.seconds} s", flush=True)
    with log.open("wb") as out:
        done = subprocess.run([sys.executable, "-m", "benchmarks.load", str(spec), str(result)], stdout=out,
                              stderr=subprocess.STDOUT, timeout=args.seconds + 300, start_new_session=True)
    text = log.read_text(errors="replace")
    if done.returncode or not result.exists():
        raise SystemExit(f"{mode} failed:\n{text[-3000:]}")
    return dict(mode=mode, engine=engine, steps=timeline(text), retracted=sum(map(int, RETRACTED.findall(text))),
                samples=json.loads(result.read_text())["samples"])


def timeline(log: str) -> list[dict]:
    """One entry per logged decode interval; `seconds` follows from the tokens of the interval and SGLang's throughput."""
    steps, now = [], 0.0
    for running, tokens, usage, rate, waiting in DECODE.findall(log):
        if float(rate) <= 0 or int(running) == 0:
            continue
        now += INTERVAL * int(running) / float(rate)
        steps.append(dict(time=round(now, 2), running=int(running), waiting=int(waiting), resident=int(tokens),
                          usage=float(usage), rate=float(rate)))
    return steps


def summary(result: dict) -> dict:
    """Means over the second half of the time, weighted by time."""
    steps = result["steps"]
    half = [b for a, b in zip(steps, steps[1:]) if b["time"] > steps[-1]["time"] / 2]
    seconds = [INTERVAL * s["running"] / s["rate"] for s in half]
    mean = lambda key: sum(s[key] * t for s, t in zip(half, seconds)) / sum(seconds)
    zipage = (result["samples"][-1]["zipage"] or {}) if result["samples"] else {}
    return dict(rate=mean("rate"), running=mean("running"), usage=mean("usage"), resident=mean("resident"),
                step_ms=1000 * mean("running") / mean("rate"), retracted=result["retracted"],
                finished=result["samples"][-1]["finished"], compressions=zipage.get("compressions", 0),
                buffer_mib=zipage.get("buffer_bytes", 0) / 2**20)


def main():
    args = _arguments()
    origin = provenance.describe()
    results, rows = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for mode in args.modes:
            results.append(run(mode, args, args.keep or Path(folder)))
            rows[mode] = summary(results[-1])
            print(f"{mode}: {rows[mode]}", flush=True)
    print("\n" + table.render(
        ["mode", "output tok/s", "running", "pool used", "step ms", "retracted", "finished", "compressions", "buffers MiB"],
        [[m, f"{s['rate']:.0f}", f"{s['running']:.0f}", f"{s['usage']:.2f}", f"{s['step_ms']:.1f}", s["retracted"], s["finished"],
          s["compressions"], f"{s['buffer_mib']:.0f}"] for m, s in rows.items()]))
    if {"full", "zipage"} <= rows.keys():
        print(f"zipage / full: {rows['zipage']['rate'] / rows['full']['rate']:.2f}x output tok/s (second half of {args.seconds} s)")
    out = args.out or RESULTS / f"throughput-{args.model}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    out.write_text(json.dumps(dict(**origin, options=options, summary=rows), indent=1) + "\n")
    with out.with_suffix(".csv").open("w", newline="") as f:
        writer = csv.DictWriter(f, ["mode", *results[0]["steps"][0]], lineterminator="\n")
        writer.writeheader()
        writer.writerows(dict(mode=r["mode"], **s) for r in results for s in r["steps"])
    print(f"written: {out} and .csv")


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.throughput", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=SHAPES, default="qwen3-0.6b")
    add("--modes", type=lambda s: s.split(","), default=["full", "zipage"])
    add("--seconds", type=int, default=120, help="time of each mode (default %(default)s)")
    add("--requests", type=int, default=768)
    add("--samples", type=int, default=32, help="requests that share a prompt (default %(default)s)")
    add("--prompt", type=int, default=150, help="prompt tokens (default %(default)s)")
    add("--mean", type=int, default=8192, help="mean output tokens before the cap (default %(default)s)")
    add("--cap", type=int, default=16384, help="most output tokens (default %(default)s)")
    add("--pool", type=int, default=300000, help="KV pool in tokens (default %(default)s)")
    add("--budget", type=int, default=2048)
    add("--block", type=int, default=256)
    add("--policy", default="zipage")
    add("--attention-backend", default="flashinfer")
    add("--seed", type=int, default=0)
    add("--keep", type=Path, help="folder to keep the engines' logs in")
    add("--out", type=Path, help="JSON file; the time line goes beside it as CSV")
    return parser.parse_args()


if __name__ == "__main__":
    main()
