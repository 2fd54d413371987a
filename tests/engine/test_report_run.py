"""The report against real servers: what it says must add up, and stay what it is when it is called again."""

import csv
import gzip
import itertools
import json
import signal
import subprocess
import sys
import threading

import pytest
from harness import ROOT, environment
from report_checks import check_pages

from benchmarks.report.arrivals import arrange
from benchmarks.report.driving import drive
from benchmarks.report.workloads import WORKLOADS, make_load

pytest.importorskip("matplotlib")
MODES = ["full", "zipage"]
# Two servers, one after the other: minutes.  tests/unit/test_report*.py check the same pages on written results.
pytestmark = pytest.mark.full


def call(out, *arguments):
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "benchmarks.report",
            "--size",
            "tiny",
            "--modes",
            *MODES,
            "--workloads",
            "amc23",
            "--rates",
            "6",
            "--out",
            str(out),
            *arguments,
        ],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
    )


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """A first call whose time is enough for the operations only, and a second one that goes on."""
    folder = tmp_path_factory.mktemp("report") / "out"
    first = call(folder, "--limit", "55")
    assert first.returncode == 3, first.stdout[-2000:] + first.stderr[-2000:]
    assert [p.stem for p in (folder / "raw").glob("*.json")] == ["operations"]
    assert "Operations of a compression" in (folder / "report.md").read_text()
    second = call(folder)
    assert second.returncode == 0, second.stdout[-3000:] + second.stderr[-2000:]
    assert "1 of 5 units are done" in second.stdout
    return folder


@pytest.fixture(scope="module")
def report(out):
    return json.loads((out / "report.json").read_text())


def unit(report, kind, mode):
    (record,) = [r for r in report["records"] if (r["kind"], r["mode"]) == (kind, mode)]
    return record


def rows(out, name, kind):
    with gzip.open(out / "raw" / f"{name}.{kind}.csv.gz", "rt", newline="") as f:
        return [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(f)]


@pytest.mark.xdist_group("report")
@pytest.mark.parametrize("mode", MODES)
def test_tokens_and_seconds_add_up(out, report, mode):
    record = unit(report, "offline", mode)
    requests, steps = rows(out, record["unit"], "requests"), rows(out, record["unit"], "steps")
    assert record["whole"] and not record["partial"] and record["finished"] == len(requests) == record["load"]["requests"]
    assert record["rate"] * record["seconds"] == pytest.approx(record["output_tokens"])
    assert (
        record["output_tokens"]
        == sum(r["tokens"] for r in requests)
        == sum(r["wanted"] for r in requests)
        == record["load"]["output_tokens"]
    )
    assert all(0 <= r["sent"] < r["first"] <= r["last"] <= record["seconds"] + 1e-3 for r in requests)
    # The log counts what the clients counted, but for the first token of each prefill, the first decode step, and the step
    # that overlap scheduling has launched when a request ends.
    assert record["decode_tokens"] == sum(s["running"] for s in steps) and record["decode_steps"] == len(steps)
    prefilled = len(requests) + record["retractions"]
    assert abs(record["output_tokens"] - record["decode_tokens"]) <= prefilled + steps[0]["running"] + 1
    assert (
        record["decode_seconds"] == pytest.approx(sum(s["step_ms"] for s in steps) / 1000)
        and record["decode_seconds"] <= record["seconds"] + 1
    )
    assert record["running_peak"] == max(s["running"] for s in steps) and max(s["usage"] for s in steps) <= 1


