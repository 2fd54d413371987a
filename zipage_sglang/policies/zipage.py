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
    request's first compression, `always`, or `never`.  R: see `zipage_kernels.reference.redundancy`.  All of it is one
    operation, `zipage_kernels.reference.zipage`, so that the device reads the keys twice instead of three times.
    """

    alpha: float
    lam: float
    tau: float
    block: int
    redundancy: str
    pooling: str

    stores_importance: ClassVar[bool] = True

    def score(self, view: View) -> torch.Tensor:
        return view.zipage(self.alpha, self.lam, self.tau, self.block, self.redundancy, self.pooling)
