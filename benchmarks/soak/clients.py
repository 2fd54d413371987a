"""Clients of a soak: they ask, stream, hang up, abort, and say what was wrong with what they got."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random

import aiohttp

from benchmarks import engines
from benchmarks.reasoner import tasks
from benchmarks.reasoner.knobs import make_problems

END = {"stop_token_ids": [engines.EOS], "temperature": 0}


@dataclasses.dataclass
class Question:
    """expected: token ids of its answer on an idle server, None if unknown.  most: output tokens at which it is cut off."""

    problem: tasks.Problem
    most: int
    expected: list[int] | None = None

    @property
    def ids(self) -> list[int]:
        return self.problem.ids()[0]


@dataclasses.dataclass
class Totals:
    """Requests by how they ended, and of the whole answers: [right, all] with and without a retraction.  compared: with the answer
    of the idle server, token by token.  wrong: what must not be, a line each."""

    answered: int = 0
    aborted: int = 0
    left: int = 0
    output_tokens: int = 0
    compared: int = 0
    retracted: int = 0
    steady: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    recomputed: list[int] = dataclasses.field(default_factory=lambda: [0, 0])
    wrong: list[str] = dataclasses.field(default_factory=list)


class ServerEnded(RuntimeError):
    """The server's process has ended."""


class Gone(Exception):
    """The request was aborted before it began to run; SGLang has no answer for it then."""


