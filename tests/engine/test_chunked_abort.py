"""Twelve prompts of several chunks at once, and clients that take back the very one being prefilled, at its first chunk, in the
middle and at its last: the others give what they give alone, and nothing leaks."""

import itertools
import json

import pytest
from harness import request, run_engine
from oracle import decode
from test_oracle import compare_kept, oracle_model, prompts  # noqa: F401 (fixture)

METHOD = dict(budget=64, block=32, window=8, policy="zipage")
CHUNK, TOKENS = 32, 110
pytestmark = pytest.mark.full
POOL = 2048  # the eight that stay do not fit at once: some wait while others are prefilled


@pytest.mark.parametrize("overlap", [True, False])
def test_active_chunk_aborted(overlap, oracle_model, tmp_path):  # noqa: F811
    problems = prompts()[:4]
    # Two problems in a row make a long prompt.  The first one is shared by three prompts, the whole by none.
    ids = [a + b[1:] for a, b in itertools.permutations(problems, 2)]
    rids = [f"c{i:02d}" for i in range(12)]
    chunks = {rid: -(-len(p) // CHUNK) for rid, p in zip(rids, ids)}
    aborts = {"c00": 1, "c03": chunks["c03"] // 2, "c06": chunks["c06"] - 1, "c11": 2}
    rounds = [[request(rid, p, TOKENS) for rid, p in zip(rids, ids)],
              [request(f"again-{rid}", p, TOKENS) for rid, p in zip(rids, ids)]]
    flags = {f"zipage_{k}": v for k, v in METHOD.items()}
    run = run_engine(tmp_path, rounds, env=dict(ZIPAGE_ABORT_CHUNKS=json.dumps(aborts)), enable_zipage=True, page_size=16,
                     chunked_prefill_size=CHUNK, max_total_tokens=POOL, disable_overlap_schedule=not overlap, **flags)
    gone = {r["rid"] for r, o in zip(rounds[0], run.rounds[0]) if o["reason"]["type"] == "abort"}
    assert gone == set(aborts) and not any(run.output(rid) for rid in gone)
    for rid, p in zip(rids, ids):
        want = decode.generate(oracle_model, p, TOKENS, decode.OracleConfig(**METHOD), ignore_eos=True)
        for name in [f"again-{rid}"] + [rid] * (rid not in gone):
            assert run.output(name) == want.tokens, name
            compare_kept(want.compressions, run.kept[name], wasted=1)
    assert run.info["running"] == 0 and run.info["retractions"] == 0 and run.flushed
