"""AMC 2023, AIME 2024, MATH-500: a question, and an answer in LaTeX or a worked solution that ends in one."""

from __future__ import annotations

from benchmarks.checkers import maths
from benchmarks.checkers.extract import last_boxed
from benchmarks.datasets.files import hub_rows
from benchmarks.datasets.problem import Dataset, Problem, column, user

# The system prompt, temperature, samples and output limit of the paper's scripts (arXiv 2603.08743).
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


def load(rows: list[dict]) -> list[Problem]:
    """Columns: problem or question; answer, or a solution with \\boxed{}; optionally unique_id or id."""
    return [Problem(str(row.get("unique_id", row.get("id", i))), user(column(row, "problem", "question")), _answer(row))
            for i, row in enumerate(rows)]


def _answer(row: dict) -> str:
    text = column(row, "answer", "solution")
    if isinstance(text, float) and text.is_integer():  # AMC 23's answers are stored as 27.0
        text = int(text)
    return last_boxed(str(text)) or str(text)


def _dataset(name: str, hub: str, n: int) -> Dataset:
    return Dataset(name, hub, "test", load, maths.check, hub_rows, n=n, max_tokens=32768, system=SYSTEM)


AMC23 = _dataset("amc23", "zwhe99/amc23", 32)
AIME24 = _dataset("aime24", "math-ai/aime24", 32)
MATH500 = _dataset("math500", "HuggingFaceH4/MATH-500", 4)  # ours: the paper names no number of samples
