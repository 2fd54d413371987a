"""SmolLM2's curves: `python -m benchmarks.language_model` for each policy and budget, with the same file of records."""

from __future__ import annotations

from collections import Counter

from benchmarks import language_model
from benchmarks.curves.points import Curves, Point
from benchmarks.curves.policies import BLOCK, FULL, POLICIES, config_of
from benchmarks.language import report
from benchmarks.language.settings import name_of
from benchmarks.measures import mean_interval

CONTEXT = 2048


def points(records: list[dict], settings: dict[str, tuple[str, int]]) -> list[Point]:
    """settings: {a record's setting: (policy, budget)}.  Full KV is what all are compared with: no loss."""
    panel = "English text"
    result = [Point(FULL, None, panel, 0.0, 0.0, 0.0, len({r["document"] for r in records}), "0")] if records else []
    for setting, by_document in report.group(records, "all").items():
        some = list(by_document.values())
        losses = [report.loss(r) for r in some]
        mean, low, high = mean_interval(losses)
        text = f"{report.interval(losses)}, n {len(some)}"
        compressions = sum(r["compressions"] for r in some) / len(some)
        result.append(Point(*settings[setting], panel, mean, low, high, len(some), text, compressions))
    return result


def as_many_everywhere(records: list[dict]) -> bool:
    """Every setting of a budget has as many documents as the others."""
    count = Counter((r["budget"], r["setting"]) for r in records)
    return all(len({n for (b, _), n in count.items() if b == budget}) == 1 for budget, _ in count)


def measure(args) -> Curves:
    """What is known already is not measured again; with Ctrl-C, and `--known`, the curves of what is there."""
    import torch

    torch.set_num_threads(1)
    options = language_model.arguments(["--documents", str(args.documents)])
    configs, settings = {}, {}
    for budget in args.budgets:
        for policy in [p for p in POLICIES if p in args.policies]:
            config = config_of(policy, budget)
            configs[name_of(config)], settings[name_of(config)] = config, (policy, budget)
    records = language_model.known(options, configs)
    complete = args.known and as_many_everywhere(records)
    try:
        if not args.known:
            language_model.run(options, configs, records, [], short="skip")
            complete = True
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on with what is missing")
    note = (f"SmolLM2-135M-Instruct in float32, keys and values in bf16, teacher-forced on frozen documents (twelve texts of "
            f"{CONTEXT} tokens, prompt 256; four own answers of 1,536), block {BLOCK}, `random` with seed 0.  Nats a token more than "
            "full KV, mean over n documents (95 % t interval), on the tokens after a setting's first compression; documents that end "
            f"before it are left out.  K as a share of {CONTEXT} tokens; where the prompt is kept, it is held beside K.")
    origins = sorted({r.get("commit", "earlier commits") for r in records})
    return Curves(points(records, settings), "nats a token more", CONTEXT, note, complete, origins)
