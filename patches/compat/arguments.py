"""Server arguments: a dataclass that holds what was resolved in 0.5.17; in 0.5.23 a msgspec Struct that holds what was asked
for, with what was resolved beside it."""

from __future__ import annotations

import dataclasses

from sglang.srt.server_args import ServerArgs

RESOLVES_ASIDE = hasattr(ServerArgs, "resolve_once")
CLASS_KEYWORDS = {"dict": True} if RESOLVES_ASIDE else {}  # of the statement of a subclass

# Where the resolution of a GPU's arguments reads its memory; `sizing` says another figure there.
_CAPACITY = "get_device_memory_capacity"
MEMORY_CAPACITY = f"sglang.srt.{'arg_groups.memory_hook' if RESOLVES_ASIDE else 'server_args'}.{_CAPACITY}"


def with_fields(cls: type) -> type:
    """Decorator of a subclass that adds fields."""
    return cls if RESOLVES_ASIDE else dataclasses.dataclass(cls)


def resolve(args):
    """0.5.17 resolves on construction.  Idempotent."""
    if RESOLVES_ASIDE:
        args.resolve_once()


def resolved(args):
    """An object whose attributes are the resolved arguments."""
    if hasattr(args, "resolve_once"):
        from sglang.srt.arg_groups.model_override_base import resolving_view

        return resolving_view(args)
    return args


def model_config(args):
    """SGLang's ModelConfig of the resolved arguments."""
    if RESOLVES_ASIDE:
        from sglang.srt.arg_groups.model_override_base import model_config_of

        return model_config_of(args)
    return args.get_model_config()
