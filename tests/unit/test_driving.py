"""The load's client against a small server that behaves as a busy one does."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from benchmarks.report import driving


async def calm(resets: int, seconds: float):
    """(resets, answers) of a server that resets so many connections first, then is idle."""
    seen = dict(reset=0, flushed=0)

    async def abort(request):
        if seen["reset"] < resets:
            seen["reset"] += 1
            request.transport.abort()
        return web.Response()

    async def flush(request):
        seen["flushed"] += 1
        return web.Response()

    app = web.Application()
    app.router.add_post("/abort_request", abort)
    app.router.add_post("/flush_cache", flush)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    try:
        async with aiohttp.ClientSession() as session:
            await driving._calm(session, url, seconds)
    finally:
        await runner.cleanup()
    return seen


def test_a_server_that_resets_connections_is_asked_again():
    assert asyncio.run(calm(resets=3, seconds=30)) == dict(reset=3, flushed=1)


def test_but_not_for_ever():
    with pytest.raises(driving.RequestFailed, match="did not become idle"):
        asyncio.run(calm(resets=10**6, seconds=1))
