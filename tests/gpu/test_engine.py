"""The engine on CUDA: every setting gives the answers and kept sets of the base setting, as far as bf16 lets plain SGLang
agree with itself between the same settings.  All engines start at once; a table of what was seen is printed (-s)."""

import concurrent.futures
import json
import os
import random
import time

import pytest
import torch
from harness import CHECKS, request, run_engine

from benchmarks.reasoner import tasks

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

GPU = dict(device="cuda", attention_backend="flashinfer", dtype="bfloat16", disable_cuda_graph=False,
           cuda_graph_max_bs_decode=32, disable_prefill_cuda_graph=True, mem_fraction_static=0.2,
           max_total_tokens=32768, max_running_requests=64)
METHOD = dict(enable_zipage=True, zipage_budget=256, zipage_block=64, zipage_policy="zipage")
UNCHECKED = {name: "0" for name in CHECKS}

# name -> (engine arguments, environment)
SETTINGS = {
    "base": ({}, UNCHECKED),
    "checked": ({}, {}),
    "sums": ({}, {**UNCHECKED, "ZIPAGE_LOOK_AT_SUMS": "1"}),
    "sums-eager": (dict(disable_cuda_graph=True, page_size=16), {**UNCHECKED, "ZIPAGE_LOOK_AT_SUMS": "1"}),
    "eager": (dict(disable_cuda_graph=True), UNCHECKED),
    "no-overlap": (dict(disable_overlap_schedule=True), UNCHECKED),
    "coarse-barrier": ({}, {**UNCHECKED, "SGLANG_FORCE_COARSE_WAR_BARRIER": "1"}),
    "no-radix": (dict(disable_radix_cache=True), UNCHECKED),
    "page-16": (dict(page_size=16), {}),
    "page-64-retract": (dict(page_size=64), {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "50"}),
    "triton": (dict(attention_backend="triton"), {}),
    "compress-prefix": (dict(zipage_prefix="compress"), {}),
    "async": (dict(zipage_async_steps=2), {}),
    "one-window": (dict(zipage_passes=1), {}),
    "prefill-graphs": (dict(disable_prefill_cuda_graph=False), {}),  # SGLang's default, left out above because it takes time to start
}
PLAIN = ("base", "eager", "no-overlap")
# Another batch at almost every step, all of it in captured graphs, and compressions that outlast the host: whatever does not wait
# for them is seen.  The last must differ, fail or stop for good: attention planned without waiting for the plan before it.
MIXED = {
    "mixed": (dict(max_running_requests=32), UNCHECKED),
    "mixed-slow": (dict(max_running_requests=32), {**UNCHECKED, "ZIPAGE_BUSY": "20"}),
    "mixed-slow-async": (dict(max_running_requests=32, zipage_async_steps=2), {**UNCHECKED, "ZIPAGE_BUSY": "20"}),
    "mixed-one-window": (dict(max_running_requests=32, zipage_passes=1), UNCHECKED),
    "mixed-early-plans": (dict(max_running_requests=32), {**UNCHECKED, "ZIPAGE_BUSY": "20", "ZIPAGE_MUTATION": "early_plans"}),
}


def problems():
    return [tasks.gen(family, f"test-{i}", level=800) for i in range(4) for family in tasks.FAMILIES]


def rounds():
    requests = [request(f"g{i}", p.ids()[0], 900, ignore_eos=False, stop_token_ids=[2]) for i, p in enumerate(problems())]
    return [requests, [{**r, "rid": r["rid"] + "-again"} for r in requests]]


