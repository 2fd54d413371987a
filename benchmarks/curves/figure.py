"""The curves as one SVG file: a panel a family.  Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from benchmarks.curves.points import Curves
from benchmarks.curves.policies import FULL

# One colour for what differs in the prompt (dashed) or the reserve (dotted) only.
STYLES: dict[str, dict] = {
    "zipage": dict(color="C0", linewidth=2.2),
    "zipage-half": dict(color="C5"),
    "zipage-prefix-compress": dict(color="C5", linestyle="--"),
    "recent": dict(color="C1"),
    "sinks+recent": dict(color="C1", linestyle="--"),
    "random": dict(color="C7"),
    "random-r0": dict(color="C7", linestyle=":"),
    "attention": dict(color="C2"),
    "attention-r0": dict(color="C2", linestyle=":"),
    "global": dict(color="C4"),
    "flash": dict(color="C9"),
    "paper": dict(color="C3"),
}
COLUMNS = 3
APART = 0.004  # between neighbours' intervals, of the context


def draw(curves: Curves, out: Path):
    import matplotlib

    matplotlib.use("svg")  # no display needed
    matplotlib.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "curves", "font.size": 9})  # text stays text
    from matplotlib import pyplot

    panels, policies = curves.panels, [p for p in curves.policies if p != FULL]
    columns = min(COLUMNS, len(panels) + 1)
    rows = -(-(len(panels) + 1) // columns)  # one more for the legend
    widths, height = ([3.4] * columns, 2.8) if len(panels) > 1 else ([5.6, 2.2], 3.8)
    figure, axes = pyplot.subplots(rows, columns, figsize=(sum(widths), height * rows), width_ratios=widths, layout="constrained",
                                   squeeze=False)  # fmt: skip
    cells = list(axes.flat)
    shares = [budget / curves.context for budget in curves.budgets]
    for axis, panel in zip(cells, panels):
        for value in {p.value for p in curves.points if p.panel == panel and p.policy == FULL}:
            axis.axhline(value, color="black", linewidth=0.8, label=FULL)
        for n, policy in enumerate(policies):
            mine = sorted((p for p in curves.points if (p.panel, p.policy) == (panel, policy)), key=lambda p: p.budget)
            x = [p.budget / curves.context + (n - len(policies) / 2) * APART for p in mine]
            ends = [[p.value - p.low for p in mine], [p.high - p.value for p in mine]]
            axis.errorbar(x, [p.value for p in mine], ends, marker="o", markersize=2.5, elinewidth=0.7, label=policy,
                          **{"linewidth": 1.2, **STYLES[policy]})  # fmt: skip
        axis.set_title(panel, fontsize="medium")
        axis.set_xticks(shares, [f"{share:.3g}" for share in shares])
        axis.grid(alpha=0.3)
    for axis in axes[:, 0]:
        axis.set_ylabel(curves.label)
    for axis in axes[-1]:
        axis.set_xlabel(f"budget, as a share of {curves.context:,} tokens")
    cells[len(panels)].legend(*cells[0].get_legend_handles_labels(), fontsize="small", loc="center")
    for axis in cells[len(panels) :]:
        axis.set_axis_off()
    figure.savefig(out, metadata={"Date": None})
    pyplot.close(figure)
