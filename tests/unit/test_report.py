"""The report's parts without an engine: lengths, workloads, arrivals, the plan, tables, state, references."""

import json
import types
import random
import statistics

import pytest

from benchmarks import modes
from benchmarks.report import __main__ as report
from benchmarks.report import arrivals, lengths, online, operations, options, plan, servers, tables
from benchmarks.report.state import OtherOptions, State
from benchmarks.report.workloads import WORKLOADS, make_load


def parse(*argv):
    return options.parse(["--size", "0.6b", *argv], "")


def test_workloads_have_the_papers_counts():
    counts = {name: (sum(n for n, _ in w.parts), w.samples, w.max_tokens) for name, w in WORKLOADS.items()}
    assert counts == dict(
        amc23=(40, 32, 16384),
        aime24=(30, 32, 32768),
        livecodebench=(400, 8, 16384),
        mixture=(1359, 4, 16384),
        longbench=(150, 4, 4096),
    )


@pytest.mark.parametrize("name", WORKLOADS)
def test_loads_are_of_the_asked_size_and_repeatable(name):
    workload = WORKLOADS[name].scaled(0.1)
    load = make_load(workload, range(5, 50), length_scale=0.25, longest=4096)
    assert load == make_load(workload, range(5, 50), length_scale=0.25, longest=4096)
    assert len(load.requests) == workload.requests == pytest.approx(0.1 * WORKLOADS[name].requests, rel=0.1)
    cap = min(round(WORKLOADS[name].max_tokens * 0.25), 4096 - 9)
    assert all(16 <= r.output <= cap for r in load.requests) and max(r.output for r in load.requests) > cap / 4
    assert all(8 <= len(p) < 4096 - cap for p in load.prompts)
    assert {i for p in load.prompts for i in p} <= set(range(5, 50))
    assert sum(map(len, load.groups())) == len(load.requests) and {len(g) for g in load.groups()} == {workload.samples}
    assert set(load.how) == {path for _, path in workload.parts}


def test_shrinking_is_even():
    half = WORKLOADS["mixture"].scaled(0.25)
    assert (half.parts, half.samples) == (((660, "gsm8k"), (20, "amc23")), 2)
    assert WORKLOADS["amc23"].scaled(1.0) == WORKLOADS["amc23"]
    assert WORKLOADS["amc23"].scaled(1e-9).requests == 1


def test_distributions():
    rng = random.Random(1)
    drawn = lambda d: [lengths.draw(d, rng) for _ in range(20000)]
    assert statistics.fmean(drawn({"lognormal": {"mean": 700, "sigma": 0.6}})) == pytest.approx(700, rel=0.03)
    values = drawn({"quantiles": [[0, 10], [0.5, 20], [1, 120]]})
    assert (min(values) >= 10, max(values) <= 120) == (True, True)
    assert statistics.median(values) == pytest.approx(20, rel=0.1) and statistics.fmean(values) == pytest.approx(
        42.5, rel=0.03
    )
    assert set(drawn({"samples": [3, 5]})) == {3.0, 5.0}


def test_a_trace_is_taken_as_it_is(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("question,prompt,output\na,100,1000\nb,30,2000\na,100,3000\n")
    load = make_load(WORKLOADS["amc23"].with_lengths(str(path)).scaled(0.004), range(9))
    assert [(len(load.prompts[r.question]), r.output) for r in load.requests] == [(100, 1000), (30, 2000), (100, 3000)] + [
        (100, 1000),
        (30, 2000),
        (100, 3000),
    ][: len(load.requests) - 3]
    assert len(load.prompts) == 2 and load.how == {"mine": "trace mine.csv of 3 requests"}


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"how": "x", "prompt": {"gauss": 1}, "output": {"samples": [1]}}',
        "nothing",
        '{"how": "x", "prompt": {"quantiles": [[0.5, 1], [0, 2]]}, "output": {"samples": [1]}}',
    ],
)
def test_files_of_lengths_that_make_no_sense(tmp_path, text):
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(lengths.LengthsError, match="mine.json"):
        lengths.read(path)
    with pytest.raises(lengths.LengthsError, match="there are aime24, amc23"):
        lengths.read("no-such-name")


