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
PANELS = ("more than full KV", "more than zipage, document by document")


def points(records: list[dict], settings: dict[tuple[str, int], str]) -> list[Point]:
    """Losses against full KV, and against the default on the same documents.

    settings: {(policy, budget): a record's setting}; two policies can be one setting at some budget.
    """
    groups, result = report.group(records, "all"), []
    if records:
        result.append(Point(FULL, None, PANELS[0], 0.0, 0.0, 0.0, len({r["document"] for r in records}), "0"))
    for (policy, budget), setting in settings.items():
        by_document, base = groups.get(setting, {}), groups.get(settings.get(("zipage", budget)), {})
        some, both = list(by_document.values()), [d for d in by_document if d in base]
        if len(some) < 2:
            continue  # no interval
        result.append(_point(policy, budget, PANELS[0], [report.loss(r) for r in some], some))
        if len(both) > 1:
            differences = [report.loss(by_document[d]) - report.loss(base[d]) for d in both]
            result.append(_point(policy, budget, PANELS[1], differences, some))
    return result


def _point(policy: str, budget: int, panel: str, losses: list[float], records: list[dict]) -> Point:
    mean, low, high = mean_interval(losses)
    text = f"{report.interval(losses)}, n {len(losses)}" if any(losses) else "0"
    return Point(policy, budget, panel, mean, low, high, len(losses), text, sum(r["compressions"] for r in records) / len(records))


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
            configs[name_of(config)], settings[policy, budget] = config, name_of(config)
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
            "before it are left out.  Where the prompt is evicted, too, that is earlier, and more tokens count.  K as a share of "
            f"{CONTEXT} tokens; where the prompt is kept, it is held beside K.")
    origins = sorted({r.get("commit", "earlier commits") for r in records})
    return Curves(points(records, settings), "nats a token more", CONTEXT, note, complete, origins)
