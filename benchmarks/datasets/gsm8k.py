"""GSM8K: grade-school word problems; the reference is the number after `####` in the worked answer."""

from __future__ import annotations

from benchmarks.checkers import maths
from benchmarks.datasets.files import hub_rows
from benchmarks.datasets.maths import SYSTEM
from benchmarks.datasets.problem import DataError, Dataset, Problem, column, user


def load(rows: list[dict]) -> list[Problem]:
    """Columns: question or problem; answer or solution with `#### number`; optionally id."""
    return [Problem(str(row.get("id", i)), user(column(row, "question", "problem")), reference(column(row, "answer", "solution")))
            for i, row in enumerate(rows)]


def reference(answer: str) -> str:
    """`... #### 1,234` -> `1234`.  Raises DataError."""
    _, mark, number = str(answer).rpartition("####")
    if not mark:
        raise DataError(f"a GSM8K answer has no `####`: {str(answer)[:60]!r}")
    return number.strip().replace(",", "").lstrip("$")


# One sample of 1319 problems says more than many of few; the paper names no number of samples.
GSM8K = Dataset("gsm8k", "openai/gsm8k:main", "test", load, maths.check, hub_rows, n=1, max_tokens=32768, system=SYSTEM)