def test_arrivals():
    times = arrivals.times("poisson:4", 20000)
    gaps = [b - a for a, b in zip(times, times[1:])]
    assert times[0] == 0 and statistics.fmean(gaps) == pytest.approx(0.25, rel=0.03) == pytest.approx(
        statistics.stdev(gaps), rel=0.03
    )
    assert arrivals.times("bursts:3:2.5", 7) == [0, 0, 0, 2.5, 2.5, 2.5, 5]
    assert arrivals.times("all", 2) == [0, 0]
    load = make_load(WORKLOADS["amc23"].scaled(0.01), range(9))
    arranged = arrivals.arrange(load, "poisson:1")
    same = lambda requests: sorted((r.question, r.output) for r in requests)
    assert same(arranged.requests) == same(load.requests) and arranged == arrivals.arrange(load, "poisson:1")
    assert [r.arrival for r in arranged.requests] == sorted(r.arrival for r in arranged.requests)


@pytest.mark.parametrize(
    "pattern", ["", "all:1", "poisson", "poisson:0", "poisson:x", "bursts:4", "bursts:0:1", "bursts:4:1:2", "rush"]
)
def test_arrivals_that_make_no_sense(pattern):
    with pytest.raises(ValueError, match="must be `all`"):
        arrivals.times(pattern, 3)


@pytest.mark.parametrize(
    "argv, says",
    [
        (["--scale", "2"], "--scale must be"),
        (["--workloads", "amc24"], "none of amc23"),
        (["--workloads", "amc23@rush"], "arrival pattern"),
        (["--modes", "fool"], "mode 'fool'"),
        (["--pool", "0"], "--pool must be positive"),
        (["--rates", "-1"], "--rates must be"),
        (["--lengths", "nowhere.csv"], "no file nowhere.csv"),
        (["--modes", "zipage:budget=8"], "--zipage-"),
    ],
)
def test_options_that_make_no_sense(argv, says, capsys):
    with pytest.raises(SystemExit):
        parse(*argv)
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_radix_off_is_an_engine_option():
    full, zipage = modes.parse_modes(["full:radix=off", "zipage:radix=off,budget=512"])
    assert (full.config, full.engine) == (None, dict(disable_radix_cache=True))
    assert (
        zipage.engine == dict(enable_zipage=True, disable_radix_cache=True, zipage_budget=512)
        and zipage.config.budget == 512
    )


def test_scale_fits_the_time():
    small = parse("--scale", "fit", "--unit-seconds", "60", "--workloads", "amc23", "aime24").size
    assert 0 < small.scale < 0.1
    loads = [make_load(WORKLOADS[name].scaled(small.scale), range(9)) for name in ("amc23", "aime24")]
    assert max(load.output_tokens for load in loads) == pytest.approx(60 * small.tokens_per_second, rel=0.35)


def test_the_first_call_compares_full_kv_with_zipage():
    opts = parse("--limit", "540")
    units = plan.make_units(opts)
    first, second, *_ = plan.slices(units, opts.size.start_seconds, 525)
    assert {("offline", "full"), ("offline", "zipage"), ("operations", None)} <= {(u.kind, u.mode) for u in first}
    done = [u for call in plan.slices(units, opts.size.start_seconds, 525) for u in call]
    assert sorted(u.name for u in done) == sorted(u.name for u in units) and len({u.name for u in units}) == len(units)
    for call in plan.slices(units, opts.size.start_seconds, 525):
        seconds, running = 0, None
        for unit in call:
            seconds += plan.cost(unit, running, opts.size.start_seconds)
            running = unit.mode
        assert seconds <= 525
    assert not plan.slices(units, 600, 540)[0][1:]  # only the operations need no server
    assert plan.next_unit(units, "zipage", 30, 10) is None


