"""Settings of single requests as clients send them: /generate, an OpenAI client, a frontend program.  The server's own: budget 128,
block 32, `recent`, pages of 16."""

import httpx
import openai
import pytest
import sglang as sgl
from test_server import PROBLEM, chat, zipage
from test_telemetry import PROMPT, generate

from zipage_sglang.frontend import RuntimeEndpoint

pytestmark = pytest.mark.xdist_group("server")
TOKENS = 200  # compressed twice with the server's settings


def ask(url, asked, tokens=TOKENS, **extra):
    params = {"temperature": 0, "max_new_tokens": tokens, "ignore_eos": True, "custom_params": {"zipage": asked}}
    return generate(url, tokens, sampling_params=params, **extra)


@pytest.fixture(scope="module")
def client(url):
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def compressions(url, act):
    before = zipage(url)["compressions"]
    result = act()
    return result, zipage(url)["compressions"] - before


@pytest.mark.parametrize("asked, says", [
    ({"budget": 100}, "custom_params.zipage.budget: must be a multiple of the page size 16, such as 112, got 100"),
    ({"budget": 144}, "custom_params.zipage.budget: at most 128 on this server"),
    ({"policy": "zipage"}, "custom_params.zipage.policy: 'zipage' needs a table"),
    ({"window": 4}, "custom_params.zipage.window: a request can set enabled, budget"),
    ("off", "custom_params.zipage: must be an object"),
    ({"budget": {"deep": [{}]}}, "custom_params.zipage.budget: must be an integer"),
])
def test_what_cannot_be_had_is_a_bad_request(url, asked, says):
    reply = ask(url, asked, tokens=8)
    assert reply.status_code == 400 and says in reply.json()["error"]["message"], reply.text
    assert ask(url, {"budget": 64}, tokens=8).status_code == 200


def test_one_batch_of_different_settings(url):
    asked = [{"enabled": False}, {"budget": 64, "policy": "attention"}, {}, {"budget": 32, "recency": 0.25}]
    params = [{"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True, "custom_params": {"zipage": a}} for a in asked]
    body = {"input_ids": [PROMPT] * 4, "sampling_params": params}
    said = [reply["meta_info"]["zipage"][0] for reply in httpx.post(f"{url}/generate", json=body, timeout=300).json()]
    assert [(s.get("enabled"), s.get("budget"), s["compressions"]) for s in said] == [
        (False, None, 0), (None, 64, 4), (None, 128, 2), (None, 32, 5)]
    assert [s["kv_len"] for s in said] == [len(PROMPT) + TOKENS - 32 * n for n in (0, 4, 2, 5)]


def test_openai_client(url, client):
    def answer(**extra_body):
        body = chat(PROBLEM)
        reply = client.chat.completions.create(**body, extra_body=extra_body)
        assert PROBLEM.check(reply.choices[0].message.content) and reply.usage.completion_tokens > TOKENS
        return reply.usage.completion_tokens

    tokens, usual = compressions(url, answer)
    assert usual == (tokens - 1 - 128) // 32
    assert compressions(url, lambda: answer(custom_params={"zipage": {"enabled": False}})) == (tokens, 0)
    assert compressions(url, lambda: answer(custom_params={"zipage": {"budget": 112}})) == (tokens, (tokens - 1 - 112) // 32)

    def complete():
        return client.completions.create(model="reasoner", prompt=PROBLEM.text, max_tokens=TOKENS, temperature=0,
                                         extra_body={"ignore_eos": True, "custom_params": {"zipage": {"budget": 64}}})

    assert compressions(url, complete)[1] == 4


@pytest.mark.parametrize("stream", [False, True])
def test_openai_client_gets_the_reason(client, stream):
    bad = {"custom_params": {"zipage": {"enabled": False, "budget": 100}}}
    with pytest.raises(openai.APIError, match="zipage.budget: must be a multiple of the page size 16") as error:
        for _ in client.chat.completions.create(**chat(PROBLEM), stream=stream, extra_body=bad):
            pass
    assert stream or error.value.status_code == 400


def test_frontend_program(url):
    @sgl.function
    def solve(s, question):
        s += question
        s += sgl.gen("answer", max_tokens=600, temperature=0, stop="<|eos|>")

    def run(backend, stream=False):
        state = solve.run(question=PROBLEM.text, backend=backend, stream=stream)
        return "".join(state.text_iter("answer")) if stream else state["answer"]

    text, n = compressions(url, lambda: run(RuntimeEndpoint(url, zipage={"enabled": False})))
    assert PROBLEM.check(text) and n == 0
    text, n = compressions(url, lambda: run(RuntimeEndpoint(url, zipage={"budget": 112}), stream=True))
    assert PROBLEM.check(text) and n > 0
