"""Two GPUs: the answers of one, as far as bf16 lets plain SGLang agree with itself; the invariant checker compares what the ranks
decide at every step."""

import concurrent.futures

import pytest
import torch
from test_engine import GPU, METHOD, UNCHECKED, agreement, finished, ok, problems, report, right, rounds, run_engine

if torch.cuda.device_count() < 2:
    pytest.skip("needs two CUDA GPUs", allow_module_level=True)

# NVLink multicast and peer access are not to be had on every host; NCCL works everywhere.
TP = dict(tp_size=2, disable_custom_all_reduce=True)
NCCL = {"NCCL_NVLS_ENABLE": "0"}
SETTINGS = {
    "full-base": (GPU, UNCHECKED),
    "full-tp": (GPU | TP, UNCHECKED | NCCL),
    "base": (GPU | METHOD, UNCHECKED),
    "tp": (GPU | METHOD | TP, UNCHECKED | NCCL),
    "tp-checked-retract": (GPU | METHOD | TP | dict(page_size=16),
                           NCCL | {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "50"}),
    "tp-no-overlap": (GPU | METHOD | TP | dict(disable_overlap_schedule=True), NCCL),
    "tp-async": (GPU | METHOD | TP | dict(zipage_async_steps=2), NCCL),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tp")
    with concurrent.futures.ThreadPoolExecutor(len(SETTINGS)) as pool:
        futures = {n: pool.submit(run_engine, folder / n, rounds(), env=e, timeout=420, **kw) for n, (kw, e) in SETTINGS.items()}
        results = finished(futures)
    for name, run in results.items():
        report(name, run, results)
    return results


@pytest.mark.parametrize("name", ["tp", "tp-checked-retract", "tp-no-overlap", "tp-async"])
def test_two_ranks(runs, name):
    run = ok(runs, name)
    assert run.info["compressions"] >= 100 and run.info["nan_scores"] == 0 and run.flushed
    assert right(run) >= right(ok(runs, "base")) - 2
    if name == "tp":
        plain = agreement(ok(runs, "full-tp"), ok(runs, "full-base"))
        assert agreement(run, ok(runs, "base")) >= min(0.75, plain - 2 / len(problems()))