def test_a_server_that_is_up_is_used_first():
    units = [plan.Unit("offline", 2, 10, mode, "amc23") for mode in ("full", "zipage")] + [
        plan.Unit("offline", 0, 90, "full", "aime24")
    ]
    assert plan.next_unit(units, "zipage", 30, 1000).workload == "aime24"  # the lowest rank first
    assert plan.next_unit(units, "zipage", 30, 100).mode == "zipage"
    assert plan.next_unit(units, None, 30, 100).mode == "full"


def test_online_requests_have_prompts_of_their_own():
    opts = parse()
    (unit, *_) = [u for u in plan.make_units(opts) if u.kind == "online"]
    load = plan.load_of(opts, unit)
    assert len(load.prompts) == len(load.requests) == round(unit.request_rate * opts.size.online_seconds)
    assert max(r.output for r in load.requests) <= 16384 * opts.size.online_length


def test_state_keeps_what_is_complete(tmp_path):
    state = State(tmp_path, dict(size="tiny", rates=(1, 2)))
    state.write("a", dict(partial=True, n=1), steps=[dict(time=1.5, waiting=None)])
    assert not state.done("a") and state.rows("a", "steps") == [dict(time=1.5, waiting=None)]
    state.write("a", dict(partial=False, n=2), steps=[dict(time=2.5, waiting=3)])
    state.write("a", dict(partial=True, n=3), steps=[])
    again = State(tmp_path, dict(size="tiny", rates=(1, 2)))
    assert again.done("a") and again.records()["a"]["n"] == 2 and again.rows("a", "steps") == [dict(time=2.5, waiting=3)]
    again.forget("a")
    assert not again.done("a") and again.rows("a", "steps") == []
    with pytest.raises(OtherOptions, match="size was tiny, is 8b"):
        State(tmp_path, dict(size="8b", rates=(1, 2)))


def test_ranges_cover_every_concurrency_once():
    for most in (1, 7, 24, 131, 367, 5000):
        spans = tables.ranges(most)
        assert [n for low, high in spans for n in range(low, high + 1)][:most] == list(range(1, most + 1))
        assert 1 <= len(spans) <= 8 and spans[-1][0] <= most <= spans[-1][1]


def test_steps_are_told_apart_by_requests_running_and_prefills():
    steps = [dict(running=r, step_ms=ms, prefill=p) for r, ms, p in [(1, 5.0, 0), (2, 40.0, 1), (2, 10.0, 0), (2, 30.0, 1), (2, 12.0, 0)]]
    record = dict(kind="offline", workload="amc23", arrivals="all", mode="full", unit="u")
    rows = tables.range_table([record], types.SimpleNamespace(rows=lambda unit, what: steps)).raw()
    assert [(r["low"], r["steps"], r["prefill_share"], r["prefill_p50_ms"], r["step_p50_ms"]) for r in rows] == [
        (1, 1, 0.0, None, 5.0), (2, 4, 0.5, 35.0, 11.0)]  # fmt: skip
    assert rows[1]["tokens"] == 8 and rows[1]["seconds"] == pytest.approx(0.092)


def _result(**more):
    return dict(
        {name: 1.0 for name in online.FIGURES},
        completed=3,
        errors=["", "", ""],
        input_lens=[5, 6, 7],
        output_lens=[3, 1, 5],
        ttfts=[0.5, 0.2, 0.1],
        itls=[[0.01, 0.03], [], [0.05] * 4],
        **more,
    )


def test_goodput():
    load = make_load(WORKLOADS["amc23"].scaled(0.002), range(9))
    assert len(load.requests) == 3
    record, rows = online.summarize(_result(), load)
    assert [r["tpot_ms"] for r in rows] == [20.0, None, 50.0] and [r["ttft_ms"] for r in rows] == [500, 200, 100]
    assert online.goodput(rows, 4.0, 30) == dict(good=2, requests=3, goodput=0.5, good_share=2 / 3)
    assert record["partial"] is False and record["p90_tpot_ms"] == pytest.approx(47)
    with pytest.raises(online.RequestFailed, match="1 of 3 requests failed: gone"):
        online.summarize(_result() | dict(completed=2, errors=["", "gone", ""]), load)


