"""A compression that fails costs its requests a new prefill, and nobody else anything."""

import json

import pytest
from harness import request, run_engine
from oracle import decode
from test_oracle import oracle_model, prompts  # noqa: F401 (fixture)

METHOD = dict(budget=64, block=32, window=8, policy="attention", prefix="compress")


@pytest.mark.parametrize("overlap", [True, pytest.param(False, marks=pytest.mark.full)])
def test_failed_compressions(overlap, oracle_model, tmp_path):  # noqa: F811
    """The second and fifth compression fail after they moved tokens, and every one of the request `doomed`."""
    ids = prompts()
    rounds = [[request(f"{name}{i}", p, 150) for i, p in enumerate(ids)] for name in ("first", "again")]
    rounds[1].append(request("doomed", ids[1][:-1], 150))
    fail = json.dumps({"calls": [2, 5], "rids": ["doomed"]})
    run = run_engine(tmp_path, rounds, env={"ZIPAGE_FAIL": fail}, enable_zipage=True, page_size=4,
                     disable_overlap_schedule=not overlap, **{f"zipage_{k}": v for k, v in METHOD.items()})
    for outputs, requests in zip(run.rounds, rounds):
        for got, r in zip(outputs, requests):
            if r["rid"] == "doomed":
                assert got["reason"]["type"] == "abort" and "compression failed 3 times" in got["reason"]["message"]
                continue
            want = decode.generate(oracle_model, r["input_ids"], 150, decode.OracleConfig(**METHOD), ignore_eos=True,
                                   retract_after=run.retracted_at.get(r["rid"], []))
            assert got["ids"] == want.tokens, r["rid"]
    assert run.info["failures"] >= 5 and run.info["copied_out_slots"] > 0 and run.flushed
