"""Control: the attention of the last window alone."""

from __future__ import annotations

import dataclasses

import torch

from zipage_sglang.policies.base import Policy, View


@dataclasses.dataclass(frozen=True)
class AttentionPolicy(Policy):
    """Z = I: nothing remembered (alpha 0), no redundancy (lam 1), no pooling."""

    def score(self, view: View) -> torch.Tensor:
        return view.attention()
