"""Policies: one small dataclass each; `make_policy` builds the configured one."""

from __future__ import annotations

from zipage_sglang.config import ZipageConfig
from zipage_sglang.policies.attention import AttentionPolicy
from zipage_sglang.policies.base import Policy, View
from zipage_sglang.policies.random_policy import RandomPolicy
from zipage_sglang.policies.recent import RecentPolicy
from zipage_sglang.policies.zipage import ZipagePolicy

__all__ = ["AttentionPolicy", "Policy", "RandomPolicy", "RecentPolicy", "View", "ZipagePolicy", "make_policy"]


def make_policy(config: ZipageConfig) -> Policy:
    """The policy that `config.policy` names, with its knobs."""
    if config.policy == "zipage":
        return ZipagePolicy(
            alpha=config.alpha,
            lam=config.lam,
            tau=config.tau,
            block=config.block,
            redundancy=config.redundancy,
            pooling=config.pooling,
        )
    if config.policy == "random":
        return RandomPolicy(seed=config.seed)
    return {"attention": AttentionPolicy, "recent": RecentPolicy}[config.policy]()
