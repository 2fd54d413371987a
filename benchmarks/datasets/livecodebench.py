"""LiveCodeBench, code generation: programs that read standard input, and functions to complete."""

from __future__ import annotations

import base64
import functools
import io
import json
import pickle
import re
import zlib

from benchmarks.checkers import code
from benchmarks.datasets.files import hub_file, read_rows
from benchmarks.datasets.problem import DataError, Dataset, Problem, column, user

RELEASES = 6  # files test.jsonl, test2.jsonl, ..., test6.jsonl
_WHOLE = ("Write a Python 3 program that solves the problem. It reads standard input and writes to standard output. "
          "Put the whole program in one ```python block.")
_FUNCTION = ("Complete this Python 3 code so that it solves the problem, and put all of it in one ```python block.\n\n"
             "```python\n{starter}\n```")


def load(rows: list[dict]) -> list[Problem]:
    """Columns: question_content; public_test_cases, private_test_cases (optional), starter_code, metadata, question_id,
    difficulty as in the hub's files."""
    return [_problem(i, row) for i, row in enumerate(rows)]


def _problem(i: int, row: dict) -> Problem:
    starter = (row.get("starter_code") or "").rstrip()
    task = _FUNCTION.format(starter=starter) if starter else _WHOLE
    return Problem(str(row.get("question_id", i)), user(f"{column(row, 'question_content').strip()}\n\n{task}"),
                   functools.partial(tests, row), row.get("difficulty") or "")


def tests(row: dict) -> list[code.Case]:
    """Public tests, then private ones (decoded only when needed: hundreds of megabytes for a whole release)."""
    function = json.loads(row.get("metadata") or "{}").get("func_name")
    cases = [*_cases(column(row, "public_test_cases")), *_cases(row.get("private_test_cases") or "[]")]
    if not cases:
        raise DataError(f"problem {row.get('question_id')} has no tests")
    return [code.Case(case["input"], case["output"], function if case.get("testtype") == "functional" else None)
            for case in cases]


def _cases(text) -> list[dict]:
    """A list, JSON of one, or base64 of zlib of a pickled string of JSON, as the hub packs the private tests."""
    if not isinstance(text, str):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(_Plain(io.BytesIO(zlib.decompress(base64.b64decode(text)))).load())


class _Plain(pickle.Unpickler):
    """A pickle may run code while it is read; one of a string has no need to."""

    def find_class(self, module, name):
        raise DataError(f"private tests name {module}.{name}: not a plain string")


def fetch(name: str, split: str) -> list[dict]:
    """split: `v6` is the problems that release 6 added, `v1_v5` a range, `release_v6` all up to it.  Raises DataError."""
    match = re.fullmatch(r"(release_)?v(\d)(?:_v(\d))?", split)
    first, last = (int(match[2]), int(match[3] or match[2])) if match else (0, 0)
    if match and match[1]:
        first = 1
    if not 1 <= first <= last <= RELEASES:
        raise DataError(f"--split {split}: must be v1 to v{RELEASES}, a range v1_v3 or release_v1 to release_v{RELEASES}")
    files = [f"test{number if number > 1 else ''}.jsonl" for number in range(first, last + 1)]
    return [row for file in files for row in read_rows(hub_file(name, file))]


# Release, samples and limit are ours: the paper's scripts name none but a temperature.
LIVECODEBENCH = Dataset("livecodebench", "livecodebench/code_generation_lite", "v6", load, code.check, fetch, n=4,
                        max_tokens=32768, parallel_checks=True)
