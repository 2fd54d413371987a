"""The plan: everything that follows from a model's shape, a GPU's memory and the flags."""

from __future__ import annotations

import dataclasses

from zipage_sglang.config import ZipageConfig
from zipage_sglang.runtime import ModelShape, buffer_bytes, default_query_slots, query_slot_bytes
from zipage_sglang.sizing import ceiling
from zipage_sglang.sizing.memory import Fits, fixed, pool_tokens, what_fits, workspace
from zipage_sglang.sizing.speed import Step, Weights, decode_step


class DoesNotFit(ValueError):
    """Weights, or weights and a KV pool of any size, do not fit the GPUs."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """What the server would be started with.  Bytes and tokens are of one GPU of `tp`.

    memory: bytes of a GPU.  fraction: --mem-fraction-static.  kv_itemsize, itemsize: of a KV and of a query element.
    max_tokens, max_running: the flags, None where not given.  graph_batch: largest decode batch with a CUDA graph.
    """

    name: str
    dtype: str
    shape: ModelShape
    v_head_dim: int
    context_len: int
    weights: Weights
    memory: int
    fraction: float
    tp: int
    page: int
    itemsize: int
    kv_itemsize: int
    config: ZipageConfig
    max_tokens: int | None = None
    max_running: int | None = None
    graph_batch: int = 0

    @property
    def kv_bytes(self) -> int:
        """Of one token."""
        return self.shape.layers * self.shape.kv_heads * (self.shape.head_dim + self.v_head_dim) * self.kv_itemsize


@dataclasses.dataclass(frozen=True)
class Overhead:
    """Bytes of the plugin's buffers; share: of the KV pool's."""

    positions_and_scores: int
    query_slots: int
    workspace: int
    total: int
    share: float


@dataclasses.dataclass(frozen=True)
class Load:
    """One kind of request, served alone.  held: KV tokens of a running request, mean over its life.  most: at its end or bound.
    running: requests at once; with compression those that admission can promise, without it those of average length.
    tokens_per_second: at the step's fast and slow end; None without a bandwidth."""

    pool: int
    most: int
    held: float
    running: int
    step: Step | None
    tokens_per_second: tuple[float, float] | None


@dataclasses.dataclass(frozen=True)
class Plan:
    setting: Setting
    available: int
    pool: int
    fits: Fits
    overhead: Overhead
    zipage: Load
    full: Load
    max_running_requests: int
    cuda_graph_max_bs: int


def make_plan(setting: Setting, prompt: int = 0, output: int | None = None, bandwidth: float | None = None) -> Plan:
    """prompt, output: tokens of a request; None: up to the context length.  bandwidth: GB/s of one GPU.  Raises DoesNotFit."""
    s, config = setting, setting.config
    output = output or s.context_len - prompt
    if prompt + output > s.context_len:
        raise DoesNotFit(f"--prompt-tokens {prompt} and --output-tokens {output} exceed the context length of {s.context_len}: "
                         "lower them or give --context-length")
    # patches/memory.py and SGLang's _profile_available_bytes: what is free after loading, less what stays for activations.
    available = int(s.memory * s.fraction) - s.weights.total // s.tp
    if available <= 0:
        raise DoesNotFit(f"{gib(s.weights.total / s.tp)} of weights do not fit into {s.fraction:.3f} of {gib(s.memory)}: "
                         "raise --mem-fraction-static or --tp-size, or use a larger GPU")
    room = available - fixed(config, s.shape, s.context_len, s.itemsize, s.max_running)
    pool = _pool(s, pool_tokens(room, s.kv_bytes, config, s.shape, s.itemsize, s.max_running))
    full_pool = _pool(s, available // s.kv_bytes)
    # Admission promises a request its prompt, K + b tokens and a page (design: reservation).
    most = prompt + min(output, config.cap) + s.page
    if pool < most:
        raise DoesNotFit(f"a KV pool of {max(0, pool)} tokens cannot hold one request of {most}: raise --mem-fraction-static, "
                         "--max-total-tokens or --tp-size, or lower --zipage-budget")
    zipage_running = min(pool // most, _most_requests(s, pool))
    return Plan(
        setting=s, available=available, pool=pool,
        fits=what_fits(config, pool, s.page, s.context_len),
        overhead=_overhead(s, pool),
        zipage=_load(s, pool, most, ceiling.held([[output]], prompt, config), zipage_running, bandwidth),
        full=_full(s, full_pool, prompt, output, bandwidth),
        max_running_requests=zipage_running,
        cuda_graph_max_bs=-(-zipage_running // 8) * 8,
    )


def _full(s: Setting, pool: int, prompt: int, output: int, bandwidth: float | None) -> Load:
    held = ceiling.held([[output]], prompt)
    return _load(s, pool, prompt + output, held, min(int(pool / held), _most_requests(s, pool)), bandwidth)


def _load(s: Setting, pool: int, most: int, held: float, running: int, bandwidth: float | None) -> Load:
    if bandwidth is None or not running:
        return Load(pool, most, held, running, None, None)
    step = decode_step(s.weights, running, running * held, s.kv_bytes, s.tp, bandwidth)
    return Load(pool, most, held, running, step, (running / step.fast_ms * 1e3, running / step.slow_ms * 1e3))


def _pool(s: Setting, tokens: int) -> int:
    """KVCacheConfigurator._apply_token_constraints: the flag can lower what memory allows, not raise it."""
    tokens = min(tokens, s.max_tokens) if s.max_tokens else tokens
    return tokens // s.page * s.page


def _most_requests(s: Setting, pool: int) -> int:
    """KVCacheConfigurator.resolve_max_num_reqs: rows of SGLang's request table."""
    default = max(min(int(pool / s.context_len * 512), 4096), 2048)
    return min(s.max_running or default, pool // 2)


def _overhead(s: Setting, pool: int) -> Overhead:
    requests = _most_requests(s, pool)
    slots = default_query_slots(s.config, pool, requests)
    total = buffer_bytes(s.shape, s.config, pool + s.page, slots, max(requests, s.graph_batch), s.itemsize)
    queries = slots * query_slot_bytes(s.shape, s.config.window, s.itemsize)
    scratch = workspace(s.config, s.shape, s.context_len)
    kv = (pool + s.page) * s.kv_bytes
    return Overhead(total - queries, queries, scratch, total + scratch, (total + scratch) / kv)


def gib(size: float) -> str:
    """Bytes in GiB, or MiB where that reads better."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.1f} MiB"
