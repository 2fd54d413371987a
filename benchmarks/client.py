"""Sends problems to a server through its OpenAI-compatible API, all at once, and checks the answers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
import urllib.request

import openai

from benchmarks.reasoner import tasks


@dataclasses.dataclass(frozen=True)
class Reply:
    """One answered problem; token counts are the server's own (`usage`), seconds include waiting in its queue."""

    family: str
    right: bool
    prompt_tokens: int
    output_tokens: int
    seconds: float


async def ask_all(url: str, problems: list[tasks.Problem], max_tokens: int, on_reply=lambda reply: None) -> list[Reply]:
    """Greedy answers to all problems, in their order.  on_reply is called at each reply, in order of arrival."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=3600, max_retries=0) as client:

        async def ask(problem: tasks.Problem) -> Reply:
            start = time.monotonic()
            answer = await client.chat.completions.create(
                model="reasoner", messages=[{"role": "user", "content": problem.prompt}],
                temperature=0, max_tokens=max_tokens)
            right = problem.check(answer.choices[0].message.content)
            reply = Reply(problem.family, right, answer.usage.prompt_tokens, answer.usage.completion_tokens,
                          time.monotonic() - start)
            on_reply(reply)
            return reply

        async with asyncio.TaskGroup() as group:  # one failure cancels the others, so that no request outlives the call
            calls = [group.create_task(ask(p)) for p in problems]
    return [call.result() for call in calls]


def server_state(url: str) -> dict:
    """The scheduler's `internal_states` entry in /server_info, {} if the server gives none."""
    with urllib.request.urlopen(f"{url}/server_info", timeout=30) as reply:
        states = json.load(reply).get("internal_states") or [{}]
    return states[0]
