"""Sends problems to a server's OpenAI-compatible API and hands every reply over as it comes."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
import urllib.request

import openai

from benchmarks.datasets.problem import Problem
from benchmarks.replies import Reply

TIMEOUT = 24 * 3600.0  # seconds; a request may wait in the server's queue for hours


@dataclasses.dataclass(frozen=True)
class Sampling:
    """max_tokens: output tokens at most.  system: system prompt or None."""

    temperature: float
    top_p: float
    max_tokens: int
    system: str | None = None


async def ask_all(url: str, todo: list[tuple[Problem, int]], sampling: Sampling, concurrency: int, on_reply):
    """At most `concurrency` requests at once.  on_reply(reply) is called in order of arrival.

    A request that the server refuses (a prompt beyond its context) becomes a reply with an error; a server that is gone raises
    openai.APIConnectionError, one that fails openai.InternalServerError (in an ExceptionGroup).
    """
    gate = asyncio.Semaphore(concurrency)
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client:

        async def ask(problem: Problem, sample: int):
            async with gate:
                on_reply(await _ask(client, problem, sample, sampling))

        async with asyncio.TaskGroup() as group:  # one failure cancels the others
            for problem, sample in todo:
                group.create_task(ask(problem, sample))


async def _ask(client: openai.AsyncOpenAI, problem: Problem, sample: int, sampling: Sampling) -> Reply:
    messages = [*([{"role": "system", "content": sampling.system}] if sampling.system else []), *problem.messages]
    start = time.monotonic()
    try:
        answer = await client.chat.completions.create(
            model="default", messages=messages, temperature=sampling.temperature, top_p=sampling.top_p, max_tokens=sampling.max_tokens)
    except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
        return Reply(problem.id, sample, problem.digest, error=str(error)[:500])
    choice = answer.choices[0]
    thoughts = getattr(choice.message, "reasoning_content", None)  # servers with --reasoning-parser split it off
    text = (f"{thoughts}</think>" if thoughts else "") + (choice.message.content or "")
    return Reply(problem.id, sample, problem.digest, text, choice.finish_reason or "", answer.usage.prompt_tokens,
                 answer.usage.completion_tokens, time.monotonic() - start)


def server_info(url: str) -> dict:
    """/server_info.  Raises OSError."""
    with urllib.request.urlopen(f"{url}/server_info", timeout=60) as reply:
        return json.load(reply)


def zipage_totals(info: dict) -> dict:
    """zipage's counters in a /server_info, summed over data-parallel ranks, and its `config`; {} with full KV."""
    states = [s["zipage"] for s in info.get("internal_states") or [] if "zipage" in s]
    if not states:
        return {}
    return {name: sum(s[name] for s in states) for name in ("compressions", "evicted_tokens", "retractions")} | {
        "config": states[0]["config"]}
