"""What a request may set for itself, and within which limits of the server's.

It says so in its sampling parameters: `{"custom_params": {"zipage": {"budget": 512}}}`, or `{"enabled": False}` there.  What
sizes buffers or chooses kernels (window, block, redundancy, pooling, when) stays the server's.
"""

from __future__ import annotations

import dataclasses
import math
import re

from zipage_sglang.compressor import most_candidates
from zipage_sglang.config import ZipageConfig
from zipage_sglang.policies import make_policy

KEY = "zipage"  # in SGLang's custom_params
# what a request calls it -> (field of ZipageConfig, type)
SETTINGS = {
    "budget": ("budget", int),
    "recency": ("recency", float),
    "policy": ("policy", str),
    "alpha": ("alpha", float),
    "lambda": ("lam", float),
    "tau": ("tau", float),
    "sinks": ("sinks", int),
    "seed": ("seed", int),
    "prefix": ("prefix", str),
}
TYPES = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}


class InvalidSettings(ValueError):
    """A request's settings cannot be had on this server."""


def _refuse(says: str):
    raise InvalidSettings(f"custom_params.{KEY}{says}")


def _typed(name: str, value, kind: type):
    # bool is an int in Python, not to a client; 1 is a number.
    if type(value) is not kind and not (kind is float and type(value) is int):
        _refuse(f".{name}: must be {TYPES[kind]}, got {value!r:.80}")
    try:
        return kind(value)
    except OverflowError:
        _refuse(f".{name}: {value!r:.20}... is too large")


def request_config(custom_params, server: ZipageConfig, page_size: int, prompt_len: int) -> ZipageConfig | None:
    """The configuration of one request, None where it is not to be compressed.

    custom_params: of its sampling parameters, or None.  server: the server's configuration.  prompt_len: tokens.  Depends on
    nothing else, so that all processes come to the same.  Raises InvalidSettings, a ValueError, with the reason.
    """
    asked = custom_params.get(KEY) if isinstance(custom_params, dict) else None
    if asked is None:
        return server
    if server.per_request == "none":
        _refuse(": this server takes no settings from requests (--zipage-per-request none)")
    if not isinstance(asked, dict):
        _refuse(f": must be an object, got {asked!r:.80}")
    if unknown := [str(name) for name in asked if name != "enabled" and name not in SETTINGS]:
        _refuse(f".{unknown[0]}: a request can set {', '.join(('enabled', *SETTINGS))} only; the rest is the server's")
    enabled = _typed("enabled", asked.get("enabled", True), bool)
    values = {}
    for name, (field, kind) in SETTINGS.items():
        if name in asked:
            values[field] = _typed(name, asked[name], kind)
    if server.passes > 1 and values.get("policy", server.policy) != server.policy:
        values["passes"] = 1  # other policies have no scores to add to
    try:
        config = dataclasses.replace(server, **{"max_budget": 0, **values})
    except ValueError as error:
        raise InvalidSettings(_in_words_of_requests(str(error))) from None
    _check_limits(config, server, page_size, prompt_len)
    if not enabled and server.per_request == "no-off":
        _refuse(".enabled: this server does not let requests switch compression off (--zipage-per-request no-off)")
    return dataclasses.replace(config, max_budget=server.max_budget) if enabled else None


def _check_limits(config: ZipageConfig, server: ZipageConfig, page_size: int, prompt_len: int):
    most = server.largest_cap - server.block
    if config.budget > most:
        _refuse(f".budget: at most {most} on this server (--zipage-max-budget), got {config.budget}")
    if config.sinks > config.budget:
        _refuse(f".sinks: must not exceed the budget of {config.budget}, got {config.sinks}")
    if config.budget % page_size:
        instead = min(math.ceil(config.budget / page_size) * page_size, most)
        _refuse(f".budget: must be a multiple of the page size {page_size}, such as {instead}, got {config.budget}")
    if make_policy(config).stores_importance and not make_policy(server).stores_importance:
        _refuse(f".policy: {config.policy!r} needs a table that a server with --zipage-policy {server.policy} does not have")
    if server.prefix == "keep" and server.when == "always" and config.start(prompt_len) == 0:
        room = most_candidates(server) - server.window
        if prompt_len > room:
            _refuse(f".prefix: prompts of more than {room} tokens cannot be compressed here, this one has {prompt_len}")


def _in_words_of_requests(message: str) -> str:
    """ZipageConfig names flags; a client knows them by other names, where it can set them at all."""
    named = re.sub(r"--zipage-([a-z]+)", lambda m: f"{KEY}.{m[1]}" if m[1] in SETTINGS else m[0], message)
    return f"custom_params.{named}"


def effective(config: ZipageConfig | None) -> dict:
    """What an answer's meta_info says of the configuration that its request had."""
    return dict(enabled=False) if config is None else dict(budget=config.budget)
