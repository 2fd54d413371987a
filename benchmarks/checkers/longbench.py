"""LongBench's metrics, one per task, each in [0, 1]: the best over the references of one reply (Bai et al., arXiv 2308.14508)."""

from __future__ import annotations

import collections
import contextlib
import re
import string
import sys

from benchmarks.checkers.extract import after_thoughts
from benchmarks.datasets.problem import DataError, Problem, Verdict

FIRST_LINE_ONLY = ("trec", "triviaqa", "samsum")  # few-shot tasks, where a model may go on with examples of its own


def check(problem: Problem, text: str) -> Verdict:
    """problem.group: the task.  problem.reference: answers, all_classes.  Raises DataError without the library of a metric."""
    answer = after_thoughts(text).lstrip("\n")
    if problem.group in FIRST_LINE_ONLY:
        answer = answer.strip().split("\n")[0]
    metric, classes = METRICS[problem.group], problem.reference["all_classes"]
    return Verdict(max((metric(answer, right, classes) for right in problem.reference["answers"]), default=0.0), answer)


def words_f1(answer: str, right: str, _classes=()) -> float:
    """F1 of the two bags of words; case, punctuation and articles do not count."""
    given, wanted = collections.Counter(_words(answer)), collections.Counter(_words(right))
    common = (given & wanted).total()
    return 2 * common / (given.total() + wanted.total()) if common else 0.0


def _words(text: str) -> list[str]:
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    return [word for word in text.split() if word not in ("a", "an", "the")]


def rouge_l(answer: str, right: str, _classes=()) -> float:
    """F of ROUGE-L by the package `rouge`, LongBench's; 0 for a text without words."""
    try:
        from rouge import Rouge
    except ImportError:
        raise DataError("LongBench's summaries need the package `rouge`: pip install -e .[eval]") from None
    if not answer.strip(" .\n\t") or not right.strip(" .\n\t"):
        return 0.0
    with _deep_recursion():
        return Rouge(metrics=["rouge-l"]).get_scores(answer, right)[0]["rouge-l"]["f"]


@contextlib.contextmanager
def _deep_recursion(limit: int = 100_000):
    """The package recurses once per word of a sentence."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(limit)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def classification(answer: str, right: str, classes: list[str]) -> float:
    """1 / the number of classes that the answer names, if the right one is among them.  A class whose name is part of the
    right one's is not counted ("city" in "other city")."""
    named = [c for c in classes if c in answer and not (c in right and c != right)]
    return 1 / len(named) if right in named else 0.0


def share_of_numbers(answer: str, right: str, _classes=()) -> float:
    """Share of the answer's numbers that are the reference's (`7` or `Paragraph 7`)."""
    numbers, wanted = re.findall(r"\d+", answer), re.findall(r"\d+", right)[0]
    return numbers.count(wanted) / len(numbers) if numbers else 0.0


def code_similarity(answer: str, right: str, _classes=()) -> float:
    """Indel similarity of the first line that is neither a comment nor a fence."""
    try:
        from rapidfuzz import fuzz
    except ImportError:
        raise DataError("LongBench's code tasks need rapidfuzz: pip install -e .[eval]") from None
    line = next((x for x in answer.split("\n") if not any(mark in x for mark in ("`", "#", "//"))), "")
    return fuzz.ratio(line, right) / 100


METRICS = {
    **dict.fromkeys(("narrativeqa", "qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique", "triviaqa"), words_f1),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "samsum"), rouge_l),
    "trec": classification,
    **dict.fromkeys(("passage_count", "passage_retrieval_en"), share_of_numbers),
    **dict.fromkeys(("lcc", "repobench-p"), code_similarity),
}
