"""Few query slots and one compression a step: requests wait outside the batch, and every token is what it would have been."""

import json
import random

import pytest
from harness import request, run_engine
from test_oracle import check_tokens, oracle_model, prompts  # noqa: F401 (fixture)

METHOD = dict(budget=64, block=32, window=8, policy="attention", prefix="compress")
WINDOWS = dict(policy="zipage", passes=4)  # a slot for the whole block
SETTINGS = {
    "slots-overlap": dict(zipage_query_slots=2),
    "limit-pages": dict(zipage_max_compress=1, zipage_query_slots=3, disable_overlap_schedule=True, page_size=16),
    "one-slot-no-radix": dict(zipage_query_slots=1, disable_radix_cache=True, max_running_requests=6),
}


@pytest.mark.once
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.full) if n != "slots-overlap" else n for n in SETTINGS])
def test_parked_requests_lose_nothing(name, oracle_model, tmp_path):  # noqa: F811
    """Same prompts at the same time, so that all reach the cap together; some stop in the step that parks them."""
    method = METHOD | (WINDOWS if name == "slots-overlap" else {})
    ids = prompts()
    rng = random.Random(5)
    near = lambda i: max(8, 96 - len(ids[i % 3])) - 4 + i  # ends about when it is to be parked
    rounds = [[request(f"{n}-{i}", ids[i % 3], rng.choice([150, 150, near(i)])) for i in range(9)] for n in range(2)]
    # A few untrained tokens far above the others, so that every choice depends on how often each has been counted.
    penalty = request("alone", ids[1], 150, frequency_penalty=1.9, logit_bias={str(t): 100.0 for t in range(330, 340)})
    # The last to enter: SGLang itself misses a token when another request's prefill comes between two steps under overlap.
    rounds.append([request(f"2-{i}", ids[1], 150) for i in range(5)] + [{**penalty, "rid": "penalty"}])
    rounds.append([penalty])  # never parked: what it must be
    run = run_engine(tmp_path, rounds, enable_zipage=True, **SETTINGS[name], **{f"zipage_{k}": v for k, v in method.items()})
    check_tokens(oracle_model, run, [r for r in sum(rounds, []) if "frequency_penalty" not in r["params"]], method)
    assert run.output("penalty") == run.output("alone") and len(run.output("alone")) == 150
    info = run.info
    assert info["parked"] >= 8 and info["peak_parked"] >= 2 and info["parked_seconds"] > 0 and run.flushed
    assert info["retractions"] == 0
    assert info["query_slots"] == SETTINGS[name]["zipage_query_slots"]


@pytest.mark.once
@pytest.mark.parametrize("why", [pytest.param(dict(zipage_query_slots=1), marks=pytest.mark.full), dict(zipage_async_steps=4)])
def test_aborted_while_parked(why, tmp_path):
    """Requests that a client leaves while they wait, or are compressed, end at once, and everybody else to the last token."""
    ids = prompts()
    requests = [request(f"r{i}", ids[0], 300) for i in range(8)]
    run = run_engine(tmp_path, [requests], env={"ZIPAGE_ABORT_PARKED": json.dumps(3)}, enable_zipage=True, **why,
                     **{f"zipage_{k}": v for k, v in METHOD.items()})
    kinds = [got["reason"]["type"] for got in run.rounds[0]]
    assert kinds.count("abort") == 3 and kinds.count("length") == 5
    assert all(len(got["ids"]) == 300 for got in run.rounds[0] if got["reason"]["type"] == "length")
    assert run.info["parked"] + run.info["sat_out"] > 3 and run.flushed


@pytest.mark.full
def test_a_token_that_penalties_miss_is_noticed(oracle_model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ZIPAGE_MUTATION", "uncounted_tokens")
    with pytest.raises(AssertionError):
        test_parked_requests_lose_nothing("slots-overlap", oracle_model, tmp_path)
