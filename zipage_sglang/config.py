"""The method's knobs: one frozen dataclass, validated once, shared by the engine, the kernels and the benchmarks."""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers

POLICIES = ("zipage", "attention", "recent", "random")
REDUNDANCIES = ("lightning", "flash", "none")
POOLINGS = ("once", "never", "always")
PREFIX_MODES = ("keep", "compress", "auto")
WHEN = ("always", "pressure")
BY_BUDGET = -1.0  # of recency
PER_REQUEST = ("all", "no-off", "none")
FLAGS = {"lam": "lambda"}  # fields whose flags are not called like them
ADMIT_EVERY = 128  # by default; see zipage_sglang/grouping.py

# The paper's settings (arXiv 2603.08743, its scripts); r = 0 because the paper has no recency reserve; one window scores,
# every first compression comes at K + b, and whoever fits is admitted.
PRESETS = {
    "paper": dict(
        budget=2048, block=256, window=16, policy="zipage", alpha=0.8, lam=0.2, tau=0.4,
        redundancy="lightning", pooling="once", recency=0.0, passes=1, spread=1, admit_every=0,
    )
}


@dataclasses.dataclass(frozen=True)
class ZipageConfig:
    """What is kept, how it is scored, and when.

    Tokens: budget K, block b, window w, sinks.  A request is compressed when it holds K + b candidate tokens and keeps K.
    alpha in [0, 1]: decay of the global score.  lam in [0, 1]: weight of the score against redundancy.  tau > 0: scale of
    the redundancy softmax.  recency in [0, 1]: share r of K that is always the latest tokens; BY_BUDGET: see `reserve`.
    when: `always` at K + b, or from there on only under memory `pressure`.
    query_slots: M, requests whose queries can be kept at a time, the others wait; 0: as many as are expected, with a margin (one
    each where all windows score or under `pressure`).  max_compress: compressions a step, 0: no limit.
    passes: windows of w tokens before a compression that score, the last w included; 1: as in the paper; 0: all of a block (see
    `windows`).
    spread: steps over which the first compressions of requests that start together are spread, by coming that much early at most;
    1: all come at K + b; 0: a quarter of a block.
    async_steps: decode steps beside which a request is compressed, sitting them out, 0: between two steps.
    admit_every: decode steps that requests may be left waiting where the pool is full, so that several are admitted at once.
    max_budget: largest K that a request may ask for itself, 0 for K.  per_request: what requests may say for themselves (see
    `zipage_sglang.per_request`): `all`, `no-off` (not that compression is off), `none`.
    Raises ValueError (naming the flag) for values that cannot work.
    """

    budget: int = 2048
    block: int = 256
    window: int = 16
    policy: str = "zipage"
    alpha: float = 0.8
    lam: float = 0.2
    tau: float = 0.4
    redundancy: str = "lightning"
    pooling: str = "once"
    sinks: int = 4
    recency: float = BY_BUDGET
    seed: int = 0
    prefix: str = "keep"
    when: str = "always"
    query_slots: int = 0
    max_compress: int = 0
    passes: int = 0
    spread: int = 0
    async_steps: int = 0
    admit_every: int = ADMIT_EVERY
    max_budget: int = 0
    per_request: str = "all"

    @functools.cached_property  # asked for every request that is looked at
    def cap(self) -> int:
        """Candidate tokens at which a request is compressed, K + b."""
        return self.budget + self.block

    @property
    def largest_cap(self) -> int:
        """Candidate tokens at which a request with the largest budget that it may ask for is compressed."""
        return max(self.budget, self.max_budget) + self.block

    @property
    def reserve(self) -> int:
        """Latest tokens that are always kept, max(w, floor(r K)).

        By default r is a quarter, but not of so little that neighbours are lost that belong together: 128 tokens, or half of K.
        """
        if self.recency == BY_BUDGET:
            return max(self.window, min(self.budget // 2, max(128, self.budget // 4)))
        return max(self.window, math.floor(self.recency * self.budget))

    @functools.cached_property
    def windows(self) -> int:
        """Windows that score before a compression.  By default all of a block, where they can be had: with a policy that has
        scores, and rows that are compressed when they are due."""
        return self.passes or (self.block // self.window if self._may_pass else 1)

    @property
    def _may_pass(self) -> bool:
        return self.policy == "zipage" and self.when == "always" and self.async_steps == 0

    @functools.cached_property
    def scored(self) -> int:
        """Tokens before a compression whose queries score, in `windows` windows; a request has a query slot for so long."""
        return self.windows * self.window

    def early(self, number: int) -> int:
        """Tokens by which a first compression comes before K + b; evenly from 0 up to `spread` for successive numbers.

        Requests that start together would otherwise score and compress in the same steps for ever, and those take longer.  Under
        `pressure` there is nothing to spread.  No more than what leaves room for all windows before it.
        """
        return number % self.spread_steps

    @functools.cached_property
    def spread_steps(self) -> int:
        """What `spread` comes to."""
        return max(1, min(self.spread or self.block // 4, self.budget, self.block)) if self.when == "always" else 1

    @property
    def group_steps(self) -> int:
        """What `admit_every` comes to.  Under `pressure` rows are compressed for the first who waits: were it not admitted at
        once, they would have lost tokens too early."""
        return self.admit_every if self.when == "always" else 0

    @property
    def forced_sinks(self) -> int:
        """First tokens that are always kept where the prompt is evicted too; a kept prompt holds them anyway."""
        return 0 if self.prefix == "keep" else self.sinks

    def start(self, prompt_len: int) -> int:
        """First candidate row c0 of a request, decided once from its prompt's length (design: candidates)."""
        evict_prompt = self.prefix == "compress" or (self.prefix == "auto" and prompt_len > self.budget)
        return 0 if evict_prompt else prompt_len

    def __post_init__(self):
        def need(ok: bool, flag: str, says: str):
            if not ok:
                raise ValueError(f"--zipage-{flag}: {says}")

        for field in dataclasses.fields(self):
            value: object = getattr(self, field.name)
            kind: type = {"int": numbers.Integral, "float": numbers.Real, "str": str}[str(field.type)]
            need(isinstance(value, kind) and type(value) is not bool, FLAGS.get(field.name, field.name.replace("_", "-")),
                 f"must be of type {field.type}, got {value!r}")

        need(self.block >= 1, "block", f"must be at least 1, got {self.block}")
        need(self.budget >= 1, "budget", f"must be at least 1, got {self.budget}")
        need(1 <= self.window <= self.block, "window",
             f"must be between 1 and --zipage-block ({self.block}), got {self.window}")
        need(0 <= self.sinks, "sinks", f"must not be negative, got {self.sinks}")
        need(0.0 <= self.recency <= 1.0 or self.recency == BY_BUDGET, "recency",
             f"must be a share between 0 and 1, or {BY_BUDGET:g} for the default, got {self.recency}")
        need(self.reserve + self.forced_sinks <= self.budget, "budget",
             f"{self.budget} cannot hold what is always kept: {self.reserve} latest tokens "
             f"(--zipage-window, --zipage-recency) and {self.forced_sinks} sinks (--zipage-sinks); raise it or lower those")
        need(self.policy in POLICIES, "policy", f"must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        need(self.redundancy in REDUNDANCIES, "redundancy",
             f"must be one of {', '.join(REDUNDANCIES)}, got {self.redundancy!r}")
        need(self.pooling in POOLINGS, "pooling", f"must be one of {', '.join(POOLINGS)}, got {self.pooling!r}")
        need(self.prefix in PREFIX_MODES, "prefix", f"must be one of {', '.join(PREFIX_MODES)}, got {self.prefix!r}")
        need(self.when in WHEN, "when", f"must be one of {', '.join(WHEN)}, got {self.when!r}")
        need(self.max_budget == 0 or self.max_budget >= self.budget, "max-budget",
             f"must not be less than --zipage-budget ({self.budget}), got {self.max_budget}")
        need(self.per_request in PER_REQUEST, "per-request",
             f"must be one of {', '.join(PER_REQUEST)}, got {self.per_request!r}")
        need(0.0 <= self.alpha <= 1.0, "alpha", f"must be between 0 and 1, got {self.alpha}")
        need(0.0 <= self.lam <= 1.0, "lambda", f"must be between 0 and 1, got {self.lam}")
        need(self.tau > 0.0 and math.isfinite(self.tau), "tau", f"must be positive, got {self.tau}")
        need(0 <= self.query_slots, "query-slots", f"must not be negative, got {self.query_slots}")
        need(0 <= self.max_compress, "max-compress", f"must not be negative, got {self.max_compress}")
        need(self.max_compress == 0 or self.when == "always", "max-compress",
             "cannot be kept with --zipage-when pressure, where pages must come free at once; drop one of the two")
        need(0 <= self.passes, "passes", f"must not be negative, got {self.passes}")
        need(self.scored <= self.block, "passes", f"{self.passes} windows of {self.window} tokens are more than --zipage-block "
             f"({self.block}); at most {self.block // self.window}")
        need(self.passes <= 1 or self._may_pass, "passes",
             f"{self.passes} passes need the scores of --zipage-policy zipage and windows that end where compressions do "
             "(--zipage-when always, --zipage-async-steps 0)")
        need(0 <= self.spread <= self.block, "spread", f"must be between 0 and --zipage-block ({self.block}), got {self.spread}")
        need(0 <= self.async_steps, "async-steps", f"must not be negative, got {self.async_steps}")
        need(self.async_steps == 0 or self.when == "always", "async-steps",
             "cannot be used with --zipage-when pressure, where pages must come free at once; drop one of the two")
        need(0 <= self.admit_every, "admit-every", f"must not be negative, got {self.admit_every}")
        need(0 <= self.seed < 2**32, "seed", f"must be a 32-bit unsigned number, got {self.seed}")

    def check_page_size(self, page_size: int):
        """Raises ValueError unless whole pages hold K and b (pages are freed whole)."""
        for flag, value in (("budget", self.budget), ("block", self.block), ("max-budget", self.max_budget)):
            if value % page_size:
                raise ValueError(
                    f"--zipage-{flag} {value} is not a multiple of --page-size {page_size}: "
                    f"use {math.ceil(value / page_size) * page_size} or a page size that divides it"
                )
