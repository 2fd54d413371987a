"""More processes than one: tensor and data parallel engines (gloo, on the CPU) and several tokenizer workers give the answers of
one process, while requests are being compressed in every rank."""

import concurrent.futures

import httpx
import pytest
from harness import CHECKS, PROBE, run_engine
from oracle import decode
from test_entry_points import CPU, METHOD
from test_oracle import oracle_model, prompts  # noqa: F401 (fixture)
from test_per_request import asking, oracle_config
from test_server import PROBLEM, zipage

from benchmarks.server import Server

pytestmark = pytest.mark.full
BUDGET = dict(budget=96, block=32, window=8)
TOKENS = 170
# What the requests of the second round ask for themselves.
OWN = [None, {"enabled": False}, {"budget": 64}, {"recency": 0.25}, {"budget": 32, "prefix": "compress"}, {"enabled": False}]


def run_and_compare(oracle_model, tmp_path, method, env=None, **engine):  # noqa: F811
    method = BUDGET | method
    rounds = [[asking(f"r{n}-{i}", p, TOKENS, asked) for i, (p, asked) in enumerate(zip(prompts(), own))]
              for n, own in enumerate(([None] * 6, OWN))]
    flags = {f"zipage_{k}": v for k, v in method.items()}
    run = run_engine(tmp_path, rounds, env=env, enable_zipage=True, page_size=4, **flags, **engine)
    for i, (p, own) in enumerate(zip(prompts(), OWN)):
        for n, asked in enumerate((None, own)):
            want = decode.generate(oracle_model, p, TOKENS, oracle_config(asked, method), ignore_eos=True)
            assert run.ids(n)[i] == want.tokens, (n, i)
    assert all(info["compressions"] >= 6 for info in run.infos) and run.flushed
    return run


@pytest.mark.parametrize("policy", ["zipage", "random"])
def test_tensor_parallel(policy, oracle_model, tmp_path):  # noqa: F811
    """Each rank holds one of the two KV heads; `random` draws by global head, whoever holds it."""
    # More ranks than NUMA nodes: SGLang wants to be told the cores of each.  And it would use NCCL, which comes with torch, on the
    # CPU too, if it found it.
    env = dict(SGLANG_CPU_OMP_THREADS_BIND="0|1", SGLANG_NCCL_SO_PATH="none")
    run = run_and_compare(oracle_model, tmp_path, dict(policy=policy), env, tp_size=2, disable_custom_all_reduce=True)
    for lines in run.kept.values():
        by_length = {}
        for line in lines:
            by_length.setdefault(line["true_len"], []).append(line["kept"])
        assert all(len(ranks) == 2 and ranks[0] != ranks[1] for ranks in by_length.values()), "one line per rank, of its own head"


def test_data_parallel(oracle_model, tmp_path):  # noqa: F811
    run = run_and_compare(oracle_model, tmp_path, dict(policy="zipage"), dp_size=2)
    assert len(run.infos) == 2


def test_several_tokenizer_workers(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        # A worker imports SGLang before it answers its parent: longer than uvicorn's usual five seconds on two busy cores.
        patience = {"SGLANG_UVICORN_WORKER_HEALTHCHECK_TIMEOUT": "120"}
        for name, value in {**CHECKS, **patience, "PYTHONPATH": str(PROBE)}.items():
            patch.setenv(name, value)
        flags = [*CPU, "--enable-zipage", *METHOD, "--zipage-policy", "recent", "--tokenizer-worker-num", "2"]
        with Server(flags, tmp_path / "log.txt") as server, concurrent.futures.ThreadPoolExecutor(6) as pool:
            body = {"text": PROBLEM.text, "sampling_params": {"temperature": 0, "max_new_tokens": 600}}
            ask = lambda _: httpx.post(f"{server.url}/generate", json=body, timeout=300).json()
            replies = list(pool.map(ask, range(6)))
            assert all(PROBLEM.check(r["text"]) for r in replies) and len({r["text"] for r in replies}) == 1
            bad = {**body, "sampling_params": {"custom_params": {"zipage": {"budget": 1}}}}
            refused = pool.map(lambda _: httpx.post(f"{server.url}/generate", json=bad, timeout=300), range(6))
            assert all(r.status_code == 400 and "zipage.budget" in r.text for r in refused)
            assert zipage(server.url)["compressions"] >= 12 and zipage(server.url)["running"] == 0
