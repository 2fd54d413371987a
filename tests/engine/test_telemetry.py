"""What an operator and a client see of compressions: Prometheus series, and meta_info of an answer."""

import json
import time

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_server import zipage

pytestmark = pytest.mark.xdist_group("server")
PROMPT = list(range(8, 60))


def generate(url, tokens, **extra):
    body = {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True}} | extra
    return httpx.post(f"{url}/generate", json=body, timeout=300)


def metrics(url):
    """{sample name: (labels, value)} of the series with zipage's prefix, and of one of SGLang's."""
    families = text_string_to_metric_families(httpx.get(f"{url}/metrics", timeout=60).text)
    return {s.name: (s.labels, s.value) for f in families for s in f.samples if s.name.startswith(("zipage:", "sglang:num_running"))}


def test_meta_info_of_an_answer(url):
    """Budget 128, block 32: compressed at 160, 192, ... output tokens."""
    for tokens, compressions in ((150, 0), (161, 1), (260, 4)):
        info = generate(url, tokens).json()["meta_info"]
        (said,) = info["zipage"]
        assert said == {"budget": 128, "compressions": compressions, "evicted_tokens": 32 * compressions,
                        "kv_len": len(PROMPT) + tokens - 32 * compressions}


def test_meta_info_of_a_stream_comes_with_its_end(url):
    reply = generate(url, 200, stream=True)
    parts = [json.loads(line[6:]) for line in reply.text.splitlines() if line.startswith("data: {")]
    assert len(parts) > 10 and parts[-1]["meta_info"]["zipage"][0]["compressions"] == 2
    assert all(not part["meta_info"].get("zipage") for part in parts[:-1])


def test_prometheus_series(url):
    before, began = metrics(url), zipage(url)
    for tokens in (150, 161, 260):
        assert generate(url, tokens).status_code == 200
    time.sleep(1.5)
    after, now = metrics(url), zipage(url)
    labels, _ = after["sglang:num_running_reqs"]

    def grown(name):
        return after[name][1] - before.get(name, ({}, 0.0))[1]

    for series, field in (("compressions", "compressions"), ("evicted_tokens", "evicted_tokens"), ("freed_slots", "freed_slots")):
        name = f"zipage:{series}_total"
        assert all(after[name][0][label] == labels[label] for label in ("model_name", "engine_type", "tp_rank"))
        assert after[name][1] == now[field] and grown(name) == now[field] - began[field]
    assert grown("zipage:compressions_total") == 5 and grown("zipage:compression_seconds_total") > 0
    assert grown("zipage:resident_tokens_count") == 3
    assert grown("zipage:resident_tokens_sum") == 3 * len(PROMPT) + 150 + 161 + 260 - 5 * 32
    assert grown("zipage:true_tokens_sum") == 3 * len(PROMPT) + 150 + 161 + 260
    assert after["zipage:query_slots"][1] == now["query_slots"] and after["zipage:query_slots_used"][1] == 0
    assert after["zipage:concurrency_bound"][1] == 4096 // (128 + 32 + 16) and after["zipage:compressed_reqs"][1] == 0
