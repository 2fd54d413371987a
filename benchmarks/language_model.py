"""What a bounded KV cache costs SmolLM2-135M-Instruct: teacher-forced loss on sixteen frozen documents, against full KV.

Every document goes through the plugin's own compressor and policies, its tokens at their true positions.  Only tokens that
were predicted after the first compression count; full KV is scored on the same ones.  Results are kept in a JSONL file, one
line per document and setting: the same command goes on where it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import torch

from benchmarks import provenance
from benchmarks.language import documents, keys, model, report, score, settings
from benchmarks.language.wheels import cache_folder
from benchmarks.progress import Progress
from zipage_sglang.config import ZipageConfig

RESULTS = Path(__file__).parent / "results"


def run(args, configs: dict[str, ZipageConfig], records: list[dict], key_counts: list, short: str = "raise"):
    """Appends to `records` (and the JSONL file) what is missing, document by document.

    short: `skip` leaves settings out in documents that end before their first compression, which are an error otherwise.
    """
    progress = Progress("language")
    progress.show("loading SmolLM2")
    smollm2, tokenizer = model.load(args.device)
    todo = [d for d in documents.load(tokenizer, args.tokens, args.prompt) if d.kind in args.kinds][: args.documents]
    digests = {d.name: d.digest for d in todo}
    records[:] = [r for r in records if digests.get(r["document"]) == r["digest"]]
    have = {(r["document"], r["setting"]) for r in records}
    fits = lambda d, name: short != "skip" or score.first_cut(configs[name], d) + 2 <= len(d.ids)
    missing = [(d, [n for n in configs if (d.name, n) not in have and fits(d, n)]) for d in todo]
    total, done, started = sum(len(names) for _, names in missing), 0, time.monotonic()
    commit = provenance.commit()
    for document, names in missing:
        if not names and not args.keys:
            continue
        cuts = {name: score.first_cut(configs[name], document) for name in names}
        if cuts and max(cuts.values()) + 2 > len(document.ids):
            raise ValueError(f"{document.name} ends before the first compression, at {max(cuts.values())} tokens")
        full = score.full_pass(smollm2, document, set(cuts.values()) or {len(document.ids)},
                               max((config.scored for config in configs.values()), default=args.window))
        if args.keys:
            key_counts.append(keys.measure(full.stream, args.keys))
        for name in names:
            record = dict(document=document.name, digest=document.digest, kind=document.kind, setting=name,
                          budget=configs[name].budget, commit=commit, **score.compressed_pass(smollm2, document, configs[name], full))
            records.append(record)
            with args.jsonl.open("a") as file:
                file.write(json.dumps(dict(condition=condition(args), **record)) + "\n")
            done += 1
            left = (time.monotonic() - started) / done * (total - done)
            progress.show(f"{document.name}: {name} {report.loss(record):+.3f}; {done} of {total}, {left / 60:.0f} min left")
    progress.done(f"{done} of {total} passes in {(time.monotonic() - started) / 60:.1f} min")


def condition(args) -> dict:
    """What must be equal for two records to stand in one table."""
    device = {} if args.device == "cpu" else dict(device=args.device)
    return dict(tokens=args.tokens, prompt=args.prompt, block=args.block, window=args.window, weights=model.SHA256[:12], **device)


def known(args, configs: dict[str, ZipageConfig]) -> list[dict]:
    """What the JSONL file holds of these settings."""
    if not args.jsonl.exists():
        return []
    lines = [json.loads(line) for line in args.jsonl.read_text().splitlines()]
    return [line for line in lines if line.pop("condition") == condition(args) and line["setting"] in configs]


def main():
    args = arguments()
    torch.set_num_threads(args.threads)
    configs = settings.make_configs(args)
    origin = provenance.describe()  # first: the commit that the run started from
    records, key_counts, complete = known(args, configs), [], False
    try:
        run(args, configs, records, key_counts)
        complete = True
    except KeyboardInterrupt:
        print("\ninterrupted")
    finally:
        _report(args, origin, configs, records, key_counts, complete)
    sys.exit(0 if complete else 130)


def _report(args, origin: dict, configs, records: list[dict], key_counts: list, complete: bool):
    order = list(configs)
    records.sort(key=lambda r: order.index(r["setting"]))
    rows = keys.summary(keys.merge(key_counts), args.keys) if key_counts else []
    if not records and not rows:
        return
    parts = [report.render(records)] if records else []
    if rows:
        parts += [f"## keys of blocks of {args.keys}, {len(key_counts)} documents", keys.render(rows, args.keys)]
    print("\n" + "\n\n".join(parts))
    options = {k: v for k, v in vars(args).items() if not isinstance(v, Path)}  # places say nothing
    record = dict(**origin, options=options, complete=complete, condition=condition(args), records=records, keys=rows)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    args.out.with_suffix(".md").write_text(report.page(origin, condition(args), parts, complete))
    print(f"\nwritten: {args.out} and .md")


def arguments(argv=None):
    parser = argparse.ArgumentParser(prog="python -m benchmarks.language_model", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    settings.add_options(parser)
    add = parser.add_argument
    add("--kinds", type=settings.words, default=["text", "own"], help="of documents: English texts, the model's own answers (default both)")
    add("--documents", type=int, default=16, help="the first N (default: all)")
    add("--tokens", type=int, default=2048, help="of each text; the answers have 1536 (default %(default)s)")
    add("--prompt", type=int, default=256, help="leading tokens of a text that count as its prompt (default %(default)s)")
    add("--keys", type=int, default=0, metavar="B", help="also measure how alike the keys of blocks of B are (default: not)")
    add("--jsonl", type=Path, default=cache_folder() / "records.jsonl", help="(default %(default)s)")
    add("--out", type=Path, default=RESULTS / "language-smollm2.json", help="(default %(default)s)")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
