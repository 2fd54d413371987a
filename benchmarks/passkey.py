"""How many pass keys SmolLM2-135M-Instruct still knows when nothing had looked at them before they are asked for.

Four keys a document, hidden in the frozen texts; every setting gets the same ones, full KV too.  A key counts when greedy
decoding gives all its digits.  Results are kept in a JSONL file, one line per document and setting: the same command goes on
where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from benchmarks import provenance, table
from benchmarks.language import model, passkey, settings
from benchmarks.language.wheels import cache_folder
from benchmarks.measures import mean_interval
from benchmarks.progress import Progress

RESULTS = Path(__file__).parent / "results"
DEPTHS = (0, 256, 512, 10**9)  # tokens before the end between which recall is shown


def condition(args) -> dict:
    """What must be equal for two records to stand in one table."""
    return dict(tokens=args.tokens, prompt=args.prompt, block=args.block, window=args.window, weights=model.SHA256[:12],
                device=args.device, prefix=args.prefix, keys=passkey.KEYS)


def known(args, names: list[str]) -> list[dict]:
    """What the JSONL file holds of these settings."""
    if not args.jsonl.exists():
        return []
    lines = [json.loads(line) for line in args.jsonl.read_text().splitlines()]
    same = [r for r in lines if r.pop("condition") == condition(args)]
    return [r for r in same if r["setting"] in names and r["document"] < args.documents]


def run(args, configs: dict, records: list[dict]):
    """Appends to `records` (and the JSONL file) what is missing, document by document."""
    progress = Progress("passkey")
    progress.show("loading SmolLM2")
    smollm2, tokenizer = model.load(args.device)
    cases = passkey.make_cases(tokenizer, args.documents, args.tokens, args.prompt)
    have = {(r["document"], r["setting"]) for r in records}
    todo = [(i, name) for i in range(len(cases)) for name in configs if (i, name) not in have]
    started = time.monotonic()
    for done, (i, name) in enumerate(todo, 1):
        depths = [q.depth for q in cases[i].questions]
        record = dict(document=i, setting=name, recalled=passkey.recall(smollm2, cases[i], configs[name]), depths=depths)
        records.append(record)
        with args.jsonl.open("a") as file:
            file.write(json.dumps(dict(condition=condition(args), **record)) + "\n")
        left = (time.monotonic() - started) / done * (len(todo) - done)
        hits = f"{sum(record['recalled'])} of {passkey.KEYS}"
        progress.show(f"document {i}: {name} {hits}; {done} of {len(todo)}, {left / 60:.0f} min left")
    progress.done(f"{len(todo)} passes in {(time.monotonic() - started) / 60:.1f} min")


def render(records: list[dict], names: list[str], base: str | None) -> str:
    """Recall per setting, all keys and those by distance from the end; differences to `base` are paired over documents."""
    by = {name: {r["document"]: r for r in records if r["setting"] == name} for name in names}
    rows = []
    for name, documents in by.items():
        if not documents:
            continue
        flat = [(hit, depth) for r in documents.values() for hit, depth in zip(r["recalled"], r["depths"])]
        near = [[hit for hit, depth in flat if low <= depth < high] for low, high in zip(DEPTHS, DEPTHS[1:])]
        rows.append([name, len(flat), _percent([_share(r["recalled"]) for r in documents.values()]),
                     _percent([_share(documents[d]["recalled"]) - _share(by[base][d]["recalled"])
                               for d in documents if d in by[base]], "+") if base and name != base else "-",
                     *(f"{100 * _share(hits):.1f} %" if hits else "-" for hits in near)])
    return table.render(["setting", "keys", "recalled, % (95 % interval)", f"points more than {base}",
                         f"in the last {DEPTHS[1]} tokens", f"to {DEPTHS[2]}", "older"], rows)


def _share(hits: list) -> float:
    return sum(hits) / len(hits)


def _percent(shares: list[float], sign: str = "") -> str:
    mean, low, high = (100 * x for x in mean_interval(shares))
    interval = f"({low:{sign}.1f} to {high:{sign}.1f})" if len(shares) > 1 else "(one document)"
    return f"{mean:{sign}.1f} {interval}"


def main():
    args = _arguments()
    torch.set_num_threads(args.threads)
    configs = (dict(full=None) if "full" in args.policies else {}) | settings.make_configs(args)
    origin = provenance.describe()  # first: the commit that the run started from
    records, complete = known(args, list(configs)), False
    try:
        run(args, configs, records)
        complete = True
    except KeyboardInterrupt:
        print("\ninterrupted")
    base = args.base if args.base in configs else None
    text = render(records, list(configs), base) if records else "nothing"
    print("\n" + text)
    options = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}  # places say nothing
    record = dict(**origin, options=options, complete=complete, condition=condition(args), records=records)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    page = [f"# Pass keys that nothing has looked at, {passkey.KEYS} a document", "", f"    {origin['command']}", "",
            f"Commit {origin['git_commit']}, {origin['time']}, {origin['device']}{'' if complete else '; interrupted'}. "
            + ", ".join(f"{k} {v}" for k, v in condition(args).items()) + ".  Intervals are over documents.",
            "", "```", text, "```", ""]
    args.out.with_suffix(".md").write_text("\n".join(page))
    print(f"\nwritten: {args.out} and .md")
    sys.exit(0 if complete else 130)


def _arguments(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.passkey", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    settings.add_options(parser)
    add = parser.add_argument
    add("--documents", type=int, default=50, help="(default %(default)s)")
    add("--tokens", type=int, default=1280, help="of each document, before the questions (default %(default)s)")
    add("--prompt", type=int, default=256, help="leading tokens that count as the prompt (default %(default)s)")
    add("--base", default="full", help="setting that the others are compared with (default %(default)s)")
    add("--jsonl", type=Path, default=cache_folder() / "passkeys.jsonl", help="(default %(default)s)")
    add("--out", type=Path, default=RESULTS / "passkey-smollm2.json", help="(default %(default)s)")
    parser.set_defaults(budgets=[512])
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
