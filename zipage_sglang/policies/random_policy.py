"""Control: random scores that depend on nothing but what is scored."""

from __future__ import annotations

import dataclasses

import torch

from zipage_sglang.policies.base import Policy, View

_MASK = 0xFFFFFFFF


def _times(x: torch.Tensor, factor: int) -> torch.Tensor:
    """x * factor mod 2**32 for 32-bit x in int64, in two halves so that no product exceeds 2**48."""
    high = (x * (factor >> 16)) & 0xFFFF
    return ((high << 16) + x * (factor & 0xFFFF)) & _MASK


def mix(x: torch.Tensor) -> torch.Tensor:
    """A bijective 32-bit hash (two multiply-xorshift rounds).  int64 in [0, 2**32) -> the same."""
    x = _times(x ^ (x >> 16), 0x7FEB352D)
    x = _times(x ^ (x >> 15), 0x846CA68B)
    return x ^ (x >> 16)


@dataclasses.dataclass(frozen=True)
class RandomPolicy(Policy):
    """Z in [0, 1): a hash of (seed, global layer, global KV head, compression number, position).

    A hash instead of a generator: the same on every device, every tensor-parallel rank and after every retraction.
    """

    seed: int

    def score(self, view: View) -> torch.Tensor:
        h = mix(torch.tensor(self.seed, dtype=torch.int64))
        for value in (view.layers, view.kv_heads, view.counts, view.positions):
            h = mix(h ^ (value.long() & _MASK))
        return (h >> 8).float() / 2.0**24
