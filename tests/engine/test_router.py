"""Several servers behind SGLang's own router (sglang-router): conversations stay where their prefix is cached, and a worker
that dies costs retries or errors, never a wrong token."""

import concurrent.futures
import contextlib
import sys
import time

import httpx
import pytest
from harness import CHECKS, MODEL
from test_server import zipage

from benchmarks.reasoner import tasks
from benchmarks.server import Server, _free_port

pytestmark = pytest.mark.full
FLAGS = ["--model-path", str(MODEL), "--device", "cpu", "--dtype", "float32", "--disable-cuda-graph",
         "--max-total-tokens", "8192", "--page-size", "16", "--enable-zipage", "--zipage-budget", "128",
         "--zipage-block", "32", "--zipage-policy", "recent", "--enable-cache-report"]
PAGE = 16


def problems(n, name):
    """Steps that never look back further than the budget: `recent` loses nothing and the answers must be right."""
    return [tasks.gen("loop", f"test-router-{name}-{i}", level=300, n=5, lines=3, nvars=4, nconst=1, maxlag=1) for i in range(n)]


PROBLEMS = problems(6, "")


class Router(Server):
    def __init__(self, workers, log_path):
        flags = ["--worker-urls", *(w.url for w in workers), "--policy", "cache_aware", "--prometheus-port", str(_free_port()),
                 "--health-check-interval-secs", "3", "--health-check-timeout-secs", "20", "--health-failure-threshold", "2",
                 "--health-success-threshold", "1", "--cb-timeout-duration-secs", "2"]
        super().__init__(flags, log_path, start_seconds=120)

    @property
    def command(self):
        return [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(self.port), *self.flags]


def ask(url, text, tokens=600, **params):
    body = {"text": text, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, **params}}
    return httpx.post(f"{url}/generate", json=body, timeout=300)


def answers(url, texts):
    """Replies of all texts, asked at once."""
    with concurrent.futures.ThreadPoolExecutor(len(texts)) as pool:
        return list(pool.map(lambda text: ask(url, text), texts))


def compressions(workers):
    return [zipage(w.url)["compressions"] for w in workers]


def test_two_workers_behind_the_router(tmp_path):
    pytest.importorskip("sglang_router", reason="no router here (pip install 'zipage-sglang[router]')")
    with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
        for name, value in CHECKS.items():
            patch.setenv(name, value)
        workers = [stack.enter_context(Server(FLAGS, tmp_path / f"worker{n}.log")) for n in range(2)]
        router = stack.enter_context(Router(workers, tmp_path / "router.log"))
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and ask(router.url, PROBLEMS[0].text, 1).status_code != 200:
            time.sleep(0.5)

        # First turns: right, compressed, on both workers.
        first = [reply.json() for reply in answers(router.url, [p.text for p in PROBLEMS])]
        assert all(p.check(reply["text"]) for p, reply in zip(PROBLEMS, first))
        assert all(reply["meta_info"]["zipage"][0]["compressions"] > 0 for reply in first)
        assert min(compressions(workers)) > 0, "one worker did everything"

        # Second turns: the prompt, what was answered (templates of reasoning models leave the reasoning out) and a new problem.
        # What is cached is the first prompt; it is also what the router remembers, and must be 30 % of what it compares.
        answered = [reply["text"][-30:] for reply in first]
        texts = [p.text + answer + PROBLEMS[i - 1].text for i, (p, answer) in enumerate(zip(PROBLEMS, answered))]
        second = [ask(router.url, text, 40, ignore_eos=True).json()["meta_info"] for text in texts]
        for reply, meta in zip(first, second):
            prompt = reply["meta_info"]["prompt_tokens"]
            assert meta["cached_tokens"] >= (prompt - 1) // PAGE * PAGE > 2 * PAGE, "the turn went to the other worker"

        # A worker is killed while it has requests.
        expected = [reply["text"] for reply in first]
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(answers, router.url, [p.text for p in PROBLEMS])
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline and not zipage(workers[0].url)["running"]:
                time.sleep(0.1)
            assert zipage(workers[0].url)["running"] > 0
            workers[0].stop()
            during = under_way.result()
        check_no_wrong_token(during, expected)
        time.sleep(8)  # the router's health checks have found out
        check_no_wrong_token(answers(router.url, [p.text for p in PROBLEMS]), expected, errors=0)

        # Another takes its place, at another address; new conversations go there, too.
        fresh = stack.enter_context(Server(FLAGS, tmp_path / "worker2.log"))
        assert httpx.post(f"{router.url}/workers", json={"url": fresh.url}, timeout=60).is_success
        deadline, n = time.monotonic() + 120, 0
        while time.monotonic() < deadline and not zipage(fresh.url)["compressions"]:
            some, n = problems(4, f"new-{n}"), n + 1
            replies = answers(router.url, [p.text for p in some])
            assert all(reply.status_code == 200 and p.check(reply.json()["text"]) for p, reply in zip(some, replies))
        assert zipage(fresh.url)["compressions"] > 0, "the new worker gets nothing"
        left, deadline = (fresh, workers[1]), time.monotonic() + 30  # health checks of the router are requests, too
        while time.monotonic() < deadline and any(zipage(w.url)["running"] for w in left):
            time.sleep(0.2)
        assert not any(zipage(w.url)["running"] for w in left), "a request is left"


def check_no_wrong_token(replies, expected, errors=None):
    """errors: how many replies may be HTTP errors, None: any number but all."""
    right = [reply.json()["text"] == text for reply, text in zip(replies, expected) if reply.status_code == 200]
    assert all(right) and len(right) >= (len(expected) - errors if errors is not None else 1)
    assert all(reply.status_code in (200, 500, 502, 503, 504) for reply in replies), [reply.status_code for reply in replies]