@pytest.mark.xdist_group("report")
def test_modes_differ_in_compression_alone(out, report):
    full, zipage = (unit(report, "offline", mode) for mode in MODES)
    wanted = lambda record: [(r["question"], r["wanted"]) for r in rows(out, record["unit"], "requests")]
    assert wanted(full) == wanted(zipage)
    assert zipage["server_flags"].split() == full["server_flags"].split() + [
        "--enable-zipage",
        "--zipage-budget",
        "32",
        "--zipage-block",
        "16",
    ]
    # A first compression comes up to a quarter of a block early, and evicts so much less.
    early, requests = 16 // 4 - 1, len(wanted(zipage))
    assert 16 * zipage["compressions"] - early * requests <= zipage["evicted_tokens"] <= 16 * zipage["compressions"]
    # A request of n > K + b tokens is compressed before the step that would feed token K + b, and every b steps from there.
    least, most = (sum((n - 49 + e) // 16 + 1 for _, n in wanted(zipage) if n > 48 - e) for e in (0, early))
    assert zipage["compressions"] >= least > 0 and (zipage["retractions"] or zipage["compressions"] <= most)
    assert "compressions" not in full and (zipage["compress_seconds"] or 0) <= zipage["seconds"]
    assert max(s["usage"] for s in rows(out, full["unit"], "steps")) > 0.8  # the pool is what limits full KV
    for record in report["records"]:
        origin = record["origin"]
        assert origin["command"].startswith("python -m benchmarks.report --size tiny") and origin["device"].startswith(
            "CPU"
        )
        assert record["unit"] == "operations" or "--max-total-tokens 600" in record["server_flags"]


@pytest.mark.xdist_group("report")
def test_ranges_hold_every_step_once(report):
    for mode in MODES:
        record, mine = unit(report, "offline", mode), [r for r in report["tables"]["ranges"] if r["mode"] == mode]
        assert sum(r["share"] for r in mine) == pytest.approx(1)
        assert (sum(r["steps"] for r in mine), sum(r["tokens"] for r in mine)) == (
            record["decode_steps"],
            record["decode_tokens"],
        )
        assert sum(r["seconds"] for r in mine) == pytest.approx(record["decode_seconds"])
        assert all(r["low"] * r["steps"] <= r["tokens"] <= r["high"] * r["steps"] for r in mine)
        assert all(a["high"] + 1 == b["low"] for a, b in itertools.pairwise(mine))


@pytest.mark.xdist_group("report")
@pytest.mark.parametrize("mode", MODES)
def test_online_figures_add_up(out, report, mode):
    (row,) = [r for r in report["tables"]["online"] if r["mode"] == mode]
    record = unit(report, "online", mode)
    requests = rows(out, record["unit"], "requests")
    assert record["completed"] == len(requests) == record["load"]["requests"] == 12
    assert record["output_throughput"] * record["duration"] == pytest.approx(record["total_output_tokens"])
    assert record["total_output_tokens"] == sum(r["tokens"] for r in requests) == record["load"]["output_tokens"]
    assert sum(r["prompt_tokens"] for r in requests) == record["total_input_tokens"] == 12 * record["load"]["prompt_mean"]
    good = sum(r["tpot_ms"] <= 100 for r in requests)
    assert row["goodput"] == pytest.approx(good / record["duration"]) and row["good_share"] == pytest.approx(good / 12)
    assert row["goodput"] <= row["request_throughput"] + 1e-9
    assert all(r["ttft_ms"] > 0 and r["tpot_ms"] > 0 for r in requests)
    assert f"--request-rate {record['request_rate']:g} " in record["client_command"]


@pytest.mark.xdist_group("report")
def test_pages_show_what_the_files_hold(out, report):
    check_pages(out)
    pair = "amc23-all"
    assert set(report["tables"]) == {
        "workloads",
        "ranges",
        "compression",
        "operations",
        "online",
        "published",
        f"throughput-{pair}",
        f"latency-{pair}",
    }
    assert set(report["figures"]) == {
        "throughput",
        f"course-{pair}",
        f"ranges-{pair}",
        f"latency-{pair}",
        "compression",
        "operations",
        "online",
        "lengths",
    }


@pytest.mark.xdist_group("report")
def test_a_call_with_nothing_left_changes_no_number(out, report):
    before = {p: p.stat().st_mtime_ns for p in (out / "raw").iterdir()}
    again = call(out)
    assert again.returncode == 0 and "5 of 5 units are done; none is left" in again.stdout
    assert {p: p.stat().st_mtime_ns for p in (out / "raw").iterdir()} == before
    assert json.loads((out / "report.json").read_text()) == report
    other = call(out, "--pool", "9999", "--render")
    assert other.returncode == 1 and "pool was 600, is 9999" in other.stderr


@pytest.mark.xdist_group("server")
def test_time_up_and_ctrl_c_keep_what_there_is(url):
    """Long requests, cut off by the clock and then by Ctrl-C; neither leaves anything running in the server."""
    load = arrange(
        make_load(WORKLOADS["amc23"].scaled(0.004), range(3, 260), length_scale=1 / 4, longest=4000), "bursts:3:0.5"
    )
    cut = drive(url, load, 4, stream_interval=4, probes=1)
    assert not cut.interrupted and 4 <= cut.seconds < 8 and 0 < cut.output_tokens < load.output_tokens
    assert sum(bool(r.times) for r in cut.requests) == 1 and all(len(r.times) in (0, r.tokens) for r in cut.requests)
    assert cut.samples[0]["zipage"]["steps"] < cut.samples[-1]["zipage"]["steps"]
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # as on a terminal
    timer = threading.Timer(2, signal.raise_signal, [signal.SIGINT])
    timer.start()
    try:
        stopped = drive(url, load, 60, stream_interval=4, probes=1)
    finally:
        timer.cancel()
        signal.signal(signal.SIGINT, before)
    assert stopped.interrupted and stopped.seconds < 10 and 0 < stopped.output_tokens < load.output_tokens
    short = make_load(WORKLOADS["amc23"].scaled(0.004), range(3, 260), length_scale=1 / 512)
    whole = drive(url, short, 60, stream_interval=4, probes=0)
    assert [r.tokens for r in whole.requests] == [r.output for r in short.requests] and whole.seconds == max(
        r.last for r in whole.requests
    )
