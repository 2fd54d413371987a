"""One short report, from the command to the page; `test_report_run.py` (full) checks every number and calls it again."""

import json
import subprocess
import sys

import pytest
from harness import ROOT, environment
from report_checks import check_pages

pytest.importorskip("matplotlib")
# Rates are for the modes that are compared first, `full` and `zipage`: of these two, one.  So each server has to start once.
COMPRESSED, FULL = MODES = ["zipage", "full:radix=off"]
PAIR = "amc23-all"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report") / "out"
    command = [sys.executable, "-m", "benchmarks.report", "--size", "tiny", "--modes", *MODES, "--workloads", "amc23", "--out", str(folder)]
    call = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=600)
    assert call.returncode == 0, call.stdout[-3000:] + call.stderr[-2000:]
    assert "0 of 4 units are done" in call.stdout
    return folder


@pytest.fixture(scope="module")
def report(out):
    return json.loads((out / "report.json").read_text())


@pytest.mark.once
@pytest.mark.xdist_group("report")
def test_units_are_whole(report):
    units = {(r["kind"], r["mode"]): r for r in report["records"]}
    assert set(units) == {("operations", None), *(("offline", mode) for mode in MODES), ("online", COMPRESSED)}
    bounded, full, online = units["offline", COMPRESSED], units["offline", FULL], units["online", COMPRESSED]
    for record in (bounded, full):
        load = record["load"]
        assert record["whole"] and not record["partial"] and record["finished"] == load["requests"] == 25
        assert record["output_tokens"] == load["output_tokens"] and record["rate"] > 0 and record["decode_steps"] > 50
    assert bounded["load"] == full["load"], "modes are compared on the same requests"
    # Blocks of 16; a first compression comes up to three tokens early.
    assert bounded["compressions"] > 50 and "compressions" not in full
    assert 0 <= 16 * bounded["compressions"] - bounded["evicted_tokens"] <= 3 * 25
    assert online["completed"] == online["load"]["requests"] == 12 and online["total_output_tokens"] == online["load"]["output_tokens"]
    assert 0 < min(o["ms"] for o in units["operations", None]["operations"])


@pytest.mark.once
@pytest.mark.xdist_group("report")
def test_tables_and_figures_show_it(out, report):
    check_pages(out)
    tables, figures = report["tables"], report["figures"]
    assert {"workloads", "ranges", "compression", "operations", "online", f"throughput-{PAIR}", f"latency-{PAIR}"} <= set(tables)
    assert {"throughput", f"course-{PAIR}", f"ranges-{PAIR}", f"latency-{PAIR}", "compression", "operations", "online", "lengths"} <= set(figures)
    assert [row["mode"] for row in tables[f"throughput-{PAIR}"]] == MODES and [row["mode"] for row in tables["online"]] == [COMPRESSED]
    assert all(row["rate"] > 0 for row in tables[f"throughput-{PAIR}"]) and 0 < tables["online"][0]["goodput"] < 20
