"""A small pool, four times oversubscribed, with long outputs: bounded requests share it fully and nobody is retracted."""

import random
import struct
import zlib

import pytest
from harness import request, run_engine

PROMPT, BUDGET, BLOCK, POOL = 40, 96, 32, 1020
BOUND = PROMPT + BUDGET + BLOCK + 1


def early_prompt(rng) -> list[int]:
    """One whose first compression comes as early as it may: what is held then is not all that must be reserved."""
    while True:
        prompt = [1, 4] + [rng.randrange(8, 320) for _ in range(PROMPT - 2)]
        if zlib.crc32(struct.pack(f"<{PROMPT}q", *prompt)) % BLOCK == BLOCK - 1:
            return prompt


@pytest.mark.once
def test_pool_is_filled_with_bounded_requests(tmp_path):
    rng = random.Random(0)
    fit = POOL // BOUND
    requests = [request(f"p{i}", early_prompt(rng), rng.randint(180, 320)) for i in range(4 * fit)]
    # One output longer than the whole pool.
    requests[0]["params"]["max_new_tokens"] = POOL + 200
    run = run_engine(tmp_path, [requests], enable_zipage=True, zipage_budget=BUDGET, zipage_block=BLOCK, zipage_window=8,
                     zipage_spread=BLOCK, max_total_tokens=POOL)
    for got, r in zip(run.rounds[0], requests):
        assert got["reason"]["type"] == "length" and len(got["ids"]) == r["params"]["max_new_tokens"]
    assert run.info["retractions"] == 0
    assert run.info["peak_kv_tokens"] <= BOUND
    assert run.info["peak_running"] >= 0.9 * fit
    assert run.info["compressions"] >= 3 * len(requests)
    assert run.flushed
