"""The paper's policy: global attention score against key redundancy (arXiv 2603.08743)."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import torch

from zipage_sglang.policies.base import Policy, View


@dataclasses.dataclass(frozen=True)
class ZipagePolicy(Policy):
    """Z = lam * F - (1 - lam) * R, or Z = F without redundancy.

    F = max(I, alpha * F of the previous compression).  For use in Z only, F is max-pooled over 5 neighbours: `once` at a
    request's first compression, `always`, or `never`.  R: see `zipage_kernels.reference.redundancy`.
    """

    alpha: float
    lam: float
    tau: float
    block: int
    redundancy: str
    pooling: str

    stores_importance: ClassVar[bool] = True

    def score(self, view: View) -> torch.Tensor:
        view.importance = torch.maximum(view.attention(), self.alpha * view.previous())
        importance = self._pooled(view)
        if self.redundancy == "none":
            return importance
        return self.lam * importance - (1.0 - self.lam) * view.redundancy(self.block, self.tau, self.redundancy)

    def _pooled(self, view: View) -> torch.Tensor:
        if self.pooling == "always":
            return view.max_pool(view.importance)
        if self.pooling == "once" and 0 in view.batch.counts:
            return torch.where(view.counts == 0, view.max_pool(view.importance), view.importance)
        return view.importance
