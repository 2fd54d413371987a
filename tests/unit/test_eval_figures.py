"""Intervals over problems, loops and garble, the table."""

import dataclasses
import math
import random
from pathlib import Path

import pytest

from benchmarks import degenerate, stats, summary
from benchmarks.datasets.problem import Problem, Verdict
from benchmarks.replies import Reply
from zipage_sglang.config import ZipageConfig

ROOT = Path(__file__).parents[2]


def test_bootstrap_of_known_data():
    scores = [1.0] * 60 + [0.0] * 40
    mean, low, high = stats.bootstrap([scores], draws=4000)
    half = 1.96 * math.sqrt(0.6 * 0.4 / 100)
    assert mean == pytest.approx(0.6) and (low, high) == (pytest.approx(0.6 - half, abs=0.015), pytest.approx(0.6 + half, abs=0.015))
    assert stats.bootstrap([scores], draws=100) == stats.bootstrap([scores], draws=100)
    assert stats.bootstrap([[0.5] * 9]) == (0.5, 0.5, 0.5)
    assert all(map(math.isnan, stats.bootstrap([[], []])))


def test_bootstrap_is_a_mean_of_tasks():
    mean, low, high = stats.bootstrap([[1.0] * 100, [0.0] * 2, []])
    assert (mean, low, high) == (0.5, 0.5, 0.5)  # tasks count alike, and no task's spread is another's


def test_bootstrap_covers():
    draw = random.Random(0)
    hits = 0
    for i in range(200):
        low, high = stats.bootstrap([[float(draw.random() < 0.7) for _ in range(60)]], draws=300, seed=i)[1:]
        hits += low <= 0.7 <= high
    assert 180 <= hits <= 199


NORMAL = (ROOT / "LICENSE").read_text()[:6000]


@pytest.mark.parametrize("text, verdict", [
    (NORMAL, ""),
    ((ROOT / "benchmarks/accuracy.py").read_text(), ""),
    ("".join(f"Step {i}: x = {i * i % 101}, so we go on to the next value. " for i in range(90)), ""),  # dull, not a loop
    (NORMAL + "Wait, let me check this again. The answer is 12. " * 150, "loop"),
    (NORMAL + NORMAL[:1500] * 6, "loop"),  # a long one, of 220 words
    ("aaaa" * 1000, "loop"),
    (NORMAL + NORMAL[:1500], ""),  # said twice
    ("no no no no", ""),  # too short to tell
    ("".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 ", k=3000)), "garble"),
    (NORMAL[:1000] + "\N{REPLACEMENT CHARACTER}" * 20, "garble"),
    ("", ""),
])
def test_degenerate(text, verdict):
    assert degenerate.judge(text) == verdict


@pytest.mark.parametrize("prefix, prompt, output, expected", [
    ("keep", 5000, 320, False), ("keep", 5000, 321, True), ("compress", 200, 120, False), ("compress", 200, 121, True),
    ("auto", 256, 100, False), ("auto", 257, 100, True),
])
def test_compressed(prefix, prompt, output, expected):
    config = dataclasses.asdict(ZipageConfig(budget=256, block=64, prefix=prefix))
    assert summary.compressed(Reply("0", 0, "", prompt_tokens=prompt, output_tokens=output), config) is expected
    assert not summary.compressed(Reply("0", 0, "", output_tokens=9999), {})


def result(mode, scores, **session):
    replies = [Reply(p, s, "", "text", "stop", 10, 400) for p, row in scores.items() for s in range(len(row))]
    verdicts = {(p, s): Verdict(score, "x") for p, row in scores.items() for s, score in enumerate(row)}
    return summary.Result(mode, replies, verdicts, [session] if session else [])


def test_table():
    problems = [Problem(x, [], "", group) for x, group in (("a", "t"), ("b", "t"), ("c", "u"))]
    config = dataclasses.asdict(ZipageConfig(budget=256, block=64))
    full = result("full", {"a": [1.0, 1.0], "b": [1.0, 0.0], "c": [0.0, 0.0]})
    zipage = result("zipage", {"a": [1.0, 0.0], "b": [1.0, 0.0]}, config=config, compressions=8)
    rows = {(r["group"], r["mode"]): r for r in summary.summarize(problems, [full, zipage])}
    assert rows["t", "full"]["score"] == 0.75 and rows["u", "full"]["score"] == 0.0
    assert rows["all", "full"]["score"] == pytest.approx(0.375)  # mean of the groups' means
    row = rows["all", "zipage"]
    assert (row["score"], row["difference"], row["paired_problems"], row["compressed"]) == (0.5, -0.25, 2, 1.0)
    assert row["compressions"] == 8 and "difference" not in rows["all", "full"]
    assert "50.0 (50.0 to 50.0)" in summary.render(list(rows.values())) and not summary.warnings(list(rows.values()))


def test_warnings():
    config = dataclasses.asdict(ZipageConfig())
    (row,) = summary.summarize([Problem("a", [], "")], [result("zipage", {"a": [1.0]}, config=config)])
    assert "0 % of the requests were compressed" in summary.warnings([row])[0]
    lying = result("zipage", {"a": [1.0]}, config=dataclasses.asdict(ZipageConfig(budget=256, block=64)), compressions=0)
    assert "counted no compression" in summary.warnings(summary.summarize([Problem("a", [], "")], [lying]))[0]
