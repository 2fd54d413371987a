"""Bytes and tokens: what the method's buffers take beside the KV pool, and how many requests fit the pool.

The running server sizes its pool and writes its start-up line with these functions (patches/memory.py, patches/scheduler.py), and
so does the planner: they cannot disagree.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from zipage_sglang.compressor import most_candidates
from zipage_sglang.config import ZipageConfig
from zipage_sglang.runtime import (
    EXTRA_SLOTS,
    ModelShape,
    query_slot_bytes,
    slot_share,
    step_bytes,
    table_bytes_per_token,
    workspace_bytes,
)


MOST_REQUESTS = 4096  # rows of SGLang's request table, where no flag says how many


def overhead_per_token(config: ZipageConfig, shape: ModelShape, itemsize: int) -> int:
    """Bytes beside the KV of one pool slot: its tables, and its share of those query slots (of `itemsize` bytes an element) that
    grow with the pool."""
    return table_bytes_per_token(shape, config) + slots_per_token(config, shape, itemsize)


def slots_per_token(config: ZipageConfig, shape: ModelShape, itemsize: int) -> int:
    """Bytes of query slots that each token of the pool brings along."""
    share = 0.0 if config.query_slots else slot_share(config)
    return math.ceil(share * query_slot_bytes(shape, config.window, itemsize) / config.cap)


def fixed(config: ZipageConfig, shape: ModelShape, context_len: int, itemsize: int, max_running: int | None) -> int:
    """Bytes that do not grow with the pool: the workspace, the other query slots, and what one step says of each request.
    max_running: requests, None where the server chooses."""
    slots = config.query_slots or EXTRA_SLOTS + 1
    return (workspace(config, shape, context_len) + slots * query_slot_bytes(shape, config.window, itemsize)
            + (max_running or MOST_REQUESTS) * step_bytes(shape))


def pool_tokens(room: int, kv_bytes: int, config: ZipageConfig, shape: ModelShape, itemsize: int, max_running: int | None) -> int:
    """Tokens of the KV pool that fit.  room: bytes, less what is `fixed`.  kv_bytes: of a token's KV.  max_running: requests,
    None where the server chooses by the pool; no more than so many query slots are needed then, however large the pool is."""
    share = slots_per_token(config, shape, itemsize)
    bare = kv_bytes + table_bytes_per_token(shape, config)
    tokens = room // (bare + share)
    if max_running is not None and share:
        tokens = max(tokens, (room - max_running * query_slot_bytes(shape, config.window, itemsize)) // bare)
    return max(0, tokens)


def workspace(config: ZipageConfig, shape: ModelShape, context_len: int) -> int:
    """Bytes of scores while compressing; independent of the pool's size."""
    longest = most_candidates(config)
    if config.when == "pressure":  # one row of any length
        longest = max(longest, context_len)
    elif config.prefix != "keep":  # and of prompts up to twice the batch
        longest = max(longest, min(context_len, 2 * longest))
    return workspace_bytes(shape, longest)


class Fits(NamedTuple):
    """bound: most private tokens that a request holds.  bounded: requests that fit the pool at any length.  unbounded: requests
    that fit it without compression when each grows to the context length."""

    bound: int
    bounded: int
    unbounded: int


def what_fits(config: ZipageConfig, pool: int, page: int, context_len: int) -> Fits:
    """pool, page, context_len: tokens."""
    bound = config.cap + page
    return Fits(bound, pool // bound, pool // context_len)
