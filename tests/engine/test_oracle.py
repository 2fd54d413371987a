"""The real engine against the independent oracle, float32 and greedy: equal tokens and equal kept sets, in every setting."""

import random

import pytest
from harness import MODEL, request, run_engine
from oracle import decode, model, reasoner

from zipage_sglang.trace import load

WINDOW, BUDGET, BLOCK = 8, 96, 32

# Pairwise over overlap, radix, page size, chunked prefill and retraction; the full cross runs in `make test-full`.
SETTINGS = {
    "zipage": dict(method=dict(policy="zipage"), engine=dict(), windows=True),
    "flash-always": dict(
        method=dict(policy="zipage", redundancy="flash", pooling="always", recency=0.0, alpha=0.5, lam=0.6, passes=1),
        engine=dict(disable_overlap_schedule=True, page_size=16, chunked_prefill_size=64),
    ),
    "attention-noradix-retract": dict(
        method=dict(policy="attention", recency=0.25),
        engine=dict(disable_radix_cache=True, page_size=16), retract=23,
    ),
    "random-retract": dict(
        method=dict(policy="random", seed=7),
        engine=dict(disable_overlap_schedule=True, page_size=4, chunked_prefill_size=32), retract=17, copies=True,
    ),
    "recent-noradix": dict(
        method=dict(policy="recent"), engine=dict(disable_overlap_schedule=True, disable_radix_cache=True),
    ),
    "window-is-block-retract": dict(
        method=dict(policy="zipage", redundancy="none", pooling="never", window=BLOCK, recency=0.0),
        engine=dict(page_size=1), retract=53,
    ),
    # The first compression copies the kept prompt tokens out of the tree; the second round must still hit it, unharmed.
    "compress-prompt": dict(
        method=dict(policy="zipage", prefix="compress", budget=64), engine=dict(page_size=4), copies=True,
    ),
    "auto-prompt-retract": dict(
        method=dict(policy="attention", prefix="auto", sinks=2),
        engine=dict(disable_overlap_schedule=True, page_size=16, chunked_prefill_size=48), retract=29, copies=True,
    ),
    # Compressions beside the decode steps.
    "async-retract": dict(method=dict(policy="zipage", passes=1), engine=dict(zipage_async_steps=2), retract=23),
    "async-noradix": dict(
        method=dict(policy="attention"),
        engine=dict(zipage_async_steps=3, disable_overlap_schedule=True, disable_radix_cache=True),
    ),
    "async-compress": dict(
        method=dict(policy="zipage", prefix="compress", budget=64, passes=1),
        engine=dict(zipage_async_steps=1, page_size=4, chunked_prefill_size=48), retract=29, copies=True,
    ),
    # By default all queries since the last compression score, here half of them, and three quarters.
    "windows-retract": dict(
        method=dict(policy="zipage"), engine=dict(page_size=16, chunked_prefill_size=48), retract=23, windows=True, sums=True,
    ),
    "windows-compress": dict(
        method=dict(policy="zipage", passes=2, prefix="compress", budget=64), engine=dict(page_size=4), copies=True, windows=True,
    ),
    "windows-noradix": dict(
        method=dict(policy="zipage", passes=3, redundancy="flash", pooling="always"),
        engine=dict(disable_radix_cache=True, disable_overlap_schedule=True), windows=True,
    ),
}


@pytest.fixture(scope="session")
def oracle_model():
    return model.Qwen3(MODEL)


def prompts():
    """Six prompts of all families, ending anywhere inside a page; the last two share one prompt."""
    problems = [reasoner.tasks.gen(family, f"test-{i}", level=300) for i, family in enumerate(reasoner.tasks.FAMILIES)]
    ids = [p.ids()[0] for p in problems]
    return ids + [ids[0], ids[2]]


def lengths(n):
    rng = random.Random(n)
    return [rng.randint(150, 220) for _ in range(6)]


def check_tokens(oracle_model, run, requests, method):
    """Their tokens are the oracle's."""
    for r in requests:
        want = decode.generate(oracle_model, r["input_ids"], r["params"]["max_new_tokens"], decode.OracleConfig(**method),
                               ignore_eos=True, retract_after=run.retracted_at.get(r["rid"], []))
        assert run.output(r["rid"]) == want.tokens, r["rid"]


