"""Tables over documents: every setting against full KV, and settings against each other, paired."""

from __future__ import annotations

import math

from benchmarks import table
from benchmarks.language.settings import name_of
from benchmarks.measures import mean_interval
from zipage_sglang.config import ZipageConfig

KINDS = {"text": "texts", "own": "own answers", "all": "all documents"}


def group(records: list[dict], kind: str) -> dict[str, dict[str, dict]]:
    """{setting: {document: record}} of one kind of document, or of all."""
    out: dict[str, dict[str, dict]] = {}
    for record in records:
        if kind in ("all", record["kind"]):
            out.setdefault(record["setting"], {})[record["document"]] = record
    return out


def loss(record: dict) -> float:
    """Nats per token that the setting costs against full KV, on the same tokens."""
    return record["nll"] - record["nll_full"]


def interval(values: list[float]) -> str:
    """`+.083 (.061 to .105)`: mean over documents and its 95 % t interval."""
    mean, low, high = mean_interval(values)
    return f"{mean:+.4f} ({low:+.4f} to {high:+.4f})" if len(values) > 1 else f"{mean:+.4f} (one document)"


def against_full(records: list[dict], kind: str) -> str:
    """Mean increase of the loss, ratio of perplexities, share of tokens whose likeliest successor is full KV's."""
    rows = []
    for setting, by_document in group(records, kind).items():
        some = list(by_document.values())
        losses = [loss(r) for r in some]
        mean = sum(losses) / len(losses)
        rows.append([setting, len(some), sum(r["tokens"] for r in some), f"{sum(r['nll_full'] for r in some) / len(some):.3f}",
                     interval(losses), f"{math.exp(mean):.3f}",
                     f"{100 * sum(r['agreement'] for r in some) / len(some):.1f} %",
                     f"{sum(r['compressions'] for r in some) / len(some):.1f}"])
    return table.render(["setting", "n", "tokens", "full KV nats", "nats more (95 % interval)", "perplexity x", "same top-1",
                         "compressions"], rows)


def against_each_other(records: list[dict], kind: str, reference: str) -> str | None:
    """Differences of the losses to setting `reference` on the documents that both have; None if nothing can be compared."""
    groups = group(records, kind)
    base = groups.get(reference, {})
    rows = []
    for setting, by_document in groups.items():
        both = [d for d in by_document if d in base]
        if setting == reference or not both or by_document[both[0]]["budget"] != base[both[0]]["budget"]:
            continue
        differences = [loss(by_document[d]) - loss(base[d]) for d in both]
        rows.append([setting, len(both), interval(differences), f"{sum(d < 0 for d in differences)} of {len(both)}"])
    return table.render([f"minus {reference}", "n", "nats (95 % interval)", "better on"], rows) if rows else None


def render(records: list[dict]) -> str:
    """Everything; a kind of document without records is left out."""
    parts, defaults = [], {name_of(ZipageConfig(budget=r["budget"])) for r in records}
    for kind, title in KINDS.items():
        if not group(records, kind):
            continue
        parts += [f"## {title}", against_full(records, kind)]
        for reference in group(records, kind):
            if reference.split()[1] in ("recent", "random", "attention") or reference in defaults:
                parts.append(against_each_other(records, kind, reference))
    return "\n\n".join(part for part in parts if part)


def page(origin: dict, condition: dict, parts: list[str], complete: bool) -> str:
    """Markdown of the same tables with where they come from."""
    lines = ["# SmolLM2-135M-Instruct with a bounded KV cache", "", f"    {origin['command']}", "",
             f"Commit {origin['git_commit']}, {origin['time']}, {origin['device']}"
             f"{'' if complete else '; interrupted, some documents are missing'}. "
             + ", ".join(f"{k} {v}" for k, v in condition.items()) + ".  Weights in float32, keys and values in bf16, "
             "teacher-forced; only tokens predicted after the first compression count, full KV on the same ones. n: documents; "
             "intervals are over documents, paired."]
    for part in "\n\n".join(parts).split("\n\n"):
        lines += ["", part if part.startswith("#") else f"```\n{part}\n```"]
    return "\n".join(lines) + "\n"
