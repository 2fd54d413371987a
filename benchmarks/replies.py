"""Replies on disk, one JSON line each, so that a run can stop anywhere and go on where it stopped."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from benchmarks.datasets.problem import Problem


class OtherRun(RuntimeError):
    """The file holds replies of another run; the message names the difference."""


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answer.  text: the model's output, thoughts included.  finish: the server's finish_reason.  seconds include waiting
    in the server's queue.  error: what the server said instead of answering ("" if it answered)."""

    problem: str
    sample: int
    digest: str
    text: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    error: str = ""


def read_header(path: Path) -> dict:
    with path.open(encoding="utf-8") as lines:
        return json.loads(lines.readline())["header"]


class ReplyFile:
    """`with ReplyFile(path, header) as file:`; header: what must be equal for two runs to be one (model, sampling, ...).

    The file's first line is the header; a line `session` says what the server counted in one run.  A last line that a killed run left half written is cut off.  Replies with an error
    are asked again.  Raises OtherRun.
    """

    def __init__(self, path: Path, header: dict):
        self.path, self.header = Path(path), json.loads(json.dumps(header))
        self.replies: dict[tuple[str, int], Reply] = {}
        self.sessions: list[dict] = []

    def __enter__(self) -> ReplyFile:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self._whole_lines()
        if lines:
            self._compare(json.loads(lines[0])["header"])
        for record in map(json.loads, lines[1:]):
            if "session" in record:
                self.sessions.append(record["session"])
            else:
                self.replies[record["problem"], record["sample"]] = Reply(**record)
        self.file = self.path.open("a", encoding="utf-8")
        if not lines:
            self._write({"header": self.header})
        return self

    def __exit__(self, *exc):
        self.file.close()

    def _whole_lines(self) -> list[str]:
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        whole = data[:data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self.path.write_bytes(whole)
        return whole.decode("utf-8").split("\n")[:-1]  # not splitlines: it also splits at other separators

    def _compare(self, there: dict):
        for key in sorted({*there, *self.header}):
            if there.get(key) != self.header.get(key):
                raise OtherRun(f"{self.path} holds a run with {key} = {there.get(key)!r}, not {self.header.get(key)!r}; "
                               f"remove it or choose another --out")

    def _write(self, record: dict):
        self.file.write(json.dumps(record, ensure_ascii=False) + "\n")
        self.file.flush()

    def add(self, reply: Reply):
        self._write(dataclasses.asdict(reply))
        self.replies[reply.problem, reply.sample] = reply

    def end_session(self, session: dict):
        self._write({"session": session})
        self.sessions.append(session)

    def missing(self, problems: list[Problem], n: int) -> list[tuple[Problem, int]]:
        """(problem, sample) still to ask: all first samples, then all second ones.  Raises OtherRun if a prompt has changed."""
        todo = []
        for sample in range(n):
            for problem in problems:
                reply = self.replies.get((problem.id, sample))
                if reply and reply.digest != problem.digest:
                    raise OtherRun(f"{self.path}: problem {problem.id} had another prompt; remove the file or choose another --out")
                if reply is None or reply.error:
                    todo.append((problem, sample))
        return todo

    def of(self, problems: list[Problem], n: int) -> list[Reply]:
        """The replies that this run is about (a file may hold more problems and samples)."""
        return [self.replies[p.id, s] for p in problems for s in range(n) if (p.id, s) in self.replies]
