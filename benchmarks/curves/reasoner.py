"""The reasoner's curves: a run of `python -m benchmarks.accuracy` for each policy and budget."""

from __future__ import annotations

from benchmarks import variants
from benchmarks.cells import ROOM
from benchmarks.curves.points import Curves, Point
from benchmarks.curves.policies import BLOCK, FULL, POLICIES, config_of, flags_of
from benchmarks.reasoner import tasks
from benchmarks.reasoner.knobs import make_problems
from benchmarks.stats import share, wilson

MEAN = "mean"


def compressed_families(policy: str, budget: int, problems: dict[str, list[tasks.Problem]]) -> list[str]:
    """The others cannot differ from full KV: none of their outputs gets as long as a first compression needs."""
    config = config_of(policy, budget)
    first = config.cap - config.spread_steps + 1  # the earliest first compression
    result = []
    for family, some in problems.items():
        tokens = max(len(p.cot_toks) for p in some) + ROOM  # at which every answer of the family is stopped
        if config.start(1) == 0:  # the prompt is evicted, too
            tokens += max(len(p.ids()[0]) for p in some)
        if tokens >= first:
            result.append(family)
    return result


def variants_of(args) -> dict[tuple[str, int | None], variants.Variant]:
    """{(policy, budget): run}; full KV first, and nothing where nothing would be compressed."""
    problems = {family: make_problems(family, args.level, args.n, args.regime) for family in tasks.FAMILIES}
    result = {(FULL, None): variants.Variant("full", FULL, flags_of(FULL), None)}
    for budget in args.budgets:
        for policy in [p for p in POLICIES if p in args.policies]:
            families = compressed_families(policy, budget, problems)
            if families:
                name = f"{policy}-{budget}"
                result[policy, budget] = variants.Variant(name, f"{policy} {budget}", flags_of(policy), budget, families)
    return result


def points(found: dict[tuple[str, int | None], dict[str, dict]]) -> list[Point]:
    """A point for each family and their mean; a family that is not compressed has full KV's answers.

    found: {(policy, budget): {family: the accuracy benchmark's record}}.  A policy and budget whose run failed has no points.
    """
    full, result = found.get((FULL, None), {}), []
    for (policy, budget), cells in found.items():
        whole = full | cells
        if set(whole) != set(tasks.FAMILIES):
            continue
        right, n = sum(c["right"] for c in whole.values()), sum(c["n"] for c in whole.values())
        for panel, r, m in [(MEAN, right, n), *((f, whole[f]["right"], whole[f]["n"]) for f in tasks.FAMILIES)]:
            compressions = None if panel == MEAN else cells[panel]["compressions_per_request"] if panel in cells else 0.0
            low, high = wilson(r, m)
            result.append(Point(policy, budget, panel, 100 * r / m, 100 * low, 100 * high, m, share(r, m), compressions))
    return result


def measure(args) -> Curves | None:
    """None if it was interrupted."""
    chosen = variants_of(args)
    paths = variants.measure_all(list(chosen.values()), args)
    if paths is None:
        return None
    files = {key: path for key, path in zip(chosen, paths, strict=True) if path}
    found = {key: variants.cells(path) for key, path in files.items()}
    unchanged = {(policy, budget): {} for budget in args.budgets for policy in args.policies if (policy, budget) not in chosen}
    note = (f"The embedded reasoner, {args.level} tokens of reasoning, {args.regime} knobs, {args.n} problems a family "
            f"(test-0 to test-{args.n - 1}), greedy, block {BLOCK}, engine and `random` with seed 0.  % right (95 % Wilson interval); K "
            f"as a share of the {args.level} tokens, and the prompt is held beside K where it is kept.  A family whose outputs all end "
            "before a first compression has full KV's answers.")
    return Curves(points(found | unchanged), "pass@1 in %", args.level, note, complete=None not in paths,
                  origins=sorted({variants.origin(path) for path in files.values()}))  # fmt: skip
