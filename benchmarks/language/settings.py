"""The compressed settings that the language benchmarks compare, and their options."""

from __future__ import annotations

import dataclasses
import itertools

from benchmarks.language.guards import GUARDS, GuardedConfig
from zipage_sglang.config import BY_BUDGET, PRESETS, ZipageConfig


def name_of(config: ZipageConfig) -> str:
    """`512 zipage r 0.5 lightning alpha 0.8 lam 0.2`: budget, policy and what the policy uses."""
    parts = [f"{config.budget} {config.policy}"]
    if config.policy != "recent":
        share = config.reserve / config.budget if config.recency == BY_BUDGET else config.recency
        parts.append(f"r {share:g}")
    if config.policy == "zipage":
        parts.append(f"{config.redundancy} alpha {config.alpha:g} lam {config.lam:g}")
    if config.windows > 1:
        parts.append(f"windows {config.windows}")
    if isinstance(config, GuardedConfig):
        parts.append(f"guard {config.guard} {config.share:g}")
    if config.prefix != "keep":
        parts.append(f"prefix {config.prefix}")
    return " ".join(parts)


def make_configs(args) -> dict[str, ZipageConfig]:
    """{name: config}, the same setting only once."""
    out = {}
    for budget, given in itertools.product(args.budgets, args.policies):
        policy, _, own = given.partition("@")
        share, _, windows = own.partition("/")
        if policy == "full":
            continue
        many = [args.redundancy, args.alpha, args.lam, [int(windows)] if windows else args.passes]
        if policy != "zipage":
            many = [*(v[:1] for v in many[:3]), [1]]
        for recency, redundancy, alpha, lam, passes in itertools.product([float(share)] if share else args.recency, *many):
            config = ZipageConfig(budget=budget, block=args.block, window=args.window, policy=policy, recency=recency,
                                  redundancy=redundancy, alpha=alpha, lam=lam, prefix=args.prefix, passes=passes)
            plain = dataclasses.asdict(config)
            for guard in args.guards if policy == "zipage" else ("none",):
                config = ZipageConfig(**plain) if guard == "none" else GuardedConfig(**plain, guard=guard, share=args.guard_share)
                out.setdefault(name_of(config), config)
    return out


def words(text: str) -> list[str]:
    return text.split(",")


def whole(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def shares(text: str) -> list[float]:
    return [float(x) for x in text.split(",")]


def add_options(parser):
    """Everything that `make_configs` reads, and where and how wide the model runs."""
    paper = PRESETS["paper"]
    add = parser.add_argument
    add("--budgets", type=whole, default=[256, 512], help="tokens kept, comma-separated (default 256,512)")
    add("--policies", type=words, default=["full", "recent", "random", "attention", "zipage"],
        help="default full,recent,random,attention,zipage; full KV is always run; NAME@R: with this share for the latest tokens, "
             "NAME@R/P: and these passes")
    add("--recency", type=shares, default=[0.0, 0.5], help="shares of the budget for the latest tokens (default 0,0.5)")
    add("--redundancy", type=words, default=[paper["redundancy"]], help="of zipage: lightning,flash,none (default lightning)")
    add("--alpha", type=shares, default=[paper["alpha"]], help="of zipage (default 0.8)")
    add("--lam", type=shares, default=[paper["lam"]], help="of zipage (default 0.2)")
    add("--block", type=int, default=128, help="tokens between compressions (default %(default)s)")
    add("--window", type=int, default=16, help="(default %(default)s)")
    add("--passes", type=whole, default=[0], help="of zipage: windows that score before a compression (default 0, all of a block)")
    add("--guards", type=words, default=["none"], help=f"of zipage: none,{','.join(GUARDS)} (default none)")
    add("--guard-share", type=float, default=0.1, help="of the budget (default %(default)s)")
    add("--prefix", choices=("keep", "compress"), default="keep", help="whether the prompt stays (default %(default)s)")
    add("--threads", type=int, default=1, help="of the CPU (default %(default)s)")
    add("--device", default="cpu", help="cpu or cuda (default %(default)s)")
