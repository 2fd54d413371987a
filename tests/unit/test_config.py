import dataclasses
import math

import pytest

from zipage_sglang.config import ADMIT_EVERY, PRESETS, ZipageConfig


def test_defaults():
    config = ZipageConfig()
    assert (config.budget, config.block, config.window, config.cap) == (2048, 256, 16, 2304)
    assert config.reserve == 512
    assert config.forced_sinks == 0  # the prompt is kept, and the sinks with it


def test_paper_preset():
    paper = ZipageConfig(**PRESETS["paper"])
    assert (paper.budget, paper.block, paper.window) == (2048, 256, 16)
    assert (paper.alpha, paper.lam, paper.tau) == (0.8, 0.2, 0.4)
    assert (paper.policy, paper.redundancy, paper.pooling) == ("zipage", "lightning", "once")
    assert paper.reserve == 16
    assert (paper.windows, paper.spread_steps) == (1, 1)


@pytest.mark.parametrize(
    "changes, earliest",
    [(dict(), 63), (dict(spread=1), 0), (dict(spread=256), 255), (dict(block=32, window=8), 7), (dict(block=2, window=1), 0),
     (dict(budget=16, recency=0.0), 15), (dict(when="pressure"), 0)],
)  # fmt: skip
def test_first_compressions_are_spread_evenly_and_leave_room_for_all_windows(changes, earliest):
    config = ZipageConfig(**changes)
    steps = [config.early(n) for n in range(3 * config.spread_steps)]
    assert sorted(steps) == sorted(3 * list(range(earliest + 1)))
    assert config.cap - earliest >= config.scored and config.cap - earliest > config.budget


def test_requests_are_admitted_in_groups_but_not_under_pressure():
    assert ZipageConfig().group_steps == ADMIT_EVERY and ZipageConfig(admit_every=0).group_steps == 0
    assert ZipageConfig(admit_every=7).group_steps == 7 and ZipageConfig(admit_every=7, when="pressure").group_steps == 0


@pytest.mark.parametrize("budget, reserve", [(2048, 512), (1024, 256), (512, 128), (400, 128), (256, 128), (96, 48), (10, 8)])
def test_the_default_reserve_is_a_quarter_but_not_of_small_budgets(budget, reserve):
    assert ZipageConfig(budget=budget, block=256, window=8).reserve == reserve


@pytest.mark.parametrize(
    "budget, window, recency, reserve",
    [(10, 3, 0.0, 3), (10, 3, 0.35, 3), (10, 3, 0.49, 4), (10, 3, 1.0, 10), (7, 1, 0.5, 3)],
)
def test_reserve_is_the_larger_of_window_and_floor(budget, window, recency, reserve):
    assert ZipageConfig(budget=budget, block=8, window=window, recency=recency).reserve == reserve


@pytest.mark.parametrize(
    "flag, changes",
    [
        ("block", dict(block=0)),
        ("budget", dict(budget=0)),
        ("window", dict(window=0)),
        ("window", dict(window=257)),
        ("sinks", dict(sinks=-1)),
        ("recency", dict(recency=-0.01)),
        ("recency", dict(recency=1.01)),
        ("recency", dict(recency=math.nan)),
        ("budget", dict(budget=15, recency=0.0)),
        ("policy", dict(policy="snapkv")),
        ("redundancy", dict(redundancy="thunder")),
        ("pooling", dict(pooling="twice")),
        ("prefix", dict(prefix="drop")),
        ("alpha", dict(alpha=-0.1)),
        ("alpha", dict(alpha=1.1)),
        ("alpha", dict(alpha=math.nan)),
        ("lambda", dict(lam=-0.1)),
        ("lambda", dict(lam=1.1)),
        ("tau", dict(tau=0.0)),
        ("tau", dict(tau=math.inf)),
        ("passes", dict(passes=-1)),
        ("admit-every", dict(admit_every=-1)),
        ("spread", dict(spread=-1)),
        ("spread", dict(spread=257)),
        ("passes", dict(passes=17)),
        ("passes", dict(passes=2, policy="attention")),
        ("passes", dict(passes=2, when="pressure")),
        ("passes", dict(passes=2, async_steps=1)),
        ("max-budget", dict(max_budget=1024)),
        ("per-request", dict(per_request="some")),
        ("seed", dict(seed=-1)),
        ("seed", dict(seed=2**32)),
    ],
)
def test_impossible_values_are_refused_by_flag(flag, changes):
    with pytest.raises(ValueError, match=rf"--zipage-{flag}\b"):
        ZipageConfig(**changes)


@pytest.mark.parametrize(
    "changes",
    [
        dict(budget=16, recency=0.0),
        dict(window=256),
        dict(passes=16),
        dict(recency=1.0),
        dict(alpha=0.0, lam=1.0),
        dict(seed=2**32 - 1),
        dict(sinks=0),
    ],
)
def test_extreme_values_that_work(changes):
    assert dataclasses.asdict(ZipageConfig(**changes)).items() >= changes.items()


@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_page_sizes_that_divide(page_size):
    ZipageConfig().check_page_size(page_size)


@pytest.mark.parametrize(
    "flag, changes, page_size, instead",
    [("block", dict(block=100), 64, 128), ("budget", dict(budget=1000), 16, 1008), ("max-budget", dict(max_budget=2056), 16, 2064), ("block", {}, 512, 512)],
)
def test_page_sizes_that_do_not_divide_are_refused_with_a_way_out(flag, changes, page_size, instead):
    with pytest.raises(ValueError, match=rf"--zipage-{flag} .*--page-size {page_size}: use {instead} "):
        ZipageConfig(**changes).check_page_size(page_size)


@pytest.mark.parametrize("prefix, prompt_len, start", [
    ("keep", 5000, 5000), ("compress", 5, 0), ("auto", 64, 64), ("auto", 65, 0),
])
def test_start_is_decided_by_mode_and_prompt_length(prefix, prompt_len, start):
    config = ZipageConfig(budget=64, block=16, window=8, prefix=prefix)
    assert config.start(prompt_len) == start


@pytest.mark.parametrize("name, value, flag", [
    ("admit_every", "abc", "admit-every"), ("admit_every", 1.5, "admit-every"), ("budget", True, "budget"), ("lam", "x", "lambda"),
    ("policy", 3, "policy"),
])  # fmt: skip
def test_values_of_another_type(name, value, flag):
    with pytest.raises(ValueError, match=f"^--zipage-{flag}: must be of type .*, got {value!r}$"):
        ZipageConfig(**{name: value})


def test_whole_numbers_are_numbers():
    assert ZipageConfig(recency=1, alpha=0).reserve == 2048
