"""Sends a workload to a running server, and writes down when every request's tokens came."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re
import resource
import time

import aiohttp

from benchmarks.client import server_state
from benchmarks.report.workloads import Load

SAMPLE_SECONDS = 1.0  # between two looks at the plugin's counters
_TOKENS = re.compile(rb'"completion_tokens":\s*(\d+)')


class RequestFailed(RuntimeError):
    """The server did not answer a request as it should; the message says how."""


@dataclasses.dataclass
class Sent:
    """One request.  sent, first, last: s since the start at which it was sent, and its first and latest tokens came;
    tokens: of its output so far; times: of each of them, for probes."""

    question: int
    prompt_tokens: int
    wanted: int
    sent: float | None = None
    first: float | None = None
    last: float | None = None
    tokens: int = 0
    times: list[float] = dataclasses.field(default_factory=list)

    @property
    def finished(self) -> bool:
        return self.tokens == self.wanted


@dataclasses.dataclass
class Course:
    """What happened.  seconds: until the last request ended, or the time was up.  samples: [{"time", "zipage": counters}],
    the first before the load.  interrupted: by Ctrl-C."""

    requests: list[Sent]
    seconds: float = 0.0
    samples: list[dict] = dataclasses.field(default_factory=list)
    interrupted: bool = False

    @property
    def output_tokens(self) -> int:
        return sum(r.tokens for r in self.requests)


def drive(
    url: str, load: Load, seconds: float, stream_interval: int, probes: int, on_progress=lambda course: None
) -> Course:
    """Runs `load` until all is answered, `seconds` are over, or Ctrl-C; what still runs then is aborted.  Raises
    RequestFailed."""
    course = Course([Sent(r.question, len(load.prompts[r.question]), r.output) for r in load.requests])
    set_ulimit()  # a socket a request
    try:
        asyncio.run(_drive(url, load, seconds, stream_interval, probes, on_progress, course))
    except (aiohttp.ClientError, OSError) as error:
        raise RequestFailed(f"{type(error).__name__}: {error}") from None
    return course


def set_ulimit():
    """As many open files as this process may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _drive(url, load: Load, seconds: float, stream_interval: int, probes: int, on_progress, course: Course):
    # The longest of the first: they run from the start and to the end.
    probed = set(sorted(range(min(16, len(load.requests))), key=lambda i: -load.requests[i].output)[:probes])
    course.samples.append(dict(time=0.0, zipage=(await asyncio.to_thread(server_state, url)).get("zipage")))
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
        start = time.monotonic()
        clock = lambda: time.monotonic() - start

        async def one(n: int):
            request, record = load.requests[n], course.requests[n]
            await asyncio.sleep(max(0.0, request.arrival - clock()))
            body = dict(
                input_ids=load.prompts[request.question],
                stream=True,
                sampling_params=dict(
                    temperature=0.6,
                    max_new_tokens=request.output,
                    ignore_eos=True,
                    stream_interval=1 if n in probed else stream_interval,
                ),
            )
            record.sent = clock()
            async with session.post(f"{url}/generate", json=body) as reply:
                if reply.status != 200:
                    raise RequestFailed(f"HTTP {reply.status}: {(await reply.text())[:500]}")
                async for line in reply.content:
                    _take(record, line, clock(), n in probed)
            if not record.finished:
                raise RequestFailed(f"a request ended after {record.tokens} of {record.wanted} tokens")

        async def look():
            state = await asyncio.to_thread(server_state, url)
            course.samples.append(dict(time=clock(), zipage=state.get("zipage")))

        tasks = [asyncio.create_task(one(n)) for n in range(len(load.requests))]
        try:
            while (left := seconds - clock()) > 0 and not all(t.done() for t in tasks):
                done, _ = await asyncio.wait(tasks, timeout=min(left, SAMPLE_SECONDS), return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()  # raises what the request raised
                with contextlib.suppress(OSError):  # a busy server may answer late; the next look will do
                    await look()
                on_progress(course)
        except asyncio.CancelledError:  # Ctrl-C; asyncio.run would raise KeyboardInterrupt if this went on
            course.interrupted = True
        course.seconds = clock()
        if all(r.finished for r in course.requests):
            course.seconds = max(r.last for r in course.requests)
        with contextlib.suppress(OSError):
            await look()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await _calm(session, url)


def _take(record: Sent, line: bytes, now: float, probe: bool):
    """One line of the stream: `data: {...}`."""
    match = _TOKENS.search(line)
    if match is None:
        if b'"error"' in line:
            raise RequestFailed(line.decode(errors="replace")[:500])
        return
    tokens = int(match.group(1))
    if tokens > record.tokens:
        record.first = record.first if record.first is not None else now
        record.last = now
        if probe:
            record.times += [now] * (tokens - record.tokens)
        record.tokens = tokens


async def _calm(session, url: str, seconds: float = 60):
    """Until nothing runs and the prefix cache is empty, so that every workload starts alike.  Raises RequestFailed.

    A server that has just lost thousands of clients at once may reset a connection: it is asked again.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(aiohttp.ClientError):
            async with session.post(f"{url}/abort_request", json=dict(rid="", abort_all=True)):
                pass
            async with session.post(f"{url}/flush_cache") as reply:
                if reply.status == 200:
                    return
        await asyncio.sleep(0.3)
    raise RequestFailed(f"the server did not become idle within {seconds:.0f} s")
