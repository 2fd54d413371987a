"""What zipage costs where it has nothing to do: full KV and zipage without memory pressure, in interleaved pairs.

Two engines with the same flags but one are alive on the same GPU, each in a process of its own; the idle one sleeps.  Every pair
sends the same batch to one engine, waits, and sends it to the other, in alternating order; no request reaches K + b tokens.
Prints each pair's output tokens per second and their ratio, the mean ratio with its 95 % t interval, and how many outputs were
equal.  Random weights make near ties common, and batches form differently from run to run, so outputs of full KV are compared
with those of its first run too.  Writes a JSON file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import random
import tempfile
import time
from pathlib import Path

from benchmarks import provenance, table
from benchmarks.measures import mean_interval
from benchmarks.modes import Mode, parse_modes
from benchmarks.shapes import MODELS, engine_arguments, token_ids

RESULTS = Path(__file__).parent / "results"
START_SECONDS, BATCH_SECONDS = 300, 300  # longest waits for an engine's start and for a batch


class EngineProcess:
    """An sgl.Engine in a process of its own, driven through a pipe; its output goes to `log`."""

    def __init__(self, name: str, arguments: dict, log: Path):
        self.name, self.log = name, log
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, arguments, str(log)))
        self.process.start()
        theirs.close()  # so that a dead process is an end of file here
        self._receive(START_SECONDS)

    def generate(self, prompts: list[list[int]], length: int) -> dict:
        """{"seconds", "ids": output ids a prompt, "zipage": its counters or None}."""
        self.pipe.send((prompts, length))
        return self._receive(BATCH_SECONDS)

    def stop(self):
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join(30)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    def _receive(self, seconds: float):
        with contextlib.suppress(EOFError, OSError):
            if self.pipe.poll(seconds):
                return self.pipe.recv()
        self.process.kill()  # its schedulers end with it
        raise SystemExit(f"{self.name} ended or did not answer:\n{self.log.read_text(errors='replace')[-3000:]}")


def _serve(pipe, arguments: dict, log: str):
    """The engine's process: one reply a batch, until None or until the other end is gone."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    import sglang as sgl

    engine = sgl.Engine(**arguments)
    pipe.send("ready")
    with contextlib.suppress(EOFError):
        while batch := pipe.recv():
            pipe.send(_answer(engine, *batch))
    engine.shutdown()


def _answer(engine, prompts, length: int) -> dict:
    for _ in range(50):  # the last batch is not quite gone when its answers are here
        if engine.flush_cache().success:  # every run prefills alike
            break
        time.sleep(0.1)
    else:
        raise RuntimeError("the engine did not become idle")
    start = time.perf_counter()
    replies = engine.generate(input_ids=prompts,
                              sampling_params=dict(temperature=0, max_new_tokens=length, ignore_eos=True))
    seconds = time.perf_counter() - start
    state = engine.get_server_info()["internal_states"][0]
    return dict(seconds=seconds, ids=[r["output_ids"] for r in replies], zipage=state.get("zipage"))


def equal_share(a: list[list[int]], b: list[list[int]]) -> float:
    return sum(x == y for x, y in zip(a, b, strict=True)) / len(a)


def run_pairs(engines: dict[str, EngineProcess], prompts, args) -> list[dict]:
    """One dict a pair: output tokens per second of each engine, ratio, equal outputs; the pair before the first is thrown away
    but for full KV's outputs."""
    names, pairs, reference = list(engines), [], None
    for n in range(args.pairs + 1):
        order = names if n % 2 else names[::-1]
        replies = {name: engines[name].generate(prompts, args.length) for name in order}
        rate = {name: len(prompts) * args.length / replies[name]["seconds"] for name in names}
        full, zipage = (replies[name] for name in names)
        reference = reference or full["ids"]
        pair = dict(first=order[0], full=rate[names[0]], zipage=rate[names[1]], ratio=rate[names[1]] / rate[names[0]],
                    equal=equal_share(full["ids"], zipage["ids"]), full_equals_first=equal_share(full["ids"], reference),
                    compressions=(zipage["zipage"] or {}).get("compressions"))
        print(f"{time.strftime('%H:%M:%S')} pair {n or 'to warm up'}: {json.dumps(pair)}", flush=True)
        if n:
            pairs.append(pair)
    return pairs


