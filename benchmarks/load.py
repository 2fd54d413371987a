"""One engine under a saturating load for a fixed time: python -m benchmarks.load SPEC.json RESULT.json

SPEC: {"engine": kwargs of sgl.Engine, "prompts": [[ids], ...], "requests": [[index of the prompt, output tokens], ...],
"probes": [indices of requests to stream], "seconds": n}.  All requests are sent at once.  RESULT: {"seconds": how long the load
ran, "samples": [{"time", "finished", "zipage"}], every two seconds, "arrivals": one list a probe of the times at which its
tokens came}, times in seconds since the load was sent.  Running requests and throughput over time are in SGLang's own log, which
the caller keeps.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time


async def drive(engine, spec) -> dict:
    finished, samples, arrivals = 0, [], {index: [] for index in spec["probes"]}
    start = time.monotonic()
    clock = lambda: time.monotonic() - start

    async def one(index, prompt, length):
        nonlocal finished
        params = dict(temperature=0.6, max_new_tokens=length, ignore_eos=True)
        ids, times = spec["prompts"][prompt], arrivals.get(index)
        if times is None:
            await engine.async_generate(input_ids=ids, sampling_params=params)
        else:
            async for _ in await engine.async_generate(input_ids=ids, sampling_params=params, stream=True):
                times.append(clock())
        finished += 1

    tasks = [asyncio.create_task(one(i, *request)) for i, request in enumerate(spec["requests"])]
    while (now := clock()) < spec["seconds"] and finished < len(tasks):
        state = (await engine.tokenizer_manager.get_internal_state())[0]
        samples.append(dict(time=clock(), finished=finished, zipage=state.get("zipage")))
        for task in tasks:
            if task.done():
                task.result()  # raises what the request raised
        await asyncio.sleep(2)
    return dict(seconds=now, samples=samples, arrivals=list(arrivals.values()))


def main(spec_path, result_path):
    import sglang as sgl

    with open(spec_path) as f:
        spec = json.load(f)
    engine = sgl.Engine(**spec["engine"])
    result = engine.loop.run_until_complete(drive(engine, spec))
    with open(result_path, "w") as f:
        json.dump(result, f)
    # The unfinished requests are of no use to anyone: leave without waiting for them.
    engine.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
