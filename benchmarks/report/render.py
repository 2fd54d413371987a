"""Writes the report of what was measured: tables as CSV, figures, report.json, report.md, and report.html, which needs no
other file and no network."""

from __future__ import annotations

import base64
import json
from pathlib import Path

from benchmarks.report import tables
from benchmarks.report.options import Options
from benchmarks.report.state import State, csv_text, write_text

TEMPLATES = Path(__file__).parent / "templates"


def write(state: State, options: Options) -> list[Path]:
    """The files to look at; [] if nothing was measured."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # SGLang depends on it

    records = tables.order(state.records(), list(options.modes))
    if not records:
        return []
    all_tables = make_tables(records, state, options.size.tpot_ms)
    for table in all_tables:
        write_text(state.folder / "tables" / f"{table.name}.csv", csv_text(table.raw()))
    figures, missing = _figures(records, state, all_tables, options.size.tpot_ms)
    write_text(
        state.folder / "report.json",
        json.dumps(
            dict(
                options=options.chosen,
                records=records,
                tables={t.name: t.raw() for t in all_tables},
                figures=[f.name for f in figures],
            ),
            indent=1,
        )
        + "\n",
    )
    values = dict(
        options=options,
        records=records,
        tables=all_tables,
        figures=figures,
        missing=missing,
        workloads=_lengths(records),
        machines=_distinct(records, "device"),
        commits=_distinct(records, "git_commit"),
        packages=records[0]["origin"]["packages"],
        commands=_distinct(records, "command"),
        partial=[r["unit"] for r in records if r["partial"]],
        embed=_embed,
    )
    written = []
    for name in ("report.html", "report.md"):
        environment = Environment(
            loader=FileSystemLoader(TEMPLATES),
            autoescape=name.endswith("html"),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters["pipe"] = lambda text: str(text).replace("|", "\\|").replace("\n", " ")
        write_text(state.folder / name, environment.get_template(f"{name}.j2").render(values))
        written.append(state.folder / name)
    return written


def make_tables(records: list[dict], state: State, tpot_ms: float) -> list[tables.Table]:
    made = [tables.workload_table(records)]
    for pair in tables.pairs(records):
        made += [tables.throughput(records, pair), tables.latency(records, pair)]
    made += [
        tables.range_table(records, state),
        tables.compression(records),
        tables.operations_table(records),
        tables.online_table(records, state, tpot_ms),
        tables.published(),
    ]
    return [t for t in made if t is not None and t.rows]


def _figures(records, state: State, all_tables: list[tables.Table], tpot_ms: float):
    """(figures, why there are none or None)."""
    try:
        from benchmarks.report.figures import Album

        album = Album(state, records)
    except ImportError as error:
        return [], f"no figures were drawn ({error}); the same command with --render draws them where matplotlib is"
    ranges = next((t for t in all_tables if t.name == "ranges"), tables.Table("ranges", "", (), []))
    return album.draw_all(ranges, tpot_ms), None


def _lengths(records: list[dict]) -> dict[str, str]:
    return {name: how for r in records for name, how in r.get("lengths", {}).items()}


def _distinct(records: list[dict], key: str) -> list[str]:
    return list(dict.fromkeys(str(r["origin"][key]) for r in records))


def _embed(path: Path) -> str:
    """A figure as a data URL."""
    return "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