def compare_kept(oracle_records, engine_lines, wasted):
    """Every oracle compression has its equal in the engine, in order; the engine may do `wasted` more (for a request that
    was retracted or had already finished when that became known)."""
    position, skipped = 0, 0
    for record in oracle_records:
        while position < len(engine_lines) and engine_lines[position]["true_len"] != record.true_len:
            position, skipped = position + 1, skipped + 1
        assert position < len(engine_lines), f"the engine never compressed at {record.true_len}"
        line = engine_lines[position]
        assert line["n"] == record.count
        assert line["kept"] == record.kept.tolist(), f"kept sets differ at true length {record.true_len}"
        position += 1
    assert skipped + len(engine_lines) - position <= wasted


def check_traces(run, folder, scored):
    """A trace says what the probe saw of its request since it was last prefilled."""
    traces = [load(path) for path in folder.iterdir()]
    assert len(traces) >= 4
    for trace in traces:
        rid = trace.info["rid"]
        lines = run.kept[rid]
        lines = lines[max(i for i, line in enumerate(lines) if line["n"] == 0) :]
        assert trace.true_lens.tolist() == [line["true_len"] for line in lines]
        for n, line in enumerate(lines, start=1):
            kept = [[trace.kept(n, layer, head).tolist() for head in range(len(heads))] for layer, heads in enumerate(line["kept"])]
            assert kept == line["kept"], (rid, n)
        (input_ids,) = (r["input_ids"] for round_ in run.requests for r in round_ if r["rid"] == rid)
        assert trace.token_ids.tolist() == input_ids + run.output(rid) and trace.prompt_len == len(input_ids)
        assert (trace.scores.size > 0) == scored and trace.info["complete"]
        if scored:
            assert ((trace.scores[-1] >= 0) == trace.held(trace.compressions).any(axis=(0, 1))).all()


def check_against_oracle(oracle_model, tmp_path, method, engine, retract=None, copies=False, windows=False, sums=False):
    method = dict(budget=BUDGET, block=BLOCK, window=WINDOW) | method
    flags = {f"zipage_{'lambda' if k == 'lam' else k}": v for k, v in method.items()}
    env = dict(SGLANG_TEST_RETRACT=1, SGLANG_TEST_RETRACT_INTERVAL=retract) if retract else {}
    env |= dict(ZIPAGE_SUMS=1) if sums else {}  # the attention gives softmax sums
    ids, rounds = prompts(), []
    for n in range(2):
        rounds.append([request(f"r{n}-{i}", p, m) for i, (p, m) in enumerate(zip(ids, lengths(n)))])
    # Next turns: their prompts contain answers that were compressed, whose rows must not be found in the tree.
    rounds.append([{**request(f"r2-{i}", ids[i], 140), "after": [f"r0-{i}", 67 + 40 * i]} for i in range(3)])
    run = run_engine(tmp_path, rounds, env=env, enable_zipage=True, zipage_trace=str(tmp_path / "traces"), **flags, **engine)
    compressions = 0
    for n, round_ in enumerate(rounds):
        for got, r in zip(run.ids(n), round_):
            retracted = run.retracted_at.get(r["rid"], [])
            if "after" in r:
                r["input_ids"] = r["input_ids"] + run.output(r["after"][0])[: r["after"][1]]
            want = decode.generate(oracle_model, r["input_ids"], r["params"]["max_new_tokens"],
                                   decode.OracleConfig(**method), ignore_eos=True, retract_after=retracted)
            assert got == want.tokens, (r["rid"], retracted)
            compare_kept(want.compressions, run.kept.get(r["rid"], []), wasted=len(retracted) + 1)
            compressions += len(want.compressions)
    assert compressions >= 20
    check_traces(run, tmp_path / "traces", scored=method["policy"] == "zipage")
    assert run.flushed
    assert run.info["passes"] > 0 or not windows
    if retract:
        assert run.info["retracted_compressed"] >= 3
    if copies:
        assert run.info["copied_out_slots"] > 0, "some target slots must have been owned by the tree"
    if not engine.get("disable_radix_cache"):
        assert all(o["cached"] > 0 for o in run.rounds[1])


# `make test-full` runs all, CI these, on each release of SGLang or on one.
CI = {"flash-always": [pytest.mark.once], "random-retract": [pytest.mark.once], "compress-prompt": [], "async-noradix": [],
      "windows-retract": []}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=CI.get(n, [pytest.mark.full])) for n in SETTINGS])
def test_engine_equals_oracle(name, oracle_model, tmp_path):
    check_against_oracle(oracle_model, tmp_path, **SETTINGS[name])
