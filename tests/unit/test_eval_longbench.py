"""LongBench's metrics on answers with known scores."""

import pytest

from benchmarks.checkers import longbench
from benchmarks.datasets.problem import Problem

pytest.importorskip("rouge")
pytest.importorskip("rapidfuzz")


def score(task, text, answers, classes=()):
    return longbench.check(Problem("0", [], dict(answers=answers, all_classes=list(classes)), task), text).score


@pytest.mark.parametrize("text, answers, f1", [
    ("The Eiffel Tower.", ["eiffel tower"], 1.0),
    ("<think>London</think>Paris", ["Paris"], 1.0),
    ("Paris", ["London"], 0.0),
    ("in Paris, France", ["Paris"], 0.5),  # precision 1/3, recall 1
    ("Paris Paris", ["Paris"], 2 / 3),  # a bag, not a set
    ("Paris", ["London", "Paris"], 1.0),  # the best reference
    ("", ["Paris"], 0.0),
])
def test_words_f1(text, answers, f1):
    assert score("hotpotqa", text, answers) == pytest.approx(f1)


def test_few_shot_tasks_count_the_first_line():
    assert score("triviaqa", "\nParis\nPassage: more and more", ["Paris"]) == 1.0
    assert score("hotpotqa", "Paris\nPassage: more and more", ["Paris"]) < 1.0


def test_rouge():
    assert score("gov_report", "the cat sat on the mat", ["the cat sat on the mat"]) == pytest.approx(1.0)
    assert score("gov_report", "a dog ran", ["the cat sat"]) == 0.0
    assert score("gov_report", "the cat lay there", ["the cat sat there"]) == pytest.approx(0.75)
    assert score("gov_report", "...", ["the cat"]) == 0.0 == score("gov_report", "", ["the cat"])
    assert score("gov_report", " ".join(f"w{i}" for i in range(1500)), ["w0 w1"]) < 0.01  # one long sentence


@pytest.mark.parametrize("text, right, expected", [
    ("Type: Date", "Date", 1.0),
    ("Date or City", "Date", 0.5),
    ("City", "Date", 0.0),
    ("Other city", "Other city", 1.0),  # `city`, `Other` are parts of it
    ("", "Date", 0.0),
])
def test_classification(text, right, expected):
    assert score("trec", text, [right], ["Date", "City", "Other city", "city", "Other"]) == expected


def test_numbers_and_code():
    assert score("passage_retrieval_en", "Paragraph 7", ["Paragraph 7"]) == 1.0
    assert score("passage_retrieval_en", "Paragraph 17", ["Paragraph 7"]) == 0.0
    assert score("passage_count", "7 or 8", ["7"]) == 0.5
    assert score("passage_count", "many", ["7"]) == 0.0
    assert score("lcc", "```python\n# next\nreturn x\nmore", ["return x"]) == 1.0
    assert 0.5 < score("lcc", "return y", ["return x"]) < 1.0
    assert score("lcc", "", ["return x"]) == 0.0
