"""The planner's arithmetic against buffers that exist, and against what was measured on an H200."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from zipage_sglang.config import ZipageConfig
from zipage_sglang.runtime import SUM_BYTES, ModelShape, Runtime, buffer_bytes
from zipage_sglang.sizing import hardware, report
from zipage_sglang.sizing.memory import what_fits
from zipage_sglang.sizing.planner import DoesNotFit, Setting, make_plan
from zipage_sglang.sizing.speed import REACHED, Weights, decode_step

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
EMBEDDING = {"qwen3-0.6b": 151936 * 1024 * 2, "qwen3-8b": 151936 * 4096 * 2}
# Parameters as Qwen publishes them: 0.6 B (tied: 0.596 B) and 8.19 B, in bf16.
WEIGHTS = {"qwen3-0.6b": Weights(0, 0, 596_049_920 * 2),
           "qwen3-8b": Weights(EMBEDDING["qwen3-8b"], 0, 8_190_735_360 * 2 - EMBEDDING["qwen3-8b"])}


def everybody(pool=300_000, budget=2048, block=256, window=16) -> int:
    """Query slots for all that fit, as the server had them in these runs."""
    return -(-pool // (budget + block - window)) + 1


SHAPES = {"qwen3-0.6b": ModelShape(28, 16, 8, 128, 1.0), "qwen3-8b": ModelShape(36, 32, 8, 128, 1.0)}


def setting(model="qwen3-8b", **changes):
    values = dict(name="Qwen3ForCausalLM", dtype="bfloat16", shape=SHAPES[model], v_head_dim=128, context_len=40960,
                  weights=WEIGHTS[model], memory=int(140.4 * 2**30), fraction=0.9, tp=1, page=1, itemsize=2, kv_itemsize=2,
                  config=ZipageConfig(), graph_batch=256)
    return Setting(**{**values, **changes})


@pytest.mark.parametrize("policy, passes", [("zipage", 1), ("zipage", 4), ("recent", 1)])
def test_buffer_bytes_are_those_of_the_buffers(policy, passes):
    shape, config = ModelShape(3, 6, 2, 8, 1.0), ZipageConfig(budget=32, block=16, window=4, policy=policy, passes=passes)
    kv = [torch.zeros(50, 2, 8) for _ in range(3)]
    runtime = Runtime(config, shape, kv, kv, torch.float32, slots=5, max_batch=7)
    assert buffer_bytes(shape, config, kv_slots=50, query_slots=5, max_batch=7, itemsize=4) == runtime.nbytes


def measured():
    """(file's name, options, mode, summary) of every mode of every throughput result."""
    for path in sorted(RESULTS.glob("throughput-*-h200.json")):
        data = json.loads(path.read_text())
        for mode, summary in data["summary"].items():
            yield path.name, data["options"], mode, summary


def test_kv_bytes_of_known_models():
    assert setting("qwen3-0.6b").kv_bytes == 112 * 1024
    assert setting("qwen3-8b").kv_bytes == 144 * 1024
    halves = ModelShape(36, 16, 4, 128, 1.0)
    assert setting("qwen3-8b", shape=halves, tp=2).kv_bytes == 72 * 1024


@pytest.mark.parametrize("name, options, mode, summary", [m for m in measured() if "buffer_mib" in m[3]])
def test_buffers_are_those_of_the_h200_runs(name, options, mode, summary):
    budget = int(mode.partition("budget=")[2] or options["budget"])
    config = ZipageConfig(budget=budget, block=options["block"], query_slots=everybody(options["pool"], budget), passes=1)
    plan = make_plan(setting(options["model"], config=config, max_tokens=options["pool"], max_running=options["max_running"]))
    assert plan.pool == options["pool"]
    shape, slots = SHAPES[options["model"]], everybody(options["pool"], budget)
    sums = shape.layers * shape.q_heads * SUM_BYTES * (slots * config.window + 1 + options["pool"] * 512 // 40960)
    buffers = plan.overhead.positions_and_scores + plan.overhead.query_slots - sums  # which servers did not have then
    assert buffers / 2**20 == pytest.approx(summary["buffer_mib"], rel=0.001)


def test_overhead_of_8b_is_what_was_reported():
    """benchmarks/results/README.md, of the first versions: 42,188 MiB of KV, 3.2 % with 124 MiB of workspace more (and no softmax
    sums)."""
    plan = make_plan(setting(max_tokens=300_000, config=ZipageConfig(query_slots=everybody(), passes=1)))
    assert plan.overhead.workspace / 2**20 == pytest.approx(124, abs=0.5)
    assert (plan.pool + 1) * plan.setting.kv_bytes / 2**20 == pytest.approx(42_188, abs=1)
    assert round(100 * (plan.overhead.share + 124 / 42_188), 1) == 3.2
    less = make_plan(setting(max_tokens=300_000, config=ZipageConfig(passes=1)))
    assert less.overhead.query_slots < 0.3 * plan.overhead.query_slots and round(100 * less.overhead.share, 1) == 1.9
    assert round(100 * make_plan(setting(max_tokens=300_000)).overhead.share, 1) == 3.3


def test_promised_requests_are_those_that_ran():
    """Groups of 32 shared a prompt of 150 tokens: 5 tokens each."""
    for _, options, mode, summary in measured():
        if mode.startswith("zipage"):
            budget = int(mode.partition("budget=")[2] or options["budget"])
            plan = make_plan(setting(options["model"], config=ZipageConfig(budget=budget), max_tokens=options["pool"]), prompt=5,
                             output=options["mean"])
            assert plan.zipage.running == pytest.approx(summary["running"], rel=0.02)


def test_share_of_the_bandwidth_that_steps_reached():
    shares = []
    for _, options, _, summary in measured():
        s = setting(options["model"])
        step = decode_step(s.weights, summary["running"], summary["resident"], s.kv_bytes, 1, hardware.GPUS["H200"].bandwidth)
        shares.append(step.limit_ms / summary["step_ms"])
        assert step.fast_ms <= summary["step_ms"] <= step.slow_ms
    assert len(shares) == 5
    assert REACHED == pytest.approx((min(shares), max(shares)), abs=0.01)


def test_pool_from_memory_leaves_room_for_everything():
    plan = make_plan(setting(page=16))
    used = (plan.pool + 16) * plan.setting.kv_bytes + plan.overhead.total
    assert plan.pool % 16 == 0
    assert plan.available == pytest.approx(used, rel=0.0005)
    assert plan.full.pool > plan.pool > 0.95 * plan.full.pool
    assert make_plan(setting(max_tokens=10**9)).pool == make_plan(setting()).pool  # the flag cannot raise it


def test_tensor_parallel_shares_weights_and_heads():
    one, two = make_plan(setting()), make_plan(setting(shape=ModelShape(36, 16, 4, 128, 1.0), tp=2))
    assert two.available - one.available == pytest.approx(WEIGHTS["qwen3-8b"].total / 2, rel=1e-6)
    assert two.pool > 2 * one.pool


def test_a_step_reads_each_gpus_share():
    """8 GB of weights and 1,000 resident tokens of 1 MB on a GPU of 1,000 GB/s: 8 + 1 ms; 2 + 1 ms on four."""
    weights = Weights(embedding=10**9, experts=0, rest=8 * 10**9)
    one, four = (decode_step(weights, 10, 1000, 10**6, tp, 1000) for tp in (1, 4))
    assert (one.limit_ms, four.limit_ms) == (9.0, 3.0)
    assert one.limit_ms < one.fast_ms < one.slow_ms


def test_short_outputs_gain_nothing():
    plan = make_plan(setting(), prompt=100, output=500)
    assert plan.zipage.most == 601 and plan.zipage.held == plan.full.held
    assert plan.zipage.running < plan.full.running


def test_experts_are_read_as_tokens_choose_them():
    moe = Weights(embedding=5, experts=800, rest=100, chosen=2, of=8)
    assert moe.read(1) == pytest.approx(100 + 200)
    assert moe.read(2) == pytest.approx(100 + 800 * (1 - 0.75**2))
    assert moe.read(1000) == pytest.approx(900)
    assert moe.total == 905


def test_what_fits():
    assert what_fits(ZipageConfig(budget=128, block=32), 4096, 16, 2048) == (176, 23, 2)


@pytest.mark.parametrize("changes, load, words", [
    (dict(memory=10 * 2**30), {}, "15.3 GiB of weights do not fit into 0.900 of 10.0 GiB: raise --mem-fraction-static"),
    (dict(max_tokens=2000), {}, "a KV pool of 2000 tokens cannot hold one request of 2305"),
    ({}, dict(prompt=40000, output=1000), "exceed the context length of 40960"),
])
def test_what_cannot_be_is_one_line(changes, load, words):
    with pytest.raises(DoesNotFit, match=words.replace(".", r"\.").replace("(", r"\(")) as error:
        make_plan(setting(**changes), **load)
    assert "\n" not in str(error.value)


def test_gpus():
    assert hardware.find("h200").bandwidth == 4800
    assert hardware.by_memory(141) == "H200"
    assert hardware.by_memory(80) is None  # two of them
    with pytest.raises(ValueError, match="--gpu: 'T800' is not one of"):
        hardware.find("T800")


def test_reports():
    plan = make_plan(setting(), 512, 8192, 4800)
    text = report.as_text(plan, "H200", 512, 8192)
    assert max(map(len, text.splitlines())) <= 130
    assert f"--max-running-requests {plan.zipage.running} " in text and f"{plan.pool:,} tokens" in text
    assert "No times" in report.as_text(make_plan(setting()), "GPU", 0, None)
    data = json.loads(json.dumps(report.as_dict(plan)))
    assert data["pool"] == plan.pool and data["setting"]["kv_bytes"] == 147456 and data["fits"]["bound"] == 2305
    assert data["zipage"]["step"]["limit_ms"] == plan.zipage.step.limit_ms
    assert data["setting"]["config"] == dataclasses.asdict(ZipageConfig())
