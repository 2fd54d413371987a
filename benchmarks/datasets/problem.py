"""What every dataset gives: problems with prompts and references, and how to sample and check them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from typing import Any


class DataError(RuntimeError):
    """A dataset cannot be read; the message is one line that says what to do."""


@dataclasses.dataclass(frozen=True)
class Problem:
    """messages: a chat of role and content.  reference: what the dataset's checker wants.  group: task or difficulty, for
    the table ("" if there are none)."""

    id: str
    messages: list[dict]
    reference: Any
    group: str = ""

    @property
    def digest(self) -> str:
        """Of the prompt, so that a file of replies is never continued with another one."""
        return hashlib.sha256(json.dumps(self.messages).encode()).hexdigest()[:16]


@dataclasses.dataclass(frozen=True)
class Verdict:
    """score in [0, 1] (0 or 1 but for LongBench's metrics).  answer: what was taken out of the text, None if nothing was.
    note: why it is wrong, where that can be said."""

    score: float
    answer: str | None
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Dataset:
    """hub, split: the default source.  load(rows) -> problems, check(problem, text) -> Verdict, fetch(name, split) -> rows.

    n: samples a problem; max_tokens: output tokens at most; system: system prompt, None for none.
    parallel_checks: check() may run in threads.
    """

    name: str
    hub: str
    split: str
    load: Callable[[list[dict]], list[Problem]]
    check: Callable[[Problem, str], Verdict]
    fetch: Callable[[str, str], list[dict]]
    n: int
    max_tokens: int
    system: str | None = None
    parallel_checks: bool = False


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def column(row: dict, *names: str):
    """The first of `names` that the row has.  Raises DataError."""
    for name in names:
        if row.get(name) is not None:
            return row[name]
    raise DataError(f"a row has none of the columns {', '.join(names)}; it has {', '.join(map(str, row))}")
