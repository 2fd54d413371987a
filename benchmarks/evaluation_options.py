"""Options of `python -m benchmarks.accuracy --dataset NAME` for the public datasets."""

from __future__ import annotations

import argparse
import dataclasses
import os
from pathlib import Path

from benchmarks.datasets.registry import DATASETS
from benchmarks.modes import parse_modes

LEGEND = """\
score: mean over problems of the mean over samples, in % (pass@1; LongBench: its metrics, mean of the tasks' means); minus full KV:
paired, problem by problem. compressed: share of requests that outgrew K + b tokens of their own. cut off: at --max-tokens."""


def parse(argv: list[str], description: str) -> argparse.Namespace:
    """Options with the dataset's defaults filled in.  Exits with a message if they do not fit together."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description=description,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--dataset", choices=list(DATASETS), required=True)
    add("--model", help="weights: a folder or a name on the hub, as for sglang's --model-path")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--data", type=Path, help="local .jsonl, .json or .parquet file with the dataset's columns")
    source.add_argument("--hub", help="another dataset on the hub, name or name:config")
    add("--split", help="of the hub's dataset (LongBench: paper, all or tasks; LiveCodeBench: v6, v1_v5, release_v6, ...)")
    add("--limit", type=int, help="only the first problems")
    add("--prompts", type=Path, help="LongBench: a JSON file of task to prompt, such as its own config/dataset2prompt.json")
    add("--max-prompt-tokens", type=int, help="LongBench: leave the middle of longer prompts out")
    add("--modes", nargs="+", default=["full", "zipage"], help="full, zipage, zipage:budget=1024,policy=recent, ... (default full zipage)")
    add("--url", help="use this running server (http://host:port) instead; run once for each, with the same --out")
    add("--name", help="with --url: the mode's name (default: from its /server_info)")
    add("--report", action="store_true", help="ask nothing; check and print what is there")
    add("--recheck", action="store_true", help="check all replies again")
    add("--check-workers", type=int, default=max(1, (os.cpu_count() or 1) // 2), help="programs run at once (default %(default)s)")
    add("--n", type=int, help="samples a problem (default: the dataset's)")
    add("--temperature", type=float, default=0.6)
    add("--top-p", type=float, default=0.95)
    add("--max-tokens", type=int, help="output tokens at most (default: the dataset's)")
    add("--system", help="system prompt, '' for none (default: the dataset's)")
    add("--concurrency", type=int, default=64, help="requests at once (default %(default)s)")
    add("--pool", type=int, help="KV pool of either server, tokens (default: SGLang's)")
    add("--server-args", default="", help="further flags of sglang.launch_server, in one string")
    add("--start-minutes", type=float, default=30, help="that a server may take to start (default %(default)g)")
    add("--out", type=Path, help="folder of replies, logs and summary (default .eval/DATASET-MODEL)")
    args = parser.parse_args(argv)
    dataset = DATASETS[args.dataset]
    if not args.model and not args.url and not (args.report and args.out):
        parser.error("--model is needed, or --url of a running server")
    if args.max_prompt_tokens and not args.model:
        parser.error("--max-prompt-tokens needs --model, for its tokenizer")
    if (args.prompts or args.max_prompt_tokens) and args.dataset != "longbench":
        parser.error("--prompts and --max-prompt-tokens are for --dataset longbench")
    args.n = args.n or dataset.n
    args.max_tokens = args.max_tokens or dataset.max_tokens
    args.system = dataset.system if args.system is None else args.system
    args.url = args.url.rstrip("/") if args.url else None
    args.out = args.out or Path(".eval") / f"{args.dataset}-{Path(args.model or 'server').name}"
    try:
        args.modes = parse_modes(args.modes)
    except ValueError as error:
        parser.error(str(error))
    return args


def mode_name(config: dict | None) -> str:
    """How a server's zipage settings are written as a mode: `zipage:budget=1024`; `full` without."""
    if not config:
        return "full"
    from zipage_sglang.config import ZipageConfig

    default = dataclasses.asdict(ZipageConfig())
    changed = [f"{name.replace('lam', 'lambda')}={value}" for name, value in config.items() if value != default.get(name)]
    return "zipage" + (":" + ",".join(changed) if changed else "")
