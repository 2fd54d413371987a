"""The report's pages and figures from records, without an engine: a few requests and a log, written as a run writes
them."""

import dataclasses
import json
import sys

import pytest
from report_checks import check_pages

from benchmarks import provenance, timeline
from benchmarks.report import __main__ as main
from benchmarks.report import offline, online, options, plan, render
from benchmarks.report.arrivals import arrange
from benchmarks.report.driving import Course, Sent
from benchmarks.report.state import State

STEP = (
    "[t] Decode batch, #running-req: {n}, #token: {held}, token usage: {usage:.2f}, gen throughput (token/s): {rate:.2f}, "
    "#queue-req: {queue}\n"
)
LOG = "".join(
    STEP.format(n=n, held=40 * n, usage=n / 30, rate=n / (0.01 + 0.001 * n), queue=30 - n) for n in [5, *range(1, 25)] * 4
)
OPERATIONS = dict(
    partial=False,
    client_command="none",
    failures=[],
    shape="no shape",
    whole=[dict(requests=1, ms=3.5)],
    operations=[dict(requests=1, operation="select", ms=1.0), dict(requests=1, operation="compact", ms=2.0)],
)


class Servers:
    started = 12.0


def counters(n, mode):
    """The plugin's, after n compressions."""
    return (
        dict(
            steps=10 * n,
            compressions=n,
            evicted_tokens=32 * n,
            retractions=0,
            compress_seconds=n / 10,
            host_seconds=n / 5,
            gpu_seconds=n / 20,
            buffer_bytes=2**20,
        )
        if mode.config
        else None
    )


def write(state, opts, unit, share=1.0):
    """`share` of every request's tokens are answered."""
    if unit.kind == "operations":
        record, rows = dict(OPERATIONS), {}
    elif unit.kind == "online":
        load = plan.load_of(opts, unit)
        n, tokens = len(load.requests), [r.output for r in load.requests]
        result = dict.fromkeys(online.FIGURES, 4.0) | dict(
            completed=n,
            errors=[""] * n,
            input_lens=[9] * n,
            output_lens=tokens,
            ttfts=[0.1] * n,
            itls=[[0.05] * (t - 1) for t in tokens],
        )
        record, rows = online.summarize(result, load)
        record, rows = record | dict(client_command="none", retractions=0), dict(requests=rows)
    else:
        load, mode = arrange(plan.load_of(opts, unit), unit.arrivals), opts.modes[unit.mode]
        tokens = [int(share * r.output) for r in load.requests]
        requests = [
            Sent(r.question, 8, r.output, r.arrival, r.arrival + 1, r.arrival + 1 + t / 20, t)
            for r, t in zip(load.requests, tokens)
        ]
        samples = [dict(time=5.0 * n, zipage=counters(5 * n, mode)) for n in range(3)]
        course, steps = Course(requests, 30.0, samples, interrupted=share < 1), timeline.read_steps(LOG)
        record = offline.summarize(opts, mode, load, course, steps, LOG)
        rows = dict(steps=steps, requests=[offline._request_row(n, r) for n, r in enumerate(requests)])
    state.write(unit.name, main._complete(opts, unit, Servers, record, provenance.describe()), **rows)


@pytest.fixture
def opts(tmp_path):
    more = ["--modes", "full", "zipage", "zipage:when=pressure", "--rates", "2", "6"]
    return options.parse(["--size", "tiny", "--out", str(tmp_path), *more], "")


def test_everything(opts):
    pytest.importorskip("matplotlib")
    state = State(opts.out, opts.chosen)
    units = plan.make_units(opts)
    for unit in units:
        write(state, opts, unit)
    html, _ = render.write(state, opts)
    check_pages(opts.out)
    report = json.loads((opts.out / "report.json").read_text())
    assert {r["unit"] for r in report["records"]} == {u.name for u in units} and "cut short" not in html.read_text().lower()
    full, zipage, _ = report["tables"]["throughput-amc23-all"]
    assert (full["mode"], zipage["mode"], full["rate_over_full"]) == ("full", "zipage", 1.0)
    assert zipage["rate"] * 30 == pytest.approx(zipage["output_tokens"])
    for row in report["tables"]["compression"]:
        assert row["compression_seconds"] + row["other_seconds"] == pytest.approx(30)
        assert (row["compressions"], row["device_ms"], row["compression_share"]) == (
            10,
            pytest.approx(50),
            pytest.approx(0.5 / 30),
        )
    assert [r["share"] for r in report["tables"]["operations"]] == [pytest.approx(1 / 3), pytest.approx(2 / 3), None]


def test_what_was_interrupted_is_marked(opts):
    state = State(opts.out, opts.chosen)
    unit = next(u for u in plan.make_units(opts) if u.kind == "offline")
    write(state, opts, unit, share=0.5)
    html, markdown = render.write(state, opts)
    check_pages(opts.out)
    assert f"Cut short, and not to be compared: {unit.name}" in html.read_text() and "cut short |" in markdown.read_text()
    assert not state.done(unit.name)


def test_without_matplotlib_there_are_numbers(opts, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    state = State(opts.out, opts.chosen)
    for unit in plan.make_units(opts)[:3]:
        write(state, opts, unit)
    html, markdown = render.write(state, opts)
    check_pages(opts.out)
    assert "no figures were drawn" in html.read_text() and "no figures were drawn" in markdown.read_text()


def test_nothing_measured_is_no_report(opts):
    assert render.write(State(opts.out, opts.chosen), opts) == [] and not (opts.out / "report.html").exists()


def test_a_page_escapes_what_it_shows(opts):
    state = State(opts.out, opts.chosen)
    unit = plan.Unit("operations", 0, 1)
    record = main._complete(opts, unit, Servers, dict(OPERATIONS, shape="a <b> & | c"), provenance.describe())
    state.write(unit.name, record)
    html, _ = render.write(state, dataclasses.replace(opts, name="<tiny>"))
    check_pages(opts.out)
    assert "a &lt;b&gt; &amp; | c" in html.read_text() and "&lt;tiny&gt;" in html.read_text()
