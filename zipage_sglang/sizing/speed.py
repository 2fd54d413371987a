"""The time of a decode step, from the bytes that it must read."""

from __future__ import annotations

from typing import NamedTuple

# Share of the datasheet's bandwidth that whole decode steps reached in benchmarks/results/throughput-*-h200.json (0.6B and 8B
# shapes, 46 to 233 requests running, prefills and compressions between the steps included); smallest and largest.
REACHED = (0.52, 0.72)


class Weights(NamedTuple):
    """Parameters in bytes, of all GPUs together.  embedding: the input table (a step reads a row of it a request).  experts: of
    all experts, `chosen` of `of` of which each token passes (0 of 0 in a dense model).  rest: read at every step."""

    embedding: int
    experts: int
    rest: int
    chosen: int = 0
    of: int = 0

    @property
    def total(self) -> int:
        return self.embedding + self.experts + self.rest

    def read(self, batch: int) -> float:
        """Bytes that a step of `batch` requests reads; experts as if tokens chose them independently."""
        share = 1 - (1 - self.chosen / self.of) ** batch if self.of else 0.0
        return self.rest + self.experts * share


class Step(NamedTuple):
    """Milliseconds of a decode step: at the bandwidth's limit, and from the best to the worst share of it that was measured."""

    limit_ms: float
    fast_ms: float
    slow_ms: float


def decode_step(weights: Weights, batch: int, resident: float, kv_bytes: int, tp: int, bandwidth: float) -> Step:
    """batch: requests running.  resident: KV tokens that they hold together.  kv_bytes: of a token on one GPU.  tp: GPUs, each
    with `bandwidth` GB/s; communication between them is left out."""
    limit = (weights.read(batch) / tp + resident * kv_bytes) / (bandwidth * 1e9) * 1e3
    slow, fast = REACHED
    return Step(limit, limit / fast, limit / slow)
