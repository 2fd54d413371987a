"""Requests with settings of their own in one batch: each is what the oracle says for its configuration, and one that is not to be
compressed has full KV, whatever happens around it."""

import pytest
from harness import request, run_engine
from oracle import decode
from test_oracle import compare_kept, oracle_model, prompts  # noqa: F401 (fixture)

SERVER = dict(budget=96, block=32, window=8)
# What requests ask for; the first two say nothing.
ASKED = [None, {}, {"enabled": False}, {"budget": 64, "recency": 0.25}, {"recency": 0.0, "lambda": 0.7, "alpha": 0.2},
         {"budget": 128, "policy": "recent"}, {"prefix": "compress", "sinks": 2}, {"policy": "random", "seed": 5, "budget": 32},
         {"enabled": False, "budget": 64}]
TOKENS = 165
SETTINGS = {
    "overlap": dict(page_size=4),
    "no-overlap-retract": dict(page_size=16, disable_overlap_schedule=True, chunked_prefill_size=64),
}
REFUSED = [
    ({"zipage": {"budget": 160}}, "zipage.budget: at most 128 on this server"),
    ({"zipage": {"budget": 66}}, "zipage.budget: must be a multiple of the page size"),
    ({"zipage": {"enabled": "no"}}, "zipage.enabled: must be true or false"),
    ({"zipage": {"budget": 160}, "unchecked": True}, "zipage.budget: at most 128 on this server"),
    ({"zipage": [1], "unchecked": True}, "zipage: must be an object"),
]


def asking(rid, ids, tokens, asked):
    return request(rid, ids, tokens, **({} if asked is None else {"custom_params": {"zipage": asked}}))


def oracle_config(asked, server=SERVER):
    asked = dict(asked or {})
    if not asked.pop("enabled", True):
        return None
    return decode.OracleConfig(**{**server, **{"lam" if k == "lambda" else k: v for k, v in asked.items()}})


@pytest.mark.full
@pytest.mark.parametrize("mutation, words", [
    ("compress_regardless", "own0-2|wasted"), ("one_configuration", "own0-[34]|kept sets differ"),
])
def test_mutation_is_noticed(mutation, words, oracle_model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ZIPAGE_MUTATION", mutation)
    with pytest.raises(AssertionError, match=words):
        check("overlap", oracle_model, tmp_path)


@pytest.mark.once
@pytest.mark.parametrize("name", ["overlap", pytest.param("no-overlap-retract", marks=pytest.mark.full)])
def test_each_request_by_its_own_settings(name, oracle_model, tmp_path):  # noqa: F811
    check(name, oracle_model, tmp_path)


def check(name, oracle_model, tmp_path):  # noqa: F811
    """A pool that does not hold all of them at once; the last round is a crowd of small budgets, more than there are query slots, so
    that some wait for one."""
    ids = prompts()
    rounds = [[asking(f"own{n}-{i}", ids[(i + n) % 6], TOKENS, asked) for i, asked in enumerate(ASKED[: 9 - 4 * n])] for n in range(2)]
    crowd, small = [ids[0]] * 24, {"budget": 16, "recency": 0.0}
    rounds.append([asking(f"crowd{i:02d}", p, 90, small) for i, p in enumerate(crowd)])
    rounds[2].insert(5, asking("crowd-off", ids[1], 150, {"enabled": False}))
    retract = name.endswith("retract")
    env = dict(ZIPAGE_UNCHECKED=1, **(dict(SGLANG_TEST_RETRACT=1, SGLANG_TEST_RETRACT_INTERVAL=37) if retract else {}))
    refused = [{**request(f"refused{i}", ids[0], 8), "params": {"custom_params": params}} for i, (params, _) in enumerate(REFUSED)]
    run = run_engine(tmp_path, rounds, env=env, refused=refused, enable_zipage=True, zipage_max_budget=128, max_total_tokens=1600,
                     **{f"zipage_{k}": v for k, v in SERVER.items()}, **SETTINGS[name])
    wanted = {}
    for outputs, requests in zip(run.rounds, rounds):
        for got, r in zip(outputs, requests):
            asked = r["params"].get("custom_params", {}).get("zipage")
            retracted = run.retracted_at.get(r["rid"], [])
            key = repr((r["input_ids"], r["params"]["max_new_tokens"], asked, retracted))
            if key not in wanted:
                wanted[key] = decode.generate(oracle_model, r["input_ids"], r["params"]["max_new_tokens"], oracle_config(asked),
                                              ignore_eos=True, retract_after=retracted)
            want, (said,) = wanted[key], got["zipage"]
            assert got["ids"] == want.tokens, (r["rid"], asked, retracted)
            compare_kept(want.compressions, run.kept.get(r["rid"], []), wasted=len(retracted) + 1)
            if oracle_config(asked) is None:
                assert said == {"enabled": False, "compressions": 0, "evicted_tokens": 0,
                                "kv_len": len(r["input_ids"]) + len(got["ids"])}
            else:
                assert said["budget"] == oracle_config(asked).budget and len(want.compressions) >= (0 if retracted else 1)
    for says, (_, words) in zip(run.refusals, REFUSED, strict=True):
        assert says is not None and "custom_params." in says and words in says
    info = run.info
    assert run.flushed
    assert info["query_slots"] < len(crowd) and info["peak_query_slots"] <= info["query_slots"]
    assert info["parked"] > 0 and info["peak_running"] > info["query_slots"]
    if retract:
        assert info["retractions"] > 5
    else:
        assert info["retractions"] == 0, "what is reserved is always to be had"
