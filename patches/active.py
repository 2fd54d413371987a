"""The live objects of this scheduler process, for hooks that SGLang calls without a scheduler in reach."""

from __future__ import annotations

from zipage_sglang.compressor import Compressor
from zipage_sglang.config import ZipageConfig
from zipage_sglang.runtime import Runtime

config: ZipageConfig | None = None
runtime: Runtime | None = None
compressor: Compressor | None = None
workspace_bytes = 0
checker = None
metrics = None
recorder = None
_manager = None


def manager():
    """The manager, or None before the scheduler is built (warm-up and graph capture run earlier)."""
    return _manager


def set_manager(value):
    global _manager
    _manager = value
