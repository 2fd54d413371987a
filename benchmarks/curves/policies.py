"""The policies that are compared, as options of ZipageConfig, the same for both models."""

from __future__ import annotations

from zipage_sglang.config import PRESETS, ZipageConfig

BLOCK = 128
WINDOW = 16
FULL = "full KV"
HALF = dict(recency=0.5)
# Prompt kept where not said otherwise.  The most wanted ones come first, and are measured first.
POLICIES: dict[str, dict] = {
    "zipage": {},
    "zipage-half": HALF,
    "recent": dict(policy="recent"),
    "sinks+recent": dict(policy="recent", prefix="compress"),
    "random": dict(policy="random", **HALF),
    "attention": dict(policy="attention", **HALF),
    "global": dict(redundancy="none", lam=1.0, **HALF),
    "flash": dict(redundancy="flash", **HALF),
    "zipage-prefix-compress": dict(prefix="compress", **HALF),
    "paper": {name: PRESETS["paper"][name] for name in ("recency", "passes")},
    "random-r0": dict(policy="random", recency=0.0),
    "attention-r0": dict(policy="attention", recency=0.0),
}
MEANING = {
    FULL: "no compression",
    "zipage": "the default: attention remembered over compressions, less redundancy (lightning); all windows score; the latest quarter "
              "of the budget, at least 128 tokens or half of it, is always kept",
    "zipage-half": "zipage, the latest half of the budget always kept",
    "recent": "the latest tokens",
    "sinks+recent": "the first four tokens and the latest; the prompt is evicted, too",
    "random": "random tokens beside the latest half",
    "attention": "the last window's attention beside the latest half",
    "global": "zipage-half without redundancy",
    "flash": "zipage-half, redundancy over all pairs of keys",
    "zipage-prefix-compress": "zipage-half; the prompt is evicted, too",
    "paper": "zipage with no reserve, and one window that scores",
    "random-r0": "random tokens, no reserve",
    "attention-r0": "the last window's attention, no reserve",
}


def config_of(policy: str, budget: int) -> ZipageConfig:
    return ZipageConfig(budget=budget, block=BLOCK, window=WINDOW, **POLICIES[policy])


def flags_of(policy: str) -> list[str]:
    """The same as flags, without `--zipage-` and the prefix."""
    if policy == FULL:
        return ["--policies", "full"]
    options = {"policy": "zipage", **POLICIES[policy]}
    flags = ["--policies", options.pop("policy")]
    for name, value in options.items():
        flags += ["--" + {"lam": "lambda"}.get(name, name), str(value)]
    return flags
