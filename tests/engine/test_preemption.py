"""Priorities: a newcomer takes the place of one compressed request, not of all, and the victim's answer stays right."""

import concurrent.futures
import time

import httpx
import pytest
from harness import CHECKS, MODEL
from test_server import zipage

from benchmarks.reasoner import tasks
from benchmarks.server import Server

FLAGS = ["--model-path", str(MODEL), "--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph", "--dtype",
         "float32", "--max-total-tokens", "2000", "--page-size", "4", "--enable-zipage", "--zipage-budget", "128", "--zipage-block", "32",
         "--zipage-policy", "recent", "--enable-priority-scheduling", "--max-running-requests", "4"]
# Steps that never look back further than the budget: the answers must be right.  The newcomer's is over long before the others'.
PROBLEMS = [tasks.gen("loop", f"test-priority-{i}", level=500, n=n, lines=3, nvars=4, nconst=1, maxlag=1)
            for i, n in enumerate([15] * 4 + [3])]


def ask(url, problem, priority, **params):
    body = {"text": problem.text, "priority": priority, "sampling_params": {"temperature": 0, "max_new_tokens": 2500, **params}}
    reply = httpx.post(f"{url}/generate", json=body, timeout=300)
    assert reply.status_code == 200, reply.text
    return reply.json(), time.monotonic()


def wait_until(url, condition):
    deadline = time.monotonic() + 120
    while not condition(zipage(url)):
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


@pytest.mark.full
def test_one_bounded_request_makes_room(tmp_path):
    with pytest.MonkeyPatch.context() as patch, concurrent.futures.ThreadPoolExecutor(5) as pool:
        for name, value in CHECKS.items():
            patch.setenv(name, value)
        with Server(FLAGS, tmp_path / "server.log") as server:
            low = [pool.submit(ask, server.url, p, 0) for p in PROBLEMS[:4]]
            wait_until(server.url, lambda info: info["running"] == 4 and info["compressions"] >= 4)
            # Unbounded it would need 2,500 tokens, which no number of victims that hold 220 each could give.
            reply, when = ask(server.url, PROBLEMS[4], 100)
            assert PROBLEMS[4].check(reply["text"])
            answers = [future.result() for future in low]
            assert all(p.check(a["text"]) for p, (a, _) in zip(PROBLEMS, answers))
            assert max(t for _, t in answers) > when
            info = zipage(server.url)
            assert info["retractions"] == 1, "one place was asked for"
