"""Guards from the literature, each beside a policy's own choice: a share of the budget that is kept for another reason.

An experiment, not an option of the server: what helps here can become one.
"""

from __future__ import annotations

import dataclasses
import math

import torch

from zipage_sglang.config import ZipageConfig
from zipage_sglang.policies import Policy, View, make_policy
from zipage_sglang.policies.random_policy import RandomPolicy

REGIONS = 8
KEPT = 1e30  # above every score, below what is always kept


def large_values(view: View, scores: torch.Tensor, count: int) -> torch.Tensor:
    """The tokens with the largest values: evicting them makes models loop (VaSE, arXiv 2606.03928)."""
    out = torch.full_like(scores, -torch.inf)
    for r, n in enumerate(view.batch.num_candidates):
        slots = view.batch.candidate_slots(r)
        for layer, values in enumerate(view.buffers.v_buffers):
            out[r, layer, :, :n] = values[slots].float().norm(dim=-1).T
    return _best(out, count)


def regions(view: View, scores: torch.Tensor, count: int) -> torch.Tensor:
    """The best of each region of positions, so that none is wiped out (AMS, arXiv 2605.23200)."""
    real = view.positions >= 0
    first = view.positions.masked_fill(~real, 2**30).amin(-1, keepdim=True)
    last = view.positions.amax(-1, keepdim=True)
    region = (view.positions - first) * REGIONS // (last - first + 1)
    kept = torch.zeros_like(real)
    for n in range(REGIONS):
        kept |= _best(scores.masked_fill(~real | (region != n), -torch.inf), count // REGIONS)
    return kept


def at_random(view: View, scores: torch.Tensor, count: int) -> torch.Tensor:
    """Any tokens, others at each compression."""
    return _best(RandomPolicy(1).score(view).masked_fill(view.positions < 0, -torch.inf), count)


def _best(values: torch.Tensor, count: int) -> torch.Tensor:
    """bool, True at the `count` largest of each head that are not -inf."""
    index = values.topk(min(count, values.shape[-1]), dim=-1).indices
    return torch.zeros_like(values, dtype=torch.bool).scatter_(-1, index, True) & (values > -torch.inf)


GUARDS = {"values": large_values, "regions": regions, "random": at_random}


@dataclasses.dataclass(frozen=True)
class GuardedConfig(ZipageConfig):
    """guard: one of GUARDS.  share: of the budget that it keeps, within the part that the policy chooses."""

    guard: str = "values"
    share: float = 0.1


@dataclasses.dataclass(frozen=True)
class GuardedPolicy(Policy):
    """`policy`, but for what the guard keeps."""

    policy: Policy
    config: GuardedConfig

    @property
    def stores_importance(self) -> bool:  # type: ignore[override]
        return self.policy.stores_importance

    def score(self, view: View) -> torch.Tensor:
        scores = self.policy.score(view)
        kept = GUARDS[self.config.guard](view, scores, math.ceil(self.config.share * self.config.budget))
        return scores.masked_fill(kept, KEPT)


def policy_of(config: ZipageConfig) -> Policy:
    """The configured policy, guarded where the configuration says so."""
    policy = make_policy(config)
    return GuardedPolicy(policy, config) if isinstance(config, GuardedConfig) else policy
