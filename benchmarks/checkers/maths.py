"""Equality of mathematical answers, by math-verify (the extra `eval`)."""

from __future__ import annotations

import re

from benchmarks.checkers.extract import final_answer
from benchmarks.datasets.problem import DataError, Problem, Verdict

SECONDS = 5  # for one parse or one comparison; math-verify needs the main thread for it (SIGALRM)


def check(problem: Problem, text: str) -> Verdict:
    """Raises DataError without math-verify."""
    answer = final_answer(text)
    if answer is None:
        return Verdict(0.0, None, "no answer")
    return Verdict(float(equal(problem.reference, answer)), answer)


def equal(reference: str, answer: str) -> bool:
    """Whether two answers (LaTeX or plain, without \\boxed) are the same number, expression, set, tuple or word."""
    try:
        from math_verify import verify
    except ImportError:
        raise DataError("checking maths needs math-verify: pip install -e .[eval]") from None
    if _plain(reference) == _plain(answer):  # words too, which a parser takes for products of letters
        return True
    gold, given = _parse(reference), _parse(answer)
    return bool(gold) and bool(given) and verify(gold, given, timeout_seconds=SECONDS)


def _parse(answer: str) -> list:
    from math_verify import parse

    # In a box of its own: elsewhere the parser would join all that it finds into one set.
    return parse(f"$\\boxed{{{answer.strip().strip('$')}}}$", parsing_timeout=SECONDS)


def _plain(answer: str) -> str:
    answer = re.sub(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}", r"\1", answer)
    return re.sub(r"\\[,;!]|[\s$]", "", answer).lower()
