"""What turns the logs of speed runs into figures: steps, percentiles, intervals, modes, ceilings."""

import json

import pytest
from scipy import stats as scipy_stats

from benchmarks import measures, modes, plots, throughput, timeline
from zipage_sglang.config import ZipageConfig
from zipage_sglang.sizing import ceiling

# Lines of a CPU run, decode_log_interval 1, overlap scheduling on (the retraction is of another one).
LOG = """\
[2026-11-29 21:58:40] zipage on: budget 64, block 32, policy zipage; a request holds at most its prompt and 97 private tokens
[2026-11-29 21:58:40] Prefill batch, #new-seq: 9, #new-token: 360, #cached-token: 0, token usage: 0.03, #running-req: 3, #queue-req: 36
[2026-11-29 21:58:41] Decode batch, #running-req: 24, #token: 602, token usage: 0.20, cpu graph: False, gen throughput (token/s): 31.51, #queue-req: 24
[2026-11-29 21:58:41] Decode batch, #running-req: 24, #token: 626, token usage: 0.21, cpu graph: False, gen throughput (token/s): 361.73, #queue-req: 24
[2026-11-29 21:58:41] Decode batch, #running-req: 23, #token: 842, token usage: 0.28, cpu graph: False, gen throughput (token/s): 160.34, #queue-req: 18
[2026-11-29 21:58:41] Prefill batch, #new-seq: 6, #new-token: 240, #cached-token: 0, token usage: 0.22, #running-req: 23, #queue-req: 18
[2026-11-29 21:58:41] Decode batch, #running-req: 29, #token: 700, token usage: 0.23, cpu graph: False, gen throughput (token/s): 211.30, #queue-req: 18
[2026-11-29 21:58:41] Decode batch, #running-req: 29, #token: 705, token usage: 0.23, cpu graph: False, gen throughput (token/s): 521.60, #queue-req: 18
[2026-11-29 21:58:41] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 100, #new_token_ratio: 0.7 -> 0.9
[2026-11-29 21:58:41] Decode batch, #running-req: 29, #token: 708, token usage: 0.24, cpu graph: False, gen throughput (token/s): 496.02, #queue-req: 18
"""


def test_steps_of_a_log():
    steps = timeline.read_steps(LOG)
    assert [s["running"] for s in steps] == [24, 23, 29, 29, 29]  # the first decode line only starts the clock
    assert [s["prefill"] for s in steps] == [0, 1, 1, 0, 0]
    assert [s["step_ms"] for s in steps] == pytest.approx([66.348, 143.445, 137.246, 55.598, 58.465], abs=2e-3)
    assert steps[-1]["time"] == pytest.approx(0.461, abs=1e-3)
    assert list(steps[0]) == timeline.FIELDS
    assert (steps[1]["resident"], steps[1]["usage"], steps[1]["waiting"]) == (842, 0.28, 18)
    assert timeline.retractions(LOG) == 2
    assert timeline.read_steps("nothing of the kind") == []


def test_longer_intervals_log_the_mean_step():
    (_, step, *_), (_, long, *_) = timeline.read_steps(LOG), timeline.read_steps(LOG, interval=20)
    assert long["step_ms"] == step["step_ms"]
    assert long["time"] == pytest.approx(20 * step["time"], abs=0.02)


def test_percentiles_leave_prefills_out():
    times = timeline.step_times(timeline.read_steps(LOG))
    assert (times["steps_counted"], times["steps"]) == (3, 5)
    assert times["step_p50_ms"] == pytest.approx(58.465, abs=2e-3)
    assert times["step_p99_over_p50"] == pytest.approx(1.132, abs=1e-3)
    assert timeline.step_times([])["step_p99_ms"] is None


def test_means_weigh_time():
    steps = [dict(step_ms=10.0, running=10, rate=1000.0, usage=0.5, resident=100),
             dict(step_ms=30.0, running=20, rate=20 / 0.03, usage=1.0, resident=300)]
    mean = timeline.means(steps)
    assert mean["rate"] == pytest.approx(30 / 0.04)
    assert (mean["running"], mean["usage"], mean["resident"]) == pytest.approx((17.5, 0.875, 250))


def test_half_and_thinning():
    steps = [dict(time=float(t)) for t in range(1, 11)]
    assert [s["time"] for s in timeline.second_half(steps)] == [6, 7, 8, 9, 10]
    assert [len(timeline.thin([0] * n, most=4)) for n in (0, 3, 4, 5, 9)] == [0, 3, 4, 3, 3]


def test_percentile():
    assert [measures.percentile([3, 1, 2, 4], q) for q in (0, 50, 99, 100)] == pytest.approx([1, 2.5, 3.97, 4])
    assert measures.percentile([], 50) is None


@pytest.mark.parametrize("n", [2, 6, 31])
def test_mean_interval(n):
    values = [1.0 + 0.01 * (i % 5) for i in range(n)]
    mean, low, high = measures.mean_interval(values)
    assert (low, high) == pytest.approx(scipy_stats.t.interval(0.95, n - 1, loc=mean, scale=scipy_stats.sem(values)), rel=1e-4)


