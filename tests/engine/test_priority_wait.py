"""Few query slots, one compression a step, priorities that preempt: once nobody of higher priority comes, everybody ends in time."""

import concurrent.futures
import time

import httpx
import pytest
from harness import CHECKS, MODEL
from test_server import zipage

from benchmarks.reasoner import tasks
from benchmarks.server import Server

SLOTS, PLACES, BLOCK = 2, 4, 32
FLAGS = ["--model-path", str(MODEL), "--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph", "--dtype",
         "float32", "--max-total-tokens", "2000", "--enable-zipage", "--zipage-budget", "64", "--zipage-block", str(BLOCK),
         "--zipage-window", "8", "--zipage-query-slots", str(SLOTS), "--zipage-max-compress", "1", "--enable-priority-scheduling",
         "--max-running-requests", str(PLACES)]
LOW, HIGH = 400, 100  # tokens


def ask(client, url, name, priority, tokens):
    problem = tasks.gen("ram", f"test-{name}", level=300)
    params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}
    reply = client.post(f"{url}/generate", json={"text": problem.text, "priority": priority, "sampling_params": params})
    assert reply.status_code == 200, reply.text
    return reply.json()["meta_info"], zipage(url)["steps"]


def wait_until(url, condition):
    deadline = time.monotonic() + 120
    while not condition(zipage(url)):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def bound(tokens):
    """Steps of one request that never waits for another, as in tests/unit/test_bounded_wait.py."""
    return tokens + (tokens // BLOCK + 2) * (2 + SLOTS)


@pytest.mark.full
def test_the_lowest_priority_ends_in_time(tmp_path):
    with pytest.MonkeyPatch.context() as patch, concurrent.futures.ThreadPoolExecutor(16) as pool:
        for name, value in CHECKS.items():
            patch.setenv(name, value)
        with Server(FLAGS, tmp_path / "server.log") as server, httpx.Client(timeout=300) as client:
            low = [pool.submit(ask, client, server.url, f"low-{i}", 0, LOW) for i in range(PLACES + 1)]
            wait_until(server.url, lambda info: info["compressions"] >= 4)
            for n in range(2):
                high = [pool.submit(ask, client, server.url, f"high-{n}-{i}", 100, HIGH) for i in range(PLACES)]
                last = zipage(server.url)["steps"]
                early = [future.result() for future in high]
            assert sum(future.done() for future in low) < len(low), "there must be somebody who waits"
            answers = [future.result() for future in low]
            info = zipage(server.url)
    assert all(meta["completion_tokens"] == LOW for meta, _ in answers) and all(meta["completion_tokens"] == HIGH for meta, _ in early)
    assert info["retractions"] >= 2 and info["parked"] >= 10 and info["query_slots"] == SLOTS
    left = [bound(LOW)] * len(low) + [bound(HIGH)] * PLACES
    steps = max(step for _, step in answers) - last
    print(f"{steps} steps after the last of higher priority came")
    assert 100 < steps <= sum(left) / SLOTS + max(left)