def test_kernels_become_operations():
    path = __file__.replace("tests/unit/test_report.py", "benchmarks/results/kernels-h200.json")
    made = operations._of_kernels(json.loads(open(path).read()))
    assert {w["requests"]: round(w["ms"], 2) for w in made["whole"]} == {1: 0.29, 4: 0.24, 32: 0.25}
    one = {o["operation"]: o["ms"] for o in made["operations"] if o["requests"] == 1}
    assert sum(one.values()) == pytest.approx(0.286, abs=0.002) and one["select"] == pytest.approx(0.0263, abs=1e-3)
    assert {"redundancy and attention score", "compact", "other"} <= set(one)


def test_the_twins_times_add_up():
    """Loosely: the machine may be busy with something else."""
    made = operations.twins(budget=128, block=32)
    assert sum(o["ms"] for o in made["operations"]) == pytest.approx(made["whole"][0]["ms"], rel=0.8)
    assert all(o["ms"] > 0 for o in made["operations"]) and "160 candidates to 128" in made["shape"]


def test_the_page_rounds_as_it_says():
    assert [tables.cell(v, d) for v, d in ((1234.5678, 2), (None, 1), ("x", None), (0.5, 0))] == ["1,234.57", "-", "x", "0"]


def test_planning_starts_and_writes_nothing(tmp_path, capsys):
    assert report.main(["--size", "0.6b", "--plan", "--limit", "540", "--out", str(tmp_path / "out")]) == 0
    text = capsys.readouterr().out
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines()[2:] if "  " in line}
    assert (
        lines["operations"][:2] == ["1", "90"]
        and lines["offline-amc23-all-full"][0] == lines["offline-amc23-all-zipage"][0] == "1"
    )
    assert lines["offline-amc23-all-full"][2] == "1280" and "0 of 26 units are done" in text
    assert not (tmp_path / "out").exists()
    assert report.main(["--size", "0.6b", "--plan", "--limit", "120", "--out", str(tmp_path / "out")]) == 0
    assert "Do not fit into 120 s at all" in capsys.readouterr().out


def test_a_server_of_the_tiny_size_starts_once():
    """Starting one takes longer than what it is asked; on a GPU what is compared comes first."""
    starts = {}
    for size in ("tiny", "0.6b"):
        (units,) = plan.slices(plan.make_units(options.parse(["--size", size], "")), 20, None)
        modes = [unit.mode for unit in units if unit.mode]
        starts[size] = 1 + sum(a != b for a, b in zip(modes, modes[1:]))
        assert units[0].kind == "operations" and {u.kind for u in units} == {"operations", "offline", "online"}
    assert starts["tiny"] == 2 == len(set(options.parse(["--size", "tiny"], "").modes)) and starts["0.6b"] > 7


@pytest.mark.parametrize("size", ["0.6b", "tiny"])
def test_texts_have_the_lengths_of_the_load(size, tmp_path):
    """sglang.bench_serving tokenizes them with the server's tokenizer and takes the lengths from there."""
    from transformers import AutoTokenizer  # seconds to import

    opts = options.parse(["--size", size, "--out", str(tmp_path), "--online-seconds", "4"], "")
    unit = next(u for u in plan.make_units(opts) if u.kind == "online")
    load, tokenizer = plan.load_of(opts, unit), AutoTokenizer.from_pretrained(servers.model_path(opts))
    for request in load.requests:
        prompt, answer = (
            tokenizer.encode(turn["content"]) for turn in online._conversation(opts, load, request)["conversations"]
        )
        assert prompt == load.prompts[request.question] and len(answer) == request.output
    # Text grows with every token, or the client would not see that one came.
    texts = [tokenizer.decode(load.prompts[0][: n + 1]) for n in range(5)]
    assert all(len(a) < len(b) for a, b in zip(["", *texts], texts))
