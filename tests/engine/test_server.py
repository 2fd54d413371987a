"""A real server: OpenAI API with streaming, a client that leaves, n > 1, and what /server_info says."""

import json
import threading
import time

import httpx
import pytest

from benchmarks.reasoner import tasks

pytestmark = pytest.mark.xdist_group("server")

def zipage(url):
    return httpx.get(f"{url}/server_info", timeout=60).json()["internal_states"][0]["zipage"]


def chat(problem, **extra):
    return {"model": "reasoner", "messages": [{"role": "user", "content": problem.prompt}], "temperature": 0,
            "max_tokens": 600, **extra}


def stream(url, body, stop_after=None):
    text = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json={**body, "stream": True}, timeout=300) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: {"):
                text.append(json.loads(line[6:])["choices"][0]["delta"].get("content") or "")
            if stop_after and len(text) >= stop_after:
                break
    return "".join(text)


# Its steps never look back further than the budget, so `recent` loses nothing: the answer must be right.
PROBLEM = tasks.gen("loop", "test-1", level=300, n=5, lines=3, nvars=4, nconst=1, maxlag=1)


def test_streamed_text_is_the_whole_text_and_right(url):
    whole = httpx.post(f"{url}/v1/chat/completions", json=chat(PROBLEM), timeout=300).json()
    content = whole["choices"][0]["message"]["content"]
    assert whole["usage"]["completion_tokens"] > 128 + 32
    assert PROBLEM.check(content)
    assert stream(url, chat(PROBLEM)) == content
    assert zipage(url)["compressions"] > 0


def test_a_client_that_leaves_frees_everything(url):
    body = chat(PROBLEM, max_tokens=3000, ignore_eos=True)
    clients = [threading.Thread(target=stream, args=(url, body, 40 * (i + 1))) for i in range(6)]
    for c in clients:
        c.start()
    for c in clients:
        c.join()
    deadline = time.monotonic() + 60
    while zipage(url)["running"] and time.monotonic() < deadline:
        time.sleep(0.5)
    assert zipage(url)["running"] == 0
    time.sleep(1)  # SGLang checks pool and rows when it is idle, and dies of a leak
    assert httpx.post(f"{url}/flush_cache", timeout=30).status_code == 200
    assert PROBLEM.check(stream(url, chat(PROBLEM)))


def test_many_samples_of_one_prompt(url):
    before = zipage(url)["compressions"]
    reply = httpx.post(f"{url}/v1/chat/completions", json=chat(PROBLEM, n=3), timeout=300).json()
    texts = [c["message"]["content"] for c in reply["choices"]]
    assert len(texts) == 3 and all(PROBLEM.check(t) for t in texts)
    assert zipage(url)["compressions"] > before + 2
