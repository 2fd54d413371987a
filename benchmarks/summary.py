"""The table of an evaluation: scores with intervals, the difference from full KV, and what to know before believing them."""

from __future__ import annotations

import dataclasses
import math

from benchmarks import degenerate, stats, table
from benchmarks.datasets.problem import Problem, Verdict
from benchmarks.replies import Reply

FULL = "full"


@dataclasses.dataclass
class Result:
    """What one mode answered.  config: zipage's of the server, {} for full KV.  sessions: counters of each run."""

    mode: str
    replies: list[Reply]
    verdicts: dict[tuple[str, int], Verdict]
    sessions: list[dict] = dataclasses.field(default_factory=list)

    @property
    def config(self) -> dict:
        return next((s["config"] for s in self.sessions if s.get("config")), {})

    def means(self) -> dict[str, float]:
        """{problem: mean score of its samples}: pass@1 of each problem."""
        scores: dict[str, list[float]] = {}
        for (problem, _), verdict in self.verdicts.items():
            scores.setdefault(problem, []).append(verdict.score)
        return {problem: sum(s) / len(s) for problem, s in scores.items()}


def compressed(reply: Reply, config: dict) -> bool:
    """Whether the request grew beyond K + b tokens of its own, where it is compressed (with `when` = pressure: may be)."""
    if not config:
        return False
    prefix = config.get("prefix", "keep")
    counts_prompt = prefix == "compress" or (prefix == "auto" and reply.prompt_tokens > config["budget"])
    held = reply.output_tokens + (reply.prompt_tokens if counts_prompt else 0)
    # The last token is never fed back, and the step that would feed the one before it compresses first.
    return held > config["budget"] + config["block"]


def summarize(problems: list[Problem], results: list[Result]) -> list[dict]:
    """One dict per group and mode, groups in order of appearance and all together last (the mean of the groups' means)."""
    groups = list(dict.fromkeys(p.group for p in problems))
    rows = []
    for group in ([*groups, None] if len(groups) > 1 else [None]):
        full = next((r for r in results if r.mode == FULL), None)
        rows += [_row(group, groups, problems, result, full) for result in results]
    return rows


def _row(group: str | None, groups: list[str], problems: list[Problem], result: Result, full: Result | None) -> dict:
    chosen = {p.id: p.group for p in problems if group in (None, p.group)}
    means = {problem: score for problem, score in result.means().items() if problem in chosen}
    replies = [r for r in result.replies if r.problem in chosen]
    verdicts = [result.verdicts[r.problem, r.sample] for r in replies]
    share = lambda count: count / len(replies) if replies else math.nan
    split = lambda values: stats.bootstrap([[v for p, v in values.items() if chosen[p] == g] for g in groups])
    row = dict(zip(("score", "low", "high"), split(means)), group=group or "all", mode=result.mode, problems=len(means),
               replies=len(replies))
    if full is not None and result is not full:
        other = full.means()
        both = {p: score - other[p] for p, score in means.items() if p in other}
        row |= dict(zip(("difference", "difference_low", "difference_high"), split(both)), paired_problems=len(both))
    judged = [degenerate.judge(r.text) for r in replies]
    row |= dict(
        no_answer=share(sum(v.answer is None for v in verdicts)), cut_off=share(sum(r.finish == "length" for r in replies)),
        compressed=share(sum(compressed(r, result.config) for r in replies)) if result.config else None,
        loops=share(judged.count("loop")), garbled=share(judged.count("garble")), refused=sum(bool(r.error) for r in replies),
        output_tokens_mean=share(sum(r.output_tokens for r in replies)),
    )
    if group is None and result.config:
        row |= {name: sum(s.get(name, 0) for s in result.sessions) for name in ("compressions", "evicted_tokens", "retractions")}
    return row


def render(rows: list[dict]) -> str:
    def interval(row, name, low, high, sign=""):
        if math.isnan(row.get(name, math.nan)):
            return "-"
        return f"{100 * row[name]:{sign}.1f} ({100 * row[low]:{sign}.1f} to {100 * row[high]:{sign}.1f})"

    percent = lambda value: "-" if value is None or math.isnan(value) else f"{100 * value:.0f} %"
    return table.render(
        ["group", "mode", "problems", "replies", "score (95 %)", "minus full KV", "compressed", "cut off", "no answer", "loops",
         "garbled", "refused", "tokens"],
        [[r["group"], r["mode"], r["problems"], r["replies"], interval(r, "score", "low", "high"),
          interval(r, "difference", "difference_low", "difference_high", "+"),
          *(percent(r[k]) for k in ("compressed", "cut_off", "no_answer", "loops", "garbled")), r["refused"],
          "-" if math.isnan(r["output_tokens_mean"]) else f"{r['output_tokens_mean']:.0f}"] for r in rows])


def warnings(rows: list[dict]) -> list[str]:
    """What makes a comparison worthless, in words."""
    found = []
    for row in rows:
        if row["group"] != "all" or not row["replies"]:
            continue
        if row["compressed"] is not None and row["compressed"] < 0.2:
            found.append(f"{row['mode']}: {100 * row['compressed']:.0f} % of the requests were compressed; where hardly any is, equal scores say "
                         f"nothing: lower the budget or take harder problems")
        if row["compressed"] and not row.get("compressions"):
            found.append(f"{row['mode']}: outputs outgrew K + b, but the server counted no compression")
        if row["refused"]:
            found.append(f"{row['mode']}: {row['refused']} requests were refused and count as wrong; see `error` in its replies")
    return found