class Clients:
    """url: a server with --skip-tokenizer-init.  compare: whether answers are those of the idle server.  totals: right at any time,
    also after an exception.  count: requests sent.  closing: whether what is left may be aborted."""

    def __init__(self, url: str, questions: list[Question], level: int, compare: bool, seed: int):
        self.url, self.questions, self.level, self.compare = url, questions, level, compare
        self.rng, self.totals, self.count, self.seed = random.Random(seed), Totals(), 0, seed
        self.closing = False

    async def run(self, clients: int, seconds: float, drain: float, alive=lambda: True):
        """`clients` at once for `seconds`, then until the last answer, which comes at once when `drain` seconds are over: everybody is
        aborted then.  alive: whether the server's process runs; raises an ExceptionGroup with ServerEnded when it does not."""
        deadline = asyncio.get_running_loop().time() + seconds
        timeout = aiohttp.ClientTimeout(total=900)  # a request without an answer for so long is lost
        # A connection each: a server may close one that has been idle while the next request is under way on it.
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as self.session:
            async with asyncio.TaskGroup() as group:
                watch = group.create_task(self._watch(alive))
                asking = [group.create_task(self._client(deadline)) for _ in range(clients)]
                asking.append(group.create_task(self._operator(deadline)))
                await asyncio.wait(asking, timeout=seconds + drain)
                self.closing = True
                while not all(task.done() for task in asking):  # more than once: one may have been on its way
                    await self._abort("", 0, abort_all=True)
                    await asyncio.wait(asking, timeout=5)
                watch.cancel()

    async def ask_alone(self):
        """Fill in what an idle server answers."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=900)) as self.session:
            for question in self.questions:
                reply = await self._post("generate", {"input_ids": question.ids, "sampling_params": {
                    **END, "max_new_tokens": question.most}})
                question.expected = reply["output_ids"]

    async def _watch(self, alive):
        while alive():
            await asyncio.sleep(1)
        raise ServerEnded

    async def _client(self, deadline: float):
        now = asyncio.get_running_loop().time
        while now() < deadline:
            await asyncio.sleep(self.rng.expovariate(4.0))
            question, most = self._question()
            self.count += 1
            rid = f"soak-{self.seed}-{self.count:07d}"  # of one width: an abort takes every id that starts with its own
            body = {"input_ids": question.ids, "rid": rid, "sampling_params": {**END, "max_new_tokens": most}}
            kind = self.rng.choices(["whole", "stream", "leave", "abort"], [4, 3, 1, 1])[0]
            try:
                if kind == "leave":
                    await self._leave(body, self.rng.randint(1, 40))
                    self.totals.left += 1
                else:
                    abort = asyncio.create_task(self._abort(rid, self.rng.uniform(0, 6))) if kind == "abort" else None
                    try:
                        reply = await (self._stream(body) if kind == "stream" else self._post("generate", body))
                        self._check(rid, question, most, reply, kind == "abort" or self.closing)
                    except Gone:
                        self._gone(rid, kind == "abort" or self.closing)
                    if abort is not None:
                        await abort
            except (aiohttp.ClientError, TimeoutError, KeyError, ValueError) as error:
                self.totals.wrong.append(f"{rid} ({kind}): {type(error).__name__}: {error}"[:300])
                await asyncio.sleep(1)

    async def _operator(self, deadline: float):
        """Pauses the server now and then, and asks it to flush while it is busy."""
        now = asyncio.get_running_loop().time
        while now() < deadline:
            await asyncio.sleep(min(self.rng.uniform(15, 45), max(0.0, deadline - now())))
            mode = self.rng.choices(["in_place", "retract"], [4, 1])[0]  # the second retracts all that run
            try:
                await self._post("pause_generation", {"mode": mode})
                await asyncio.sleep(0.5)
                await self._post("continue_generation", {})
                async with self.session.post(f"{self.url}/flush_cache"):
                    pass  # refused while requests run
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                self.totals.wrong.append(f"pause and flush: {type(error).__name__}: {error}"[:300])

    def _question(self) -> tuple[Question, int]:
        """One that many ask, or (a fifth) one of its own; answered whole, or cut off somewhere."""
        question = self.rng.choice(self.questions)
        if self.rng.random() < 0.2:
            family = self.rng.choice(tasks.FAMILIES)
            (problem,) = make_problems(family, self.level, 1, "short", f"soak-{self.seed}-{self.count}")
            question = Question(problem, question.most)
        return question, question.most if self.rng.random() < 0.6 else self.rng.randint(1, question.most)

    async def _post(self, path: str, body: dict) -> dict:
        async with self.session.post(f"{self.url}/{path}", json=body) as reply:
            if reply.status == 499:
                raise Gone
            if reply.status != 200:
                raise ValueError(f"HTTP {reply.status}: {(await reply.text())[:200]}")
            return await reply.json(content_type=None)

    async def _stream(self, body: dict) -> dict:
        """The last event, with all tokens; raises ValueError if a later event takes something back."""
        last: dict = {"output_ids": []}
        async with self.session.post(f"{self.url}/generate", json={**body, "stream": True}) as reply:
            async for line in reply.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    if event["output_ids"][: len(last["output_ids"])] != last["output_ids"]:
                        raise ValueError("the stream took back tokens")
                    last = event
        return last

    async def _leave(self, body: dict, events: int):
        """Hangs up after so many events."""
        async with self.session.post(f"{self.url}/generate", json={**body, "stream": True}) as reply:
            async for line in reply.content:
                events -= line.startswith(b"data: {")
                if events < 0:
                    reply.close()
                    return

    async def _abort(self, rid: str, seconds: float, **more):
        await asyncio.sleep(seconds)
        async with self.session.post(f"{self.url}/abort_request", json={"rid": rid, **more}):
            pass

    def _gone(self, rid: str, may_abort: bool):
        self.totals.aborted += may_abort
        if not may_abort:
            self.totals.wrong.append(f"{rid}: aborted, though nobody asked for that")

    def _check(self, rid: str, question: Question, most: int, reply: dict, may_abort: bool):
        totals, ids, info = self.totals, reply["output_ids"], reply["meta_info"]
        reason, retracted = info["finish_reason"]["type"], info.get("num_retractions", 0)
        totals.output_tokens += len(ids)
        totals.retracted += retracted > 0
        whole = reason == "stop" and ids and ids[-1] == engines.EOS or reason == "length" and len(ids) == most
        if reason == "abort" and may_abort:
            totals.aborted += 1
        elif whole and info["completion_tokens"] == len(ids):
            totals.answered += 1
        else:
            totals.wrong.append(f"{rid}: {len(ids)} of {most} tokens, {info['finish_reason']}"[:300])
        if whole and most == question.most:
            group = totals.recomputed if retracted else totals.steady
            group[0] += question.problem.check(engines.detokenize(ids))
            group[1] += 1
        if self.compare and question.expected is not None and not retracted:
            totals.compared += 1
            if ids != question.expected[: len(ids)]:
                totals.wrong.append(f"{rid}: other tokens than on an idle server")
