"""Control: a sliding window."""

from __future__ import annotations

import dataclasses

import torch

from zipage_sglang.policies.base import Policy, View


@dataclasses.dataclass(frozen=True)
class RecentPolicy(Policy):
    """Z = position, exact in fp32 below 2**24 tokens."""

    def score(self, view: View) -> torch.Tensor:
        return view.positions.float()
