"""A compression that fails costs its requests a new prefill, and nobody else anything."""

import json

import pytest
from harness import request, run_engine
from test_oracle import check_tokens, oracle_model, prompts  # noqa: F401 (fixture)

METHOD = dict(budget=64, block=32, window=8, policy="attention", prefix="compress")


@pytest.mark.once
@pytest.mark.parametrize("overlap, beside", [pytest.param(True, 0, marks=pytest.mark.full), pytest.param(False, 0, marks=pytest.mark.full), (True, 2)])
def test_failed_compressions(overlap, beside, oracle_model, tmp_path):  # noqa: F811
    """The second and fifth compression fail after they moved tokens, and every one of the request `doomed`."""
    ids = prompts()
    rounds = [[request(f"{name}{i}", p, 150) for i, p in enumerate(ids)] for name in ("first", "again")]
    rounds[1].append(request("doomed", ids[1][:-1], 150))
    fail = json.dumps({"calls": [2, 5], "rids": ["doomed"]})
    run = run_engine(tmp_path, rounds, env={"ZIPAGE_FAIL": fail}, enable_zipage=True, page_size=4,
                     disable_overlap_schedule=not overlap, zipage_async_steps=beside, **{f"zipage_{k}": v for k, v in METHOD.items()})
    for outputs, requests in zip(run.rounds, rounds):
        for got, r in zip(outputs, requests):
            if r["rid"] == "doomed":
                assert got["reason"]["type"] == "abort" and "compression failed 3 times" in got["reason"]["message"]
                continue
            check_tokens(oracle_model, run, [r], METHOD)
    assert run.info["failures"] >= 5 and run.info["copied_out_slots"] > 0 and run.flushed
