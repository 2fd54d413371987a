"""Checks replies once and keeps the verdicts beside them, so that a table is drawn again without running a thousand programs."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import hashlib
import json
from pathlib import Path

from benchmarks.datasets.problem import Dataset, Problem, Verdict
from benchmarks.replies import Reply


def score(dataset: Dataset, problems: list[Problem], replies: list[Reply], path: Path, workers: int = 1, fresh: bool = False,
          on_progress=lambda done, total: None) -> dict[tuple[str, int], Verdict]:
    """{(problem, sample): verdict} of all replies; a reply with an error, which has no text, scores 0.

    path: JSON lines of verdicts, with a digest of the text that each belongs to; read first (unless `fresh`) and added to.
    workers: threads, for datasets whose checks may run in them.
    """
    known = {} if fresh else _read(path)
    by_id = {p.id: p for p in problems}
    todo = [r for r in replies if _key(r) not in known]
    with path.open("w" if fresh else "a", encoding="utf-8") as file:
        for done, (reply, verdict) in enumerate(_check_all(dataset, by_id, todo, workers), 1):
            known[_key(reply)] = verdict
            record = dict(problem=reply.problem, sample=reply.sample, text=_key(reply)[2], **dataclasses.asdict(verdict))
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()
            on_progress(done, len(todo))
    return {(r.problem, r.sample): known[_key(r)] for r in replies}


def _check_all(dataset: Dataset, by_id: dict[str, Problem], todo: list[Reply], workers: int):
    def check(reply: Reply) -> tuple[Reply, Verdict]:
        if reply.error:
            return reply, Verdict(0.0, None, "refused")
        return reply, dataset.check(by_id[reply.problem], reply.text)

    if not (dataset.parallel_checks and workers > 1):
        yield from map(check, todo)
        return
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        calls = [pool.submit(check, reply) for reply in todo]
        try:
            for call in concurrent.futures.as_completed(calls):
                yield call.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _key(reply: Reply) -> tuple[str, int, str]:
    return reply.problem, reply.sample, hashlib.sha256((reply.text + reply.error).encode(errors="replace")).hexdigest()[:16]


def _read(path: Path) -> dict[tuple[str, int, str], Verdict]:
    """Verdicts of a file that may end in half a line."""
    known = {}
    if path.exists():
        data = path.read_bytes()
        whole = data[:data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            path.write_bytes(whole)
        for record in map(json.loads, whole.splitlines()):
            known[record["problem"], record["sample"], record["text"]] = Verdict(record["score"], record["answer"], record["note"])
    return known
