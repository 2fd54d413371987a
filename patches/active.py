"""The live objects of this scheduler process, for hooks that SGLang calls without a scheduler in reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from zipage_sglang.compressor import Compressor
from zipage_sglang.config import ZipageConfig
from zipage_sglang.runtime import Runtime

if TYPE_CHECKING:
    from zipage_patches.telemetry import Metrics
    from zipage_sglang.invariants import InvariantChecker

# Set before the first hook that reads them; runtime is looked at earlier, by warm-up forwards.
config: ZipageConfig = None  # type: ignore[assignment]
compressor: Compressor = None  # type: ignore[assignment]
runtime: Runtime | None = None
workspace_bytes = 0
fixed_bytes = 0  # of it and of the query slots that do not grow with the pool
pool_bytes: Callable[[int], int]  # of the cells that fit into the rest
checker: InvariantChecker | None = None
metrics: Metrics | None = None
recorder: Any = None
planned: torch.cuda.Event | None = None  # behind the latest attention plan of a captured decode step, see patches/forward.py
_manager: Any = None


def manager() -> Any:
    """The manager, or None before the scheduler is built (warm-up and graph capture run earlier)."""
    return _manager


def set_manager(value):
    global _manager
    _manager = value
