"""Everything a request can be, over a real server, while it is being compressed."""

import re
import threading
import time

import httpx
import pytest
from test_server import PROBLEM, chat, zipage

from benchmarks.reasoner import tasks

pytestmark = pytest.mark.xdist_group("server")

TEXT = PROBLEM.text
LONG = 260  # tokens: at least three compressions at budget 128, block 32


def generate(url, text=TEXT, **body):
    params = {"temperature": 0, "max_new_tokens": LONG, "skip_special_tokens": False, **body.pop("params", {})}
    reply = httpx.post(f"{url}/generate", json={"text": text, "sampling_params": params, **body}, timeout=300)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.fixture(autouse=True)
def was_compressed(url):
    before = zipage(url)["compressions"]
    yield
    assert zipage(url)["compressions"] > before, "this test must exercise compression"


def test_logprobs_one_per_token(url):
    meta = generate(url, return_logprob=True, top_logprobs_num=2)["meta_info"]
    assert meta["completion_tokens"] == LONG
    assert len(meta["output_token_logprobs"]) == len(meta["output_top_logprobs"]) == LONG
    assert all(p[0] <= 0 for p in meta["output_token_logprobs"])
    assert sum(p[0] for p in meta["output_token_logprobs"]) > -1.0, "greedy and certain: this model knows these tokens"


def test_stop_string_far_into_the_answer(url):
    whole = generate(url)["text"]
    mark = re.findall(r"# \d\d of", whole)[-1]
    reply = generate(url, params={"stop": [mark]})
    assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": mark}
    assert reply["text"] == whole[: whole.rindex(mark)]


def test_penalties_and_logit_bias_see_true_tokens(url):
    assert generate(url, params={"frequency_penalty": 1.5, "presence_penalty": 1.0})["text"] != generate(url)["text"]
    banned = generate(url, params={"logit_bias": {"2": -100.0}, "max_new_tokens": 600})["meta_info"]
    assert banned["finish_reason"]["type"] == "length", "the end token was banned"


def test_grammar(url):
    text = generate(url, params={"regex": r"([0-9][0-9] ?)+", "ignore_eos": True})["text"]
    assert len(re.findall(r"\d\d", text)) > 200 and re.fullmatch(r"[\d ]+", text)


def test_priority_and_parallel_samples(url):
    reply = generate(url, priority=5, params={"n": 3})
    assert len({r["text"] for r in reply}) == 1


def test_next_turn_keeps_the_prompt_cached(url):
    # Its own problem: other tests of this server leave the whole answer to the shared one in the tree, uncompressed.
    problem = tasks.gen("loop", "test-turns", level=300, n=5, lines=3, nvars=4, nconst=1, maxlag=1)
    first = httpx.post(f"{url}/v1/chat/completions", json=chat(problem), timeout=300).json()
    answer = first["choices"][0]["message"]["content"]
    body = chat(problem)
    body["messages"] += [{"role": "assistant", "content": answer}, {"role": "user", "content": problem.prompt}]
    prompt = first["usage"]["prompt_tokens"]
    for expected in (prompt // 16 * 16, None):
        reply = httpx.post(f"{url}/v1/chat/completions", json={**body, "max_tokens": LONG, "ignore_eos": True},
                           timeout=300).json()
        cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
        # The compressed answer is not in the tree, its exact prompt is; the second time all of this turn's prompt is.
        expected = expected or (reply["usage"]["prompt_tokens"] - 1) // 16 * 16
        assert cached == expected


def stream_in_thread(url, results, key, rid, tokens=400):
    def work():
        results[key] = generate(url, rid=rid, params={"max_new_tokens": tokens, "ignore_eos": True})

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def wait_for(condition, seconds=60):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def test_abort_in_the_middle(url):
    results = {}
    start = zipage(url)["compressions"]
    threads = [stream_in_thread(url, results, i, f"abort-{i}", tokens=3000) for i in range(3)]
    wait_for(lambda: zipage(url)["compressions"] >= start + 3)
    httpx.post(f"{url}/abort_request", json={"rid": "abort-1"}, timeout=30)
    threads[1].join(60)
    assert results[1]["meta_info"]["finish_reason"]["type"] == "abort"
    httpx.post(f"{url}/abort_request", json={"rid": "", "abort_all": True}, timeout=30)
    for t in threads:
        t.join(60)
    wait_for(lambda: zipage(url)["running"] == 0)
    time.sleep(1)  # idle: SGLang looks for leaks
    generate(url)


@pytest.mark.parametrize("mode", ["retract", "in_place"])
def test_pause_and_continue(url, mode):
    results = {}
    start, waited = zipage(url)["compressions"], zipage(url)["held_back_seconds"]
    threads = [stream_in_thread(url, results, i, f"pause-{mode}-{i}") for i in range(2)]
    wait_for(lambda: zipage(url)["compressions"] >= start + 2)
    assert httpx.post(f"{url}/pause_generation", json={"mode": mode}, timeout=60).status_code == 200
    time.sleep(0.5)
    assert not results
    held_back = 2 if mode == "retract" else 0
    assert zipage(url)["held_back"] == held_back
    assert httpx.post(f"{url}/continue_generation", json={}, timeout=60).status_code == 200
    for t in threads:
        t.join(120)
    for r in results.values():
        assert r["meta_info"]["completion_tokens"] == 400 and PROBLEM.check(r["text"])
    assert zipage(url)["held_back"] == 0
    assert held_back * 0.5 <= zipage(url)["held_back_seconds"] - waited <= held_back * 60


def test_weight_update_and_flush(url):
    generate(url)
    from harness import MODEL

    reply = httpx.post(f"{url}/update_weights_from_disk", json={"model_path": str(MODEL)}, timeout=120)
    assert reply.status_code == 200 and reply.json()["success"], reply.text
    assert httpx.post(f"{url}/flush_cache", timeout=30).status_code == 200
    fresh = generate(url)
    assert fresh["meta_info"]["cached_tokens"] == 0 and fresh["text"] == generate(url)["text"]
