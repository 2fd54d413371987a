"""Whether a program passes all its tests: standard input to standard output, or a function's arguments to its result."""

from __future__ import annotations

import dataclasses
import decimal
import json

from benchmarks.checkers import sandbox
from benchmarks.checkers.extract import last_code
from benchmarks.datasets.problem import Problem, Verdict


@dataclasses.dataclass(frozen=True)
class Case:
    """function: its name; None: the whole program reads `given` and prints `expected`.  With a function, `given` has one JSON
    value a line, its arguments, and `expected` is JSON."""

    given: str
    expected: str
    function: str | None = None


def check(problem: Problem, text: str, limits: sandbox.Limits = sandbox.Limits()) -> Verdict:
    """problem.reference: a list of Case, or a function without arguments that gives it.  The first failure ends the check."""
    source = last_code(text)
    if source is None:
        return Verdict(0.0, None, "no block of code")
    tests = problem.reference() if callable(problem.reference) else problem.reference
    for number, test in enumerate(tests, 1):
        failure = failed(source, test, limits)
        if failure:
            return Verdict(0.0, source, f"test {number} of {len(tests)}: {failure}")
    return Verdict(1.0, source)


def failed(source: str, test: Case, limits: sandbox.Limits) -> str:
    """Why the program fails the test, "" if it passes."""
    run = sandbox.run(source, test.given, test.function, limits)
    if run.code is None:
        return f"still running after {limits.wall_seconds:g} s"
    if run.code != 0:
        last = run.error.strip().splitlines()[-1:] or [f"exit status {run.code}"]
        return last[0][:200]
    if test.function is None:
        return "" if same_output(run.output, test.expected) else "wrong output"
    return "" if same_result(run.output, test.expected) else "wrong result"


def same_output(given: str, expected: str) -> bool:
    """Equal line by line, outer blanks and trailing empty lines aside; a line may also be equal number by number (exactly)."""
    lines, wanted = (text.strip().splitlines() for text in (given, expected))
    return len(lines) == len(wanted) and all(_same_line(a.strip(), b.strip()) for a, b in zip(lines, wanted))


def _same_line(given: str, expected: str) -> bool:
    if given == expected:
        return True
    try:
        return list(map(decimal.Decimal, given.split())) == list(map(decimal.Decimal, expected.split()))
    except decimal.InvalidOperation:
        return False


def same_result(given: str, expected: str) -> bool:
    """Equal JSON values; 1 and 1.0 are equal, 1 and true are not."""
    try:
        a, b = json.loads(given), json.loads(expected)
    except ValueError:
        return False
    return a == b and (isinstance(a, bool) == isinstance(b, bool))
