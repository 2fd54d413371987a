"""Plain-text tables."""

from __future__ import annotations


def render(head: list[str], rows: list[list]) -> str:
    """First column left, the others right aligned, two spaces between; a rule under the head."""
    cells = [[str(c) for c in row] for row in [head, *rows]]
    width = [max(len(row[i]) for row in cells) for i in range(len(head))]
    lines = ["  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, width))).rstrip()
             for row in cells]
    return "\n".join([lines[0], "-" * (sum(width) + 2 * (len(width) - 1)), *lines[1:]])