def mixed_rounds():
    rng = random.Random(0)
    prompts = [tasks.gen(family, f"test-{i}", level=rng.randint(200, 2000)) for i in range(20) for family in tasks.FAMILIES]
    return [[request(f"m{i}", p.ids()[0], rng.randint(30, 900)) for i, p in enumerate(prompts)]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("gpu")


@pytest.fixture(scope="module")
def runs(folder):
    jobs = {name: (GPU | METHOD | engine, env) for name, (engine, env) in (MIXED | SETTINGS).items()}
    jobs |= {f"full-{n}": (GPU | SETTINGS[n][0], SETTINGS[n][1]) for n in PLAIN}
    with concurrent.futures.ThreadPoolExecutor(max_workers=int(os.environ.get("ZIPAGE_GPU_ENGINES", "7"))) as pool:
        futures = {n: pool.submit(run_engine, folder / n, mixed_rounds() if n in MIXED else rounds(), env=e,
                                  timeout=150 if n == "mixed-early-plans" else 420, **kw) for n, (kw, e) in jobs.items()}
        results = finished(futures)
    for name, run in results.items():
        report(name, run, results)
    return results


def finished(futures):
    """{name: run, or why there is none}, each told when it is there: the whole may take longer than somebody waits."""
    names, start = {future: name for name, future in futures.items()}, time.monotonic()
    for future in concurrent.futures.as_completed(names):
        error = future.exception()
        print(f"{names[future]:18s} {'FAILED' if error else 'done'} after {time.monotonic() - start:.0f} s", flush=True)
    return {name: future.exception() or future.result() for name, future in futures.items()}


def right(run, n=0):
    words = [" ".join(tasks.VOCAB[t] for t in ids if t < len(tasks.VOCAB)) for ids in run.ids(n)]
    return sum(p.check(w) for p, w in zip(problems(), words))


def agreement(a, b):
    """Share of requests with equal outputs."""
    return sum(x == y for x, y in zip(a.ids(), b.ids())) / len(a.ids())


def report(name, run, results):
    if isinstance(run, BaseException):
        print(f"{name:18s} FAILED: {str(run)[-1500:]}")
        return
    base = results["mixed" if name in MIXED else "full-base" if name.startswith("full") else "base"]
    same = "" if isinstance(base, BaseException) else f"{agreement(run, base):.2f}"
    answers = "" if name in MIXED else f"right {right(run)}/{len(run.ids())} again {right(run, 1)}"
    print(f"{name:18s} {answers} equal to base {same} { {k: v for k, v in (run.info or {}).items() if k != 'config'} }")


def ok(runs, name):
    if isinstance(runs[name], BaseException):
        raise AssertionError(f"{name} did not run") from runs[name]
    return runs[name]


@pytest.mark.parametrize("name", SETTINGS)
def test_setting(runs, name):
    run, base = ok(runs, name), ok(runs, "base")
    assert run.info["compressions"] >= 100 and run.info["nan_scores"] == 0 and run.flushed
    if name in PLAIN:
        # No more divergence than plain SGLang shows between the same two settings, give or take two requests.
        plain = agreement(ok(runs, f"full-{name}"), ok(runs, "full-base"))
        assert agreement(run, base) >= plain - 2 / len(run.ids()) or agreement(run, base) >= 0.75


@pytest.mark.parametrize("name, base", [("mixed-slow", "mixed"), ("mixed-slow-async", "mixed-one-window")])
def test_how_long_a_compression_takes_changes_nothing(runs, name, base):
    assert ok(runs, base).info["compressions"] >= 150
    # Which requests the first prefills take together depends on when they arrive, and bf16 on that.
    assert agreement(ok(runs, name), ok(runs, base)) >= 0.8


def test_windows_score_behind_the_step_in_flight(runs):
    """Graphs let the host go ahead of the step; with SGLang's stronger barrier it cannot."""
    plain, coarse = ok(runs, "base"), ok(runs, "coarse-barrier")
    assert plain.info["passes"] == coarse.info["passes"] > 200 and agreement(plain, coarse) >= 0.9


def test_early_plans_are_noticed(runs):
    run, base = runs["mixed-early-plans"], ok(runs, "mixed")
    assert isinstance(run, BaseException) or agreement(run, base) < agreement(ok(runs, "mixed-slow"), base)


@pytest.mark.parametrize("name", ["sums", "sums-eager"])
def test_attention_gives_the_softmax_sums_of_its_queries(runs, folder, name):
    """Those that scoring uses, of every window of every request, against products in fp32."""
    run = ok(runs, name)
    lines = [json.loads(line) for line in (folder / name / "sums.jsonl").read_text().splitlines()]
    assert sum(line["scoring"] for line in lines) >= run.info["passes"] > 200
    worst = max(line["difference"] for line in lines)
    print(f"{name}: {len(lines)} windows, largest difference {worst:.4f} of log2 of a sum")
    assert worst < 0.02


def test_full_kv_is_right(runs):
    assert right(ok(runs, "full-base")) == len(problems())
