"""The part of a reply that counts: behind the thoughts, in a box, in a block of code."""

from __future__ import annotations

import re

THOUGHT_ENDS = "</think>"
_ANSWER = re.compile(r"(?:final answer|answer)\s*(?:is|:|=)\s*:?\s*(?:\*\*)?\s*(\$[^$\n]+\$|[^\n]+)", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)[^\n]*\n(.*?)^[ \t]*```", re.MULTILINE | re.DOTALL)


def after_thoughts(text: str) -> str:
    """Behind the last `</think>`; all of it if there is none (a model that does not think aloud, or was cut off)."""
    return text.rpartition(THOUGHT_ENDS)[2]


def last_boxed(text: str) -> str | None:
    """Content of the last complete `\\boxed{...}` or `\\fbox{...}`, braces balanced; None if there is none."""
    for start in reversed([m.end() for m in re.finditer(r"\\f?boxed\s*\{|\\fbox\s*\{", text)]):
        depth = 1
        for i in range(start, len(text)):
            if text[i] in "{}" and text[i - 1] != "\\":
                depth += 1 if text[i] == "{" else -1
                if depth == 0:
                    return text[start:i].strip()
    return None


def final_answer(text: str) -> str | None:
    """What a reply gives as its answer: the last box, else what follows the last `####`, else the last "answer is ...".

    Never simply the last number: a reply that broke off has no answer.
    """
    text = after_thoughts(text)
    boxed = last_boxed(text)
    if boxed:
        return boxed
    _, mark, rest = text.rpartition("####")
    if mark and rest.strip():
        return rest.strip().splitlines()[0].strip()
    found = _ANSWER.findall(text)
    return re.sub(r"\*\*|\.\s*$", "", found[-1]).strip() or None if found else None


def last_code(text: str) -> str | None:
    """The last fenced block of Python (or of no language) behind the thoughts; None if there is none."""
    blocks = [code for language, code in _FENCE.findall(after_thoughts(text)) if language.lower() in ("", "python", "python3", "py")]
    return blocks[-1] if blocks else None
