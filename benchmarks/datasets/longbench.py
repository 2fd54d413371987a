"""LongBench, the tasks in English and code: long prompts, short answers, one metric per task."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

from benchmarks.checkers import longbench
from benchmarks.datasets.files import hub_file
from benchmarks.datasets.problem import DataError, Dataset, Problem, column, user

# Those that the paper's scripts run.
PAPER = ("qasper", "multifieldqa_en", "hotpotqa", "2wikimqa", "gov_report", "multi_news", "trec", "triviaqa", "samsum",
         "passage_count", "passage_retrieval_en", "lcc", "repobench-p")
# Our words.  Numbers that others published need LongBench's own: its repository has them as config/dataset2prompt.json, which
# --prompts takes.
_QA = ("Read the text, then answer the question about it. Answer with a short phrase and nothing else.\n\nText:\n{context}\n\n"
       "Question: {input}\nAnswer with a short phrase and nothing else.")
_SUMMARY = "Summarise the following text in about one page.\n\n{context}\n\nSummarise the text above in about one page."
_CODE = "Continue this code: write its next line and nothing else.\n\n{context}{input}"
_SHOTS = "Continue in the way of the examples; write what comes next and nothing else.\n\n{context}\n\n{input}"
PROMPTS = {
    **dict.fromkeys(("narrativeqa", "multifieldqa_en", "hotpotqa", "2wikimqa", "musique"), _QA),
    "qasper": _QA + ' If the text does not say, answer "unanswerable"; answer a yes/no question with "yes" or "no".',
    "qmsum": "Read the transcript of a meeting, then answer in one or more sentences.\n\n{context}\n\n{input}",
    **dict.fromkeys(("gov_report", "multi_news"), _SUMMARY),
    **dict.fromkeys(("trec", "triviaqa", "samsum"), _SHOTS),
    "passage_count": "Some of these paragraphs may occur more than once. How many different ones are there?\n\n{context}\n\n"
                     "Answer with the number of different paragraphs and nothing else.",
    "passage_retrieval_en": "Here are numbered paragraphs, then a summary of one of them.\n\n{context}\n\nSummary:\n{input}\n\n"
                            'Which paragraph is it of? Answer like "Paragraph 7" and nothing else.',
    **dict.fromkeys(("lcc", "repobench-p"), _CODE),
}


def load(rows: list[dict], prompts: dict[str, str] = PROMPTS) -> list[Problem]:
    """Columns as in LongBench's files: dataset, input, context, answers, all_classes, _id.  Raises DataError."""
    problems = []
    for i, row in enumerate(rows):
        task = column(row, "dataset").removesuffix("_e")  # LongBench-E
        if task not in longbench.METRICS or task not in prompts:
            known = ", ".join(t for t in longbench.METRICS if t in prompts)
            raise DataError(f"LongBench task {task!r} is not supported; supported: {known}")
        text = prompts[task].replace("{input}", column(row, "input")).replace("{context}", column(row, "context"))
        reference = dict(answers=column(row, "answers"), all_classes=row.get("all_classes") or [])
        problems.append(Problem(f"{task}/{row.get('_id', i)}", user(text), reference, task))
    return problems


def read_prompts(path: Path) -> dict[str, str]:
    """A JSON object of task to prompt, with {context} and {input}.  Raises DataError."""
    try:
        prompts = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"--prompts {path}: {error}") from None
    if not isinstance(prompts, dict) or not all("{context}" in str(text) for text in prompts.values()):
        raise DataError(f"--prompts {path}: must be an object of task to text with {{context}}")
    return prompts


def fetch(name: str, split: str) -> list[dict]:
    """split: `paper`, `all`, or tasks joined with commas.  Raises DataError."""
    tasks = {"paper": PAPER, "all": tuple(longbench.METRICS)}.get(split) or split.split(",")
    rows = []
    with zipfile.ZipFile(hub_file(name, "data.zip")) as archive:
        for task in tasks:
            try:
                lines = io.TextIOWrapper(archive.open(f"data/{task}.jsonl"), encoding="utf-8")
            except KeyError:
                raise DataError(f"--split {split}: LongBench has no task {task!r}") from None
            rows += [json.loads(line) for line in lines if line.strip()]
    return rows


def shorten(problem: Problem, tokenizer, tokens: int) -> Problem:
    """The problem with the middle of its prompt left out, as LongBench does, so that it has at most `tokens` tokens."""
    (message,) = problem.messages
    ids = tokenizer.encode(message["content"], add_special_tokens=False)
    if len(ids) <= tokens:
        return problem
    head = tokens // 2
    text = "".join(tokenizer.decode(part, skip_special_tokens=True) for part in (ids[:head], ids[len(ids) - (tokens - head):]))
    return Problem(problem.id, user(text), problem.reference, problem.group)


# Samples and output limit of the paper's scripts.
LONGBENCH = Dataset("longbench", "THUDM/LongBench", "paper", load, longbench.check, fetch, n=4, max_tokens=4096)