def summarize(pairs: list[dict]) -> dict:
    mean, low, high = mean_interval([p["ratio"] for p in pairs])
    share = lambda key: sum(p[key] for p in pairs) / len(pairs)
    return dict(ratio=mean, ratio_low=low, ratio_high=high, equal=share("equal"), full_equals_first=share("full_equals_first"))


def measure(args) -> list[dict]:
    # SGLang's schedulers are killed at the end and leave semaphores to Python's tracker, which would complain here.
    os.environ.setdefault("PYTHONWARNINGS", "ignore:resource_tracker")
    rng, ids = random.Random(args.seed), token_ids(args.model)
    prompts = [[rng.randrange(ids.start, ids.stop) for _ in range(args.prompt)] for _ in range(args.batch)]
    with tempfile.TemporaryDirectory() as temporary, contextlib.ExitStack() as running:
        folder = args.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        engines = {}
        for mode in (Mode("full"), args.mode):  # one after the other: each sizes its memory by what is free
            arguments = engine_arguments(args.model, args.device, args.attention_backend, args.batch, folder) | mode.engine | dict(
                max_total_tokens=args.pool, random_seed=args.seed, sleep_on_idle=True)
            print(f"{time.strftime('%H:%M:%S')} {mode.text}: engine starting", flush=True)
            name = mode.text.partition(":")[0]
            engines[mode.text] = EngineProcess(mode.text, arguments, folder / f"{name}.log")
            running.callback(engines[mode.text].stop)
        return run_pairs(engines, prompts, args)


def main():
    args = _arguments()
    origin = provenance.describe()
    pairs = measure(args)
    summary = summarize(pairs)
    print("\n" + table.render(
        ["pair", "first", "full tok/s", "zipage tok/s", "ratio", "equal outputs", "full = its first run", "compressions"],
        [[n, p["first"], f"{p['full']:.0f}", f"{p['zipage']:.0f}", f"{p['ratio']:.4f}", f"{p['equal']:.2f}",
          f"{p['full_equals_first']:.2f}", p["compressions"]] for n, p in enumerate(pairs, 1)]))
    print(f"\nzipage / full: {summary['ratio']:.4f}, 95 % interval {summary['ratio_low']:.4f} to {summary['ratio_high']:.4f}; "
          f"equal outputs {summary['equal']:.3f} (full KV with its own first run: {summary['full_equals_first']:.3f})")
    out = args.out or RESULTS / f"overhead-{args.model}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()} | {"mode": args.mode.text}
    out.write_text(json.dumps(dict(**origin, options=options, summary=summary, pairs=pairs), indent=1) + "\n")
    print(f"written: {out}")


def _arguments(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, default="qwen3-0.6b")
    add("--mode", default="zipage", help="`zipage` or `zipage:option=value,...` (default %(default)s)")
    add("--pairs", type=int, default=6, help="after one to warm up (default %(default)s)")
    add("--batch", type=int, default=64, help="requests of a batch (default %(default)s)")
    add("--prompt", type=int, default=150, help="prompt tokens (default %(default)s)")
    add("--length", type=int, default=1024, help="output tokens of a request (default %(default)s)")
    add("--pool", type=int, default=200000, help="KV pool of each engine in tokens (default %(default)s)")
    add("--device", choices=["cuda", "cpu"], default="cuda")
    add("--attention-backend", default="flashinfer", help="on cuda (default %(default)s)")
    add("--seed", type=int, default=0)
    add("--keep", type=Path, help="folder to keep the engines' logs in")
    add("--out", type=Path, help="JSON file")
    args = parser.parse_args(argv)
    try:
        (args.mode,) = parse_modes([args.mode])
    except ValueError as error:
        parser.error(str(error))
    config = args.mode.config
    if config is None or config.cap - config.spread_steps < args.length + (args.prompt if config.start(args.prompt) == 0 else 0):
        parser.error("a request would be compressed: lower --length, or give --mode a larger budget (zipage:budget=8192)")
    if args.batch * (args.prompt + args.length + 1) > args.pool:
        parser.error("--pool must hold the whole batch")
    return args


if __name__ == "__main__":
    main()