def test_modes():
    full, small, plain = modes.parse_modes(["full,zipage:budget=1024,lambda=0.5,prefix=compress", "zipage"], budget=2048, block=256)
    assert (full.text, full.config, full.engine) == ("full", None, {})
    assert small.text == "zipage:budget=1024,lambda=0.5,prefix=compress"
    assert small.engine == dict(enable_zipage=True, zipage_budget=1024, zipage_block=256, zipage_lambda=0.5, zipage_prefix="compress")
    assert small.config == ZipageConfig(budget=1024, block=256, lam=0.5, prefix="compress")
    assert plain.config == ZipageConfig(budget=2048, block=256)
    assert modes.parse_modes(["zipage:admit_every=0"])[0].engine == dict(enable_zipage=True, zipage_admit_every=0)
    assert modes.parse_modes(["zipage:preset=paper"])[0].config == ZipageConfig(recency=0.0, passes=1, spread=1, admit_every=0)


@pytest.mark.parametrize("text", ["fool", "full:budget=1", "zipage:bucket=3", "zipage:budget", "zipage:budget=x", "zipage:block=0"])
def test_modes_that_make_no_sense(text):
    with pytest.raises(ValueError):
        modes.parse_modes([text])


def _held_step_by_step(groups, prompt, config):
    """Mean KV tokens of a running request, counted one decode step at a time; requests that share a prompt start together."""
    held = 0
    for group in groups:
        rows = [prompt] * len(group)
        evicts = config is not None and config.start(prompt) == 0
        for t in range(max(group)):
            alive = [i for i, length in enumerate(group) if t < length]
            first = config is None or (t < max(config.cap - prompt, config.window) if evicts else True)
            for i in alive:
                start = 0 if evicts else prompt
                if config and rows[i] >= start + config.cap and (not evicts or not first):
                    rows[i] = start + config.budget
                held += rows[i] - (prompt if first else 0)
                rows[i] += 1
            held += prompt if first else 0
    return held / sum(map(sum, groups))


@pytest.mark.parametrize("config", [None, ZipageConfig(budget=512, block=64), ZipageConfig(budget=512, block=64, prefix="compress")])
@pytest.mark.parametrize("prompt", [100, 2000])
def test_held_is_what_counting_gives(config, prompt):
    groups = [[3000, 200, 900, 5000], [50, 1700]]
    assert ceiling.held(groups, prompt, config) == pytest.approx(_held_step_by_step(groups, prompt, config), rel=0.01)


def test_ceiling():
    groups = [[1000, 3000]]
    config = ZipageConfig(budget=512, block=64)
    assert ceiling.promised(groups, 400, config) == 400 * 3000 / 4000 + 576
    assert ceiling.running(300.0, pool=3000, requests=99) == 10
    assert ceiling.running(300.0, pool=3000, requests=99, limit=8) == 8
    assert ceiling.running(300.0, pool=3000, requests=5) == 5


def test_load_is_of_the_asked_size():
    args = throughput._arguments(["--requests", "70", "--samples", "32", "--prompt", "9", "--cap", "100", "--mean", "90"])
    prompts, groups = throughput.make_load(args)
    assert [len(g) for g in groups] == [32, 32, 6] and [len(p) for p in prompts] == [9] * 3
    assert all(16 <= length <= 100 for group in groups for length in group)


def test_client_and_plugin_figures():
    block = lambda steps, host, gpu: dict(steps=steps, host_seconds=host, gpu_seconds=gpu, compressions=steps // 10,
                                          compress_seconds=host / 5)
    result = dict(seconds=10.0, arrivals=[[1.0, 5.0, 5.01, 5.03], []], samples=[
        dict(time=0.0, zipage=block(0, 0.0, 0.0)), dict(time=5.0, zipage=block(100, 1.0, 0.5)), dict(time=9.0, zipage=block(300, 1.01, 0.58))])
    assert throughput.token_gaps(result) == pytest.approx(dict(gap_p50_ms=15.0, gap_p99_ms=19.9, gap_max_ms=20.0))
    assert throughput.plugin_cost(result) == pytest.approx(
        dict(host_us_per_step=40.0, host_us_per_compression=100.0, compression_share=0.02))
    silent = result | dict(arrivals=[], samples=[dict(time=0.0, zipage={}), dict(time=9.0, zipage={})])
    assert set(throughput.plugin_cost(silent).values()) == {None}
    assert throughput.token_gaps(silent)["gap_p99_ms"] is None


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    steps = timeline.read_steps(LOG)
    rows = "\n".join(",".join(["full", *(str(s[f]) for f in timeline.FIELDS)]) for s in steps)
    (tmp_path / "x.csv").write_text(",".join(["mode", *timeline.FIELDS]) + "\n" + rows + "\n")
    (tmp_path / "x.json").write_text(json.dumps(dict(device="none", options=dict(model="m", pool=3000, prompt=40, mean=250))))
    plots.main([str(tmp_path / "x.json")])
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_smoothed_rates_keep_their_mean():
    rows = [dict(time=0.01, running=10, rate=1000.0), dict(time=0.04, running=20, rate=20 / 0.03)]
    assert plots.smooth(rows, "rate", bins=1) == ([0.02], [pytest.approx(30 / 0.04)])
