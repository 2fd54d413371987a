"""Random compression batches for the kernel tests: odd sizes, scattered slots, and NaN in everything that must not be read."""

from __future__ import annotations

import dataclasses
import math

import torch

from zipage_kernels.batch import CompressionBatch, Tables

GARBAGE = 1_000_003  # position in slots whose table entry must not be read


@dataclasses.dataclass(frozen=True)
class Request:
    """One request of a case; see CompressionBatch for the words."""

    kv_len: int
    start: int = 0
    evicted: int = 0
    stored: int = 0
    keep: int = 8
    count: int = 0
    seen: int = 0
    windows: int = 0


# Never compressed, compressed once, compressed often, and nothing but a large drop after a re-prefill.  Windows before the last
# one have seen all they can, or nothing.
MIXED = (
    Request(kv_len=23, start=6, keep=11, seen=14, windows=2),
    Request(kv_len=19, start=3, evicted=9, stored=12, keep=12, count=1, seen=13, windows=1),
    Request(kv_len=12, start=0, evicted=31, stored=8, keep=8, count=7),
    Request(kv_len=31, start=1, keep=5),
)


@dataclasses.dataclass
class Case:
    """A batch and the memory it points into."""

    batch: CompressionBatch
    k_buffers: list[torch.Tensor]
    v_buffers: list[torch.Tensor]
    query_cache: torch.Tensor
    tables: Tables
    requests: tuple[Request, ...]

    def log_sums(self, scale: float) -> torch.Tensor:
        """What the attention that served the cached queries found, fp32 [L, M*w + 1, Hq]; NaN where there is no query."""
        heads = self.k_buffers[0].shape[1]
        found = torch.full(self.query_cache.shape[:3], torch.nan, dtype=torch.float64)
        for r, kv_len in enumerate(self.batch.kv_lens):
            for token, row in enumerate(self.batch.query_rows[r].tolist()):
                slots = self.batch.rows[r, : kv_len - self.batch.window + token + 1]  # up to the query's own
                for layer, k_buffer in enumerate(self.k_buffers):
                    queries = self.query_cache[layer, row].double().view(heads, -1, k_buffer.shape[2])
                    logits = torch.einsum("hgd,thd->hgt", queries, k_buffer[slots].double()) * scale
                    found[layer, row] = (logits.logsumexp(dim=-1) / math.log(2)).flatten()
        return found.float()

    def slots(self, r: int) -> list[int]:
        """Slots of request r's candidates."""
        request = self.requests[r]
        return self.batch.rows[r, request.start : request.kv_len].tolist()


def make_case(
    requests=MIXED, *, seed=0, layers=2, heads=2, group=3, head_dim=5, window=3, dtype=torch.float32, strided=False
) -> Case:
    """Slots are a random permutation (no page order); slot 0, free slots and trash rows hold NaN."""
    rng = torch.Generator().manual_seed(seed)
    used = sum(request.kv_len for request in requests)
    num_slots = used + 7
    free = torch.randperm(num_slots - 1, generator=rng) + 1
    query_slots = torch.randperm(len(requests) + 2, generator=rng)
    rows = torch.zeros(len(requests), max(request.kv_len for request in requests) + 2, dtype=torch.int64)
    query_rows = torch.empty(len(requests), window, dtype=torch.int64)

    def buffer() -> torch.Tensor:
        if strided:  # K and V interleaved in one allocation, heads not contiguous
            return torch.full((num_slots, 2, heads, head_dim), torch.nan, dtype=dtype)[:, 1]
        return torch.full((num_slots, heads, head_dim), torch.nan, dtype=dtype)

    k_buffers = [buffer() for _ in range(layers)]
    v_buffers = [buffer() for _ in range(layers)]
    positions = torch.full((layers, num_slots, heads), GARBAGE, dtype=torch.int32)
    importance = torch.full((layers, num_slots, heads), torch.nan, dtype=torch.bfloat16)
    sums = importance.clone()
    query_cache = torch.full(
        (layers, (len(requests) + 2) * window + 1, heads * group, head_dim), torch.nan, dtype=dtype
    )
    taken = 0
    for r, request in enumerate(requests):
        slots = free[taken : taken + request.kv_len]
        taken += request.kv_len
        rows[r, : request.kv_len] = slots
        # A ring: the oldest of the window's queries may lie in the middle of the request's rows.
        ring = torch.arange(window).roll(r) + int(query_slots[r]) * window + 1
        query_rows[r] = ring
        for layer in range(layers):
            for memory in (k_buffers[layer], v_buffers[layer]):
                memory[slots] = torch.randn(request.kv_len, heads, head_dim, generator=rng).to(dtype)
            query_cache[layer, ring] = (2 * torch.randn(window, heads * group, head_dim, generator=rng)).to(dtype)
            stored = slots[request.start : request.start + request.stored]
            for head in range(heads):  # survivors lie in any order, different ones in every head
                survivors = torch.randperm(request.stored + request.evicted, generator=rng)[: request.stored]
                positions[layer, stored, head] = (survivors + request.start).int()
                importance[layer, stored, head] = torch.rand(request.stored, generator=rng).bfloat16()
            seen = slots[request.start : request.start + request.seen]
            sums[layer, seen] = torch.rand(request.seen, heads, generator=rng).bfloat16()
    names = dict(kv_lens="kv_len", starts="start", evicted="evicted", stored="stored", keeps="keep", counts="count",
                 seen="seen", windows="windows")  # fmt: skip
    counts = {name: [getattr(request, field) for request in requests] for name, field in names.items()}
    batch = CompressionBatch(rows=rows, query_rows=query_rows, **counts)
    return Case(batch, k_buffers, v_buffers, query_cache, Tables(positions, importance, sums), tuple(requests))
