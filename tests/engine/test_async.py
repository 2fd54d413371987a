"""Compressions beside the decode steps of others: every token is what it would have been, and nobody gets pages or query slots that a
compression still holds, however late it is."""

import random

import pytest
from harness import request, run_engine
from test_oracle import check_tokens, oracle_model, prompts  # noqa: F401 (fixture)

METHOD = dict(budget=64, block=32, window=8, policy="zipage", prefix="compress", passes=1)
SETTINGS = {
    "overlap": dict(zipage_async_steps=2),
    "pages": dict(zipage_async_steps=3, page_size=16, disable_overlap_schedule=True, zipage_query_slots=3),
    "one-step-no-radix": dict(zipage_async_steps=1, disable_radix_cache=True, zipage_max_compress=1),
    "window-is-block": dict(zipage_async_steps=5, zipage_window=32),
}


def rounds(rng, around=(-1, 0, 1), alike=True):
    """Same prompts at the same time, so that all reach the cap together; two of three end at, or `around`, a compression: the step in
    flight when it was planned is their last."""
    ids = [[30 + i] * (0 if alike else i) + prompts()[i % 3] for i in range(9)]
    last = lambda i: max(96 - len(ids[i]), 8) + 1 + rng.choice(around)
    return [[request(f"{n}-{i}", ids[i], rng.choice([150, last(i), last(i) + 32])) for i in range(9)] for n in range(2)]


def check(run, oracle_model, rounds, method):  # noqa: F811
    check_tokens(oracle_model, run, sum(rounds, []), method)
    assert run.info["sat_out"] > 20 and run.info["retractions"] == 0 and run.flushed


@pytest.mark.full
@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_those_of_compressions_between_steps(name, oracle_model, tmp_path):  # noqa: F811
    todo = rounds(random.Random(5))
    settings = {**{f"zipage_{k}": v for k, v in METHOD.items()}, **SETTINGS[name]}
    run = run_engine(tmp_path, todo, enable_zipage=True, max_total_tokens=1600, **settings)
    check(run, oracle_model, todo, METHOD | dict(window=settings["zipage_window"]))
    assert run.info["query_slots_used"] == 0


def late(tmp_path, **engine):
    """A pool that is short of pages, so that what is free is taken at once, and compressions as late as they may be."""
    todo = rounds(random.Random(6), around=[0], alike=False)
    return todo, run_engine(tmp_path, todo, env=dict(ZIPAGE_LAG=1, ZIPAGE_PROBE_DIR=""), enable_zipage=True, max_total_tokens=700,
                            zipage_async_steps=2, **{f"zipage_{k}": v for k, v in METHOD.items()}, **engine)


@pytest.mark.once
def test_late_compressions(oracle_model, tmp_path):  # noqa: F811
    todo, run = late(tmp_path)
    check(run, oracle_model, todo, METHOD)


def test_prompts_are_not_evicted_while_they_are_read(oracle_model, tmp_path):  # noqa: F811
    """A long prompt's rows are forgotten, not copied: the tree may evict them, and another prompt waits for just that."""
    filler = sum(prompts()[1:], []) * 3  # in front of a problem, whose answer depends on what is kept of it
    long, other = (filler + prompts()[0])[-190:], (filler[::-1] + prompts()[1])[-100:]
    todo = [[request("long", long, 60), request("waits", other, 60)]]
    run = run_engine(tmp_path, todo, env=dict(ZIPAGE_LAG=1, ZIPAGE_PROBE_DIR=""), enable_zipage=True, max_total_tokens=300,
                     zipage_async_steps=3, **{f"zipage_{k}": v for k, v in METHOD.items()})
    check_tokens(oracle_model, run, todo[0], METHOD)
    assert run.info["copied_out_slots"] == 2 * 64 and run.info["retractions"] == 0 and run.flushed


@pytest.mark.full
def test_who_comes_later_is_admitted(tmp_path):
    """Nothing runs but what is compressed and ends with the step in flight; who waits for its pages gives up; then somebody comes."""
    filler = sum(prompts(), []) * 3
    todo = [[request("ends", filler[:190], 9), request("gives-up", filler[7:107], 60)], [request("later", filler[:80], 40)]]
    run = run_engine(tmp_path, todo, env={"ZIPAGE_ABORT_WAITING": "1"}, timeout=150, enable_zipage=True, max_total_tokens=300,
                     zipage_async_steps=3, **{f"zipage_{k}": v for k, v in METHOD.items()})
    assert [got["reason"]["type"] for got in run.rounds[0]] == ["length", "abort"] and len(run.rounds[1][0]["ids"]) == 40


@pytest.mark.full
@pytest.mark.parametrize("mutation", ["pages_at_once", "no_wait", "unlock_at_once"])
def test_what_is_given_out_early_is_noticed(mutation, oracle_model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ZIPAGE_MUTATION", mutation)
    with pytest.raises(AssertionError):
        if mutation == "unlock_at_once":
            test_prompts_are_not_evicted_while_they_are_read(oracle_model, tmp_path)
        todo, run = late(tmp_path)
        check(run, oracle_model, todo, METHOD)
