"""Writes what the pages repeat of the code and of the results: `python docs/generate.py`.  Tests fail where a page lags behind.

A page marks such a part with `<!-- generated: NAME -->` and `<!-- end -->`; figures are written whole.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "results"
FAMILIES = ("loop", "ram", "chain", "recall")


def flags() -> str:
    """All flags of patches/server_args.py.  Imports SGLang."""
    from zipage_patches.server_args import ZipageServerArgs

    from zipage_sglang.config import ZipageConfig

    defaults = {"lambda" if f.name == "lam" else f.name: f.default for f in dataclasses.fields(ZipageConfig)}
    lines = ["| flag | default | |", "| --- | --- | --- |"]
    for name, annotation in ZipageServerArgs.__annotations__.items():
        if "zipage" not in name:
            continue
        argument = annotation.__metadata__[0]
        text = argument if isinstance(argument, str) else argument.help
        default = "off" if name == "enable_zipage" else defaults.get(name.removeprefix("zipage_"), "none")
        text = re.sub(r" Default [^ ]+\.$", "", text)
        choices = getattr(argument, "choices", None)
        if choices and not all(f"'{c}'" in text for c in choices):
            text += f" One of {', '.join(choices)}."
        lines.append(f"| `--{name.replace('_', '-')}` | `{default}` | {text} |")
    return "\n".join(lines)


def refusals() -> str:
    """The flags and variables of patches/refusals.py."""
    from zipage_patches import refusals as table

    lines = ["| flag | accepted | why not otherwise |", "| --- | --- | --- |"]
    for field, accepted, why in table.FLAGS:
        shown = ", ".join("unset" if value in (None, False) else f"`{value}`" for value in accepted)
        lines.append(f"| `--{field.replace('_', '-')}` | {shown} | {why} |")
    lines += [f"| `{name}` (environment) | unset | {why} |" for name, why in table.ENVIRONMENT]
    backends = ", ".join(f"`{b}`" for b in table.BACKENDS)
    lines.append(f"| `--attention-backend` | {backends} | others were not tested with rows in mixed token order |")
    return "\n".join(lines)


def throughput() -> str:
    """Second half of each run, both modes saturated."""
    lines = ["| file | mode | output tok/s | whole run | running | pool used | step ms | retractions |", "| --- " * 8 + "|"]
    for path in sorted(RESULTS.glob("throughput-*.json")):
        for mode, s in json.loads(path.read_text())["summary"].items():
            lines.append(f"| `{path.name}` | {mode} | {s['rate']:,.0f} | {s['rate_whole_run']:,.0f} | {s['running']:.0f} | "
                         f"{s['usage']:.2f} | {s['step_ms']:.1f} | {s['retracted']} |")
    return "\n".join(lines)


def accuracy() -> str:
    """pass@1 of the reasoner by policy and budget, all files of accuracy-h200, and today's default, of the curves; both figures
    where two runs differ."""
    rows: dict[tuple, dict[str, list[str]]] = {}
    for path in sorted((RESULTS / "accuracy-h200").glob("*.json")):
        data = json.loads(path.read_text())
        knobs = path.name.split("-")[0]
        for cell in data["cells"]:
            budget, policy = cell["budget"], cell["policy"]
            if policy == "zipage":
                recency = data["options"].get("recency")
                redundancy = data["options"].get("redundancy") or "lightning"
                # Half of the budget was always the latest tokens then, and before all windows scored, one did.
                default = "zipage, one window, r = 0.5" if "one-window" in path.name else "zipage, r = 0.5"
                policy = default if recency is None else f"zipage, r = 0, one window, {redundancy}"
            figures = rows.setdefault((knobs, budget or 0, policy), {}).setdefault(cell["family"], [])
            if (figure := f"{100 * cell['pass_at_1']:.0f}") not in figures:
                figures.append(figure)
    for point in json.loads((RESULTS / "curves-reasoner.json").read_text())["points"]:
        if point["policy"] == "zipage" and point["budget"] in (512, 1024) and point["panel"] in FAMILIES:
            rows.setdefault(("default", point["budget"], "zipage, default"), {})[point["panel"]] = [f"{point['value']:.0f}"]
    lines = ["| tasks | K | policy | " + " | ".join(FAMILIES) + " |", "| --- " * 7 + "|"]
    for (knobs, budget, policy), cells in sorted(rows.items()):
        values = " | ".join(" and ".join(cells.get(family, [])) for family in FAMILIES)
        lines.append(f"| {knobs} | {budget or 'all'} | {policy} | {values} |")
    return "\n".join(lines)


PARTS = {"flags": ("flags.md", flags), "refusals": ("limits.md", refusals), "throughput": ("tuning.md", throughput),
         "accuracy": ("tuning.md", accuracy)}


def part(name: str) -> str:
    """What the page says now."""
    page, _ = PARTS[name]
    found = re.search(rf"<!-- generated: {name} -->\n(.*?)\n<!-- end -->", (DOCS / page).read_text(), re.DOTALL)
    if found is None:
        raise ValueError(f"docs/{page} has no part '{name}'")
    return found[1]


def row_figure() -> str:
    """SVG: one head's row before and after a compression, K = 8 and b = 4: evicted tokens leave holes, survivors fill them."""
    evicted, prompt, kept, total = {2, 4, 7}, 3, 8, 12
    survivors = [i for i in range(total) if i not in evicted | {9}]
    holes = sorted(i for i in evicted if i < kept)
    tail = [i for i in survivors if i >= kept]
    moves = dict(zip(tail, holes))
    after = {target: source for source, target in moves.items()} | {i: i for i in survivors if i < kept}
    size, left = 40, 110
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + size * (prompt + total) + 20} 190" '
           'font-family="sans-serif" font-size="13">']

    def cell(column: int, y: int, text: str, fill: str, dashed: bool = False):
        x = left + column * size
        stroke = ' stroke-dasharray="3 3"' if dashed else ""
        out.append(f'<rect x="{x}" y="{y}" width="{size - 4}" height="30" fill="{fill}" stroke="#555"{stroke}/>')
        out.append(f'<text x="{x + size / 2 - 2}" y="{y + 20}" text-anchor="middle">{text}</text>')

    for y, label in ((30, "before"), (130, "after")):
        out.append(f'<text x="10" y="{y + 20}">{label}</text>')
        for i in range(prompt):
            cell(i, y, f"p{i}", "#cfd8dc")
    for i in range(total):
        cell(prompt + i, 30, str(i), "#ffccbc" if i not in survivors else "#c8e6c9")
        source = after.get(i)
        cell(prompt + i, 130, "" if source is None else str(source), "none" if source is None else "#c8e6c9", source is None)
    for source, target in moves.items():
        x1, x2 = (left + (prompt + i) * size + size / 2 - 2 for i in (source, target))
        out.append(f'<path d="M {x1} 62 C {x1} 100, {x2} 90, {x2} 126" fill="none" stroke="#33691e" stroke-width="1.5"/>')
    out.append(f'<text x="{left}" y="18">prompt</text>')
    out.append(f'<text x="{left + prompt * size}" y="18">K + b own tokens (red: evicted)</text>')
    out.append(f'<text x="{left + (prompt + kept) * size}" y="180">pages given back</text></svg>')
    return "\n".join(out) + "\n"


FIGURES = {"figures/row.svg": row_figure}


def main():
    for name, (page, make) in PARTS.items():
        path = DOCS / page
        path.write_text(path.read_text().replace(part(name), make()))
    for name, draw in FIGURES.items():
        (DOCS / name).write_text(draw())


if __name__ == "__main__":
    main()
