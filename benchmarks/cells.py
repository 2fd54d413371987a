"""One cell of the accuracy table: a family and level under one setting, filled a few problems at a time."""

from __future__ import annotations

import dataclasses
import time

from benchmarks import engines, stats
from benchmarks.reasoner import tasks
from benchmarks.settings import Setting

ROOM = 32  # output tokens beyond the longest chain of thought, before a request that lost its way is stopped


@dataclasses.dataclass
class Cell:
    """Totals over the problems answered so far.  truncated: answers without an end in time.  seconds: wall time."""

    setting: Setting
    family: str
    level: int
    problems: list[tasks.Problem]
    outcomes: list[bool] = dataclasses.field(default_factory=list)
    truncated: int = 0
    output_tokens: int = 0
    compressions: int = 0
    evicted_tokens: int = 0
    seconds: float = 0.0

    @property
    def left(self) -> list[tasks.Problem]:
        return self.problems[len(self.outcomes):]

    def answer(self, engine, count: int, temperature: float):
        """Answer the next `count` problems with `engine`."""
        batch = self.left[:count]
        room = max(len(p.cot_toks) for p in self.problems) + ROOM
        before, start = engines.counters(engine), time.monotonic()
        outputs = engines.generate(engine, batch, room, temperature)
        self.seconds += time.monotonic() - start
        after = engines.counters(engine)
        self.compressions += after.get("compressions", 0) - before.get("compressions", 0)
        self.evicted_tokens += after.get("evicted_tokens", 0) - before.get("evicted_tokens", 0)
        for problem, ids in zip(batch, outputs):
            self.outcomes.append(problem.check(engines.detokenize(ids)))
            self.truncated += engines.EOS not in ids
            self.output_tokens += len(ids)

    def record(self) -> dict:
        """Everything a reader needs, for the JSON file; shares in [0, 1], means per request."""
        n, right = len(self.outcomes), sum(self.outcomes)
        low, high = stats.wilson(right, n)
        mean = lambda total: total / n if n else None
        return dict(
            setting=self.setting.name, policy=self.setting.policy, budget=self.setting.budget, family=self.family,
            level=self.level, n=n, right=right, pass_at_1=mean(right), wilson95=[low, high], outcomes=self.outcomes,
            truncated=self.truncated, prompt_tokens_mean=mean(sum(len(p.ids()[0]) for p in self.problems[:n])),
            output_tokens_mean=mean(self.output_tokens), compressions_per_request=mean(self.compressions),
            evicted_tokens_per_request=mean(self.evicted_tokens), seconds=self.seconds,
        )


def fill(cells: list[Cell], engine, concurrency: int, temperature: float, deadline: float, on_progress=lambda cells: None):
    """Answer all problems, `concurrency` of a cell at a time and round robin, so that cells stay even if `deadline`
    (time.monotonic seconds) stops the work between two batches."""
    while any(cell.left for cell in cells):
        for cell in cells:
            if time.monotonic() > deadline:
                return
            if cell.left:
                cell.answer(engine, concurrency, temperature)
                on_progress(cells)
