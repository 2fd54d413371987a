"""One engine under a saturating load for a fixed time: python -m benchmarks.load SPEC.json RESULT.json

SPEC: {"engine": kwargs of sgl.Engine, "prompts": [[ids], ...], "lengths": [tokens, ...], "seconds": n}.  All requests are sent
at once.  RESULT: {"samples": [{"time", "finished", "zipage"}]}, sampled every two seconds.  Running requests and throughput over
time are in SGLang's own log, which the caller keeps.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time


async def drive(engine, spec, samples):
    finished = 0

    async def one(ids, length):
        nonlocal finished
        params = dict(temperature=0.6, max_new_tokens=length, ignore_eos=True)
        await engine.async_generate(input_ids=ids, sampling_params=params)
        finished += 1

    tasks = [asyncio.create_task(one(*pair)) for pair in zip(spec["prompts"], spec["lengths"])]
    start = time.monotonic()
    while (now := time.monotonic() - start) < spec["seconds"] and finished < len(tasks):
        state = (await engine.tokenizer_manager.get_internal_state())[0]
        samples.append(dict(time=now, finished=finished, zipage=state.get("zipage")))
        await asyncio.sleep(2)


def main(spec_path, result_path):
    import sglang as sgl

    with open(spec_path) as f:
        spec = json.load(f)
    engine = sgl.Engine(**spec["engine"])
    samples = []
    engine.loop.run_until_complete(drive(engine, spec, samples))
    with open(result_path, "w") as f:
        json.dump(dict(samples=samples), f)
    # The unfinished requests are of no use to anyone: leave without waiting for them.
    engine.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
