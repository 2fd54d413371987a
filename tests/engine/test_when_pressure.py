"""`--zipage-when pressure`: full KV while the pool has room for everybody, compressed where it has not, and nobody retracted.

What is kept depends on load here, so under pressure the invariants are checked (at every step), not the tokens."""

import random

import pytest
from harness import request, run_engine
from oracle import decode
from test_oracle import oracle_model, prompts  # noqa: F401 (fixture)

BUDGET, BLOCK, POOL = 96, 32, 1600
SETTINGS = {
    "overlap": dict(),
    "pages-copies": dict(disable_overlap_schedule=True, page_size=16, zipage_prefix="compress", chunked_prefill_size=64),
}


@pytest.mark.once
@pytest.mark.parametrize("name", ["overlap", pytest.param("pages-copies", marks=pytest.mark.full)])
def test_compressed_only_where_it_helps(name, oracle_model, tmp_path):  # noqa: F811
    rng = random.Random(1)
    ids = prompts()[:4]
    roomy = [request(f"room{i}", p, 240) for i, p in enumerate(ids)]
    crowd = [request(f"crowd{i:02d}", ids[i % 4], rng.randint(180, 320)) for i in range(20)]
    crowd[3]["params"]["max_new_tokens"] = POOL + 100  # longer than the whole pool
    crowd[6]["params"]["custom_params"] = {"zipage": {"enabled": False}}  # never a victim
    # A prompt that fills the pool but for a few tokens: no room for slots to copy it to, so it is not compressed and nobody waits for it.
    length = POOL - 80 - 3 * SETTINGS[name].get("page_size", 0)  # SGLang wants room for its last pages
    tight = request("tight", (sum(ids, []) * 9)[:length], 50, custom_params={"zipage": {"prefix": "compress"}})
    behind = request("behind", ids[0], 60)
    run = run_engine(tmp_path, [roomy, crowd, roomy_again(roomy), [tight, behind]], enable_zipage=True, zipage_when="pressure", zipage_budget=BUDGET,
                     zipage_block=BLOCK, zipage_window=8, max_total_tokens=POOL, **SETTINGS[name])
    for n in (0, 2):
        for got, r in zip(run.rounds[n], run.requests[n]):
            want = decode.generate(oracle_model, r["input_ids"], 240, decode.OracleConfig(policy="recent", budget=10_000), ignore_eos=True)
            assert got["ids"] == want.tokens and r["rid"] not in run.kept, "there was room for all"
    for got, r in zip(run.rounds[1] + run.rounds[3], [*crowd, tight, behind]):
        assert got["reason"]["type"] == "length" and len(got["ids"]) == r["params"]["max_new_tokens"]
    whole = decode.generate(oracle_model, crowd[6]["input_ids"], crowd[6]["params"]["max_new_tokens"], None, ignore_eos=True)
    assert run.output("crowd06") == whole.tokens and "crowd06" not in run.kept
    info = run.info
    assert info["retractions"] == 0 and run.flushed
    bound = max(map(len, ids)) + BUDGET + BLOCK
    assert info["peak_running"] >= 0.9 * (POOL // (bound + 1))
    # Fewer compressions than one per block of output, and rows longer than the bound: they grew while there was room.
    assert len(crowd) / 2 < info["compressions"] < sum(r["params"]["max_new_tokens"] - BUDGET for r in crowd) / BLOCK
    assert any(line["true_len"] - len(ids[0]) > BUDGET + BLOCK and line["n"] == 0 for lines in run.kept.values() for line in lines)
    if name == "pages-copies":
        assert info["copied_out_slots"] > 0


def roomy_again(roomy):
    return [{**r, "rid": r["rid"] + "-again"} for r in roomy]
