"""Conversations of several turns against the reasoner's server, full KV and zipage (prompt kept) with the same flags: how much of
each turn's prompt comes out of the radix cache.

A turn's prompt is every token so far, earlier answers included, and a new problem.  Conversations go turn by turn, all at once.
Answers have a fixed length: the model knows one problem at a time, and what it says in later turns is not looked at.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import time
import urllib.request
from pathlib import Path

from benchmarks import provenance, table
from benchmarks.client import server_state
from benchmarks.device import as_flags, engine_options
from benchmarks.progress import Progress
from benchmarks.reasoner import MODEL_PATH, tasks
from benchmarks.reasoner.knobs import make_problems
from benchmarks.server import Server, ServerFailed, exit_on_sigterm

RESULTS = Path(__file__).parent / "results"


def run(mode: str, zipage: dict, args) -> dict:
    """One server, all conversations.  Token counts are SGLang's own (`meta_info`), summed over the conversations of a turn."""
    flags = ["--model-path", str(MODEL_PATH), *as_flags(engine_options()), "--max-total-tokens", str(args.pool),
             "--page-size", str(args.page_size), "--skip-tokenizer-init", "--skip-server-warmup", *as_flags(zipage)]
    problems = make_problems(args.family, args.level, args.conversations * args.turns, regime="short")
    progress, turns, texts = Progress(mode), [], [[] for _ in range(args.conversations)]
    with (Server(flags, args.logs / f"multiturn-{mode}.log", lambda s, line: progress.show(f"server starting, {s:.0f} s")) as server,
          concurrent.futures.ThreadPoolExecutor(args.conversations) as pool):
        for turn in range(args.turns):
            now = problems[turn * args.conversations : (turn + 1) * args.conversations]
            prompts = [ids + p.ids()[0] for ids, p in zip(texts, now)]
            start = time.monotonic()
            replies = list(pool.map(lambda ids: generate(server.url, ids, args.tokens), prompts))
            texts = [ids + r["output_ids"] for ids, r in zip(prompts, replies)]
            count = lambda key: sum(r["meta_info"][key] for r in replies)
            turns.append(dict(
                turn=turn + 1, prompt_tokens=count("prompt_tokens"), cached_tokens=count("cached_tokens"),
                hit_rate=count("cached_tokens") / count("prompt_tokens"), output_tokens=count("completion_tokens"),
                compressions=server_state(server.url).get("zipage", {}).get("compressions", 0),
                seconds=round(time.monotonic() - start, 1)))
            progress.done(f"turn {turn + 1}: {turns[-1]}")
    return dict(mode=mode, flags=as_flags(zipage), turns=turns)


def generate(url: str, ids: list[int], tokens: int) -> dict:
    body = {"input_ids": ids, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}}
    call = urllib.request.Request(f"{url}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(call, timeout=3600) as reply:
        return json.load(reply)


def render(results: list[dict]) -> str:
    rows = [[t["turn"], r["mode"], t["prompt_tokens"], t["cached_tokens"], f"{100 * t['hit_rate']:.0f} %", t["output_tokens"],
             t["compressions"]] for turn in zip(*(r["turns"] for r in results)) for r, t in zip(results, turn)]
    return table.render(["turn", "", "prompt tokens", "cached", "hit rate", "output tokens", "compressions so far"], rows)


def main():
    args = _arguments()
    origin = provenance.describe()  # first: the commit that the run started from
    exit_on_sigterm()
    zipage = dict(enable_zipage=True, zipage_budget=args.budget, zipage_block=args.block, zipage_prefix="keep")
    try:
        results = [run("full", {}, args), run("zipage", zipage, args)]
    except ServerFailed as error:
        sys.exit(f"\n{error}")
    print("\n" + render(results))
    out = args.out or RESULTS / f"multiturn-{time.strftime('%Y%m%d-%H%M%S')}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items()}
    out.write_text(json.dumps(dict(**origin, options=options, results=results), indent=1) + "\n")
    print(f"written: {out}")


def _arguments(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.multiturn", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--conversations", type=int, default=4, help="at once (default %(default)s)")
    add("--turns", type=int, default=4, help="of each (default %(default)s)")
    add("--family", choices=tasks.FAMILIES, default="loop", help="of the problems (default %(default)s)")
    add("--level", type=int, default=600, help="of the problems (default %(default)s)")
    add("--tokens", type=int, default=400, help="output tokens of a turn (default %(default)s)")
    add("--budget", type=int, default=256, help="--zipage-budget (default %(default)s)")
    add("--block", type=int, default=64, help="--zipage-block (default %(default)s)")
    add("--pool", type=int, default=32768, help="KV pool, tokens: large enough that nothing is evicted (default %(default)s)")
    add("--page-size", type=int, default=16, help="of both servers (default %(default)s)")
    add("--logs", type=Path, default=Path(".demo"), help="folder for the servers' logs (default %(default)s)")
    add("--out", type=Path, help="JSON file (default benchmarks/results/multiturn-...)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
