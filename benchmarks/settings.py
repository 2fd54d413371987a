"""What an accuracy run compares: full KV and one setting per policy and budget."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Setting:
    """options: zipage's keyword arguments for sgl.Engine, {} for full KV.  budget: tokens, None for full KV."""

    name: str
    policy: str = "full KV"
    budget: int | None = None
    options: dict = dataclasses.field(default_factory=dict)


def make_settings(policies: list[str], budgets: list[int], full: bool = True, **common) -> list[Setting]:
    """Full KV first (unless full=False), then every policy at every budget; a policy "full" adds nothing.

    common: further zipage options without the prefix, e.g. block=64; None means the plugin's default.
    """
    settings = [Setting("full KV")] if full else []
    given = {f"zipage_{name}": value for name, value in common.items() if value is not None}
    for budget in budgets:
        for policy in policies:
            if policy == "full":
                continue
            options = dict(enable_zipage=True, zipage_policy=policy, zipage_budget=budget, **given)
            settings.append(Setting(f"{policy} {budget}", policy, budget, options))
    return settings
