"""What both models give, and its tables: a row a policy, a column a budget."""

from __future__ import annotations

import dataclasses

from benchmarks import table
from benchmarks.curves.policies import FULL, MEANING, POLICIES, flags_of


@dataclasses.dataclass(frozen=True)
class Point:
    """One policy at one budget (None: full KV), in one panel.  low, high: 95 % interval.  n: problems or documents.  text: as
    it stands in the table.  compressions: per request, None if it was not counted."""

    policy: str
    budget: int | None
    panel: str
    value: float
    low: float
    high: float
    n: int
    text: str
    compressions: float | None = None


@dataclasses.dataclass(frozen=True)
class Curves:
    """context: tokens that a budget is a share of.  origins: what the measurements are of.  complete: none is missing."""

    points: list[Point]
    label: str
    context: int
    note: str
    complete: bool
    origins: list[str]

    @property
    def panels(self) -> list[str]:
        return list(dict.fromkeys(p.panel for p in self.points))

    @property
    def budgets(self) -> list[int]:
        return sorted({p.budget for p in self.points if p.budget})

    @property
    def policies(self) -> list[str]:
        there = {p.policy for p in self.points}
        return [name for name in (FULL, *POLICIES) if name in there]


def render(curves: Curves, panel: str) -> str:
    cells = {(p.policy, p.budget): p.text for p in curves.points if p.panel == panel}
    head = ["policy", *(f"K = {budget} ({budget / curves.context:.3g})" for budget in curves.budgets)]
    rows = [[policy, *(cells.get((policy, budget), cells.get((policy, None), "-")) for budget in curves.budgets)]
            for policy in curves.policies if any(policy == there for there, _ in cells)]  # fmt: skip
    return table.render(head, rows)


def tables(curves: Curves) -> str:
    return "\n\n".join(f"{panel}\n{render(curves, panel)}" for panel in curves.panels)


def page(origin: dict, curves: Curves, picture: str) -> str:
    """Markdown: the same tables, where they come from, and what the policies are."""
    lines = ["# Accuracy against memory", "", f"    {origin['command']}", "",
             f"Measured at {'; '.join(curves.origins)}.  Put together {origin['time']}"
             f"{'' if curves.complete else '; incomplete, some measurements are missing'}.", "", curves.note, "",
             f"![{curves.label} by budget]({picture})"]  # fmt: skip
    for panel in curves.panels:
        lines += ["", f"## {panel}", "", "```", render(curves, panel), "```"]
    lines += ["", "## Policies", "", "| | | options |", "| --- | --- | --- |"]
    lines += [f"| {policy} | {MEANING[policy]} | `{' '.join(flags_of(policy))}` |" for policy in curves.policies]
    return "\n".join(lines) + "\n"
