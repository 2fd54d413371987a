"""How many KV tokens a running request holds on average in a saturated engine, and what follows for how many can run.

Seen at a random step, long requests are over-represented: a request of L output tokens is there for L steps.  So every mean
here is (tokens held, summed over all steps of all requests) / (steps of all requests).  With c = K + b:

* full KV: a request holds t tokens of its own at step t, L^2 / 2 over its life.
* zipage: t up to the first compression (t = c if the prompt is kept), then a saw tooth from K to K + b, mean K + b / 2.
* the prompt is held once for all requests that share it, for as long as the longest of them runs.  (They do not start
  together, so this is a lower bound, a good one while starts are spread over less than a life.)  Where zipage evicts the
  prompt too, the shared copy is held until the first compression only, and the prompt counts in K + b.

A saturated pool has tokens / held requests running.  At equal resident tokens a decode step takes about the same time in both
modes (attention reads the same bytes), so the ratio of requests running is the most that output can rise by: the ceiling.
"""

from __future__ import annotations

from zipage_sglang.config import ZipageConfig


def held(groups: list[list[int]], prompt: int, config: ZipageConfig | None = None) -> float:
    """Mean KV tokens of a running request, its share of the prompt included.

    groups: output lengths of the requests that share a prompt of `prompt` tokens.  config: None for full KV.
    """
    private = sum(_private(length, prompt, config) for group in groups for length in group)
    return private / sum(map(sum, groups)) + prompt_share(groups, prompt, config)


def prompt_share(groups: list[list[int]], prompt: int, config: ZipageConfig | None = None) -> float:
    """A running request's mean share of its prompt's KV tokens."""
    until = _first(prompt, config) if config and not _keeps(prompt, config) else float("inf")
    return prompt * sum(min(max(group), until) for group in groups) / sum(map(sum, groups))


def promised(groups: list[list[int]], prompt: int, config: ZipageConfig) -> float:
    """What admission must set aside for a long request: its share of the prompt and K + b."""
    return prompt_share(groups, prompt, config) + config.cap


def running(tokens_held: float, pool: int, requests: int, limit: int | None = None) -> float:
    """Requests that run at once in a pool of `pool` tokens when there are `requests`, and SGLang allows `limit`."""
    return min(pool / tokens_held, requests, limit or requests)


def _private(length: int, prompt: int, config: ZipageConfig | None) -> float:
    """Tokens held outside the shared prompt, summed over a request's steps."""
    if config is None:
        return length**2 / 2
    growing = min(length, _first(prompt, config))
    return growing**2 / 2 + (length - growing) * (config.budget + config.block / 2)


def _keeps(prompt: int, config: ZipageConfig) -> bool:
    return config.start(prompt) == prompt


def _first(prompt: int, config: ZipageConfig) -> int:
    """Steps up to the first compression."""
    return config.cap if _keeps(prompt, config) else max(config.cap - prompt, config.window)
