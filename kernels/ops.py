"""The kernels as the rest of the package calls them: Triton for CUDA tensors, the torch twins for all others.

The contracts are the docstrings of the twins.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable

from zipage_kernels import reference


@functools.cache
def _triton_twins():
    # Imported when a CUDA tensor first needs it: elsewhere Triton may not even be installed.
    return importlib.import_module("zipage_kernels.triton")


def _by_device(twin: Callable) -> Callable:
    """Calls the Triton kernel of the same name if the first argument (a tensor or a list of them) is on a CUDA device."""

    @functools.wraps(twin)
    def op(first, *args, **kwargs):
        tensor = first[0] if isinstance(first, list) else first
        run = getattr(_triton_twins(), twin.__name__) if tensor.is_cuda else twin
        return run(first, *args, **kwargs)

    return op


add_attention = _by_device(reference.add_attention)
attention_score = _by_device(reference.attention_score)
compact = _by_device(reference.compact)
copy_slots = _by_device(reference.copy_slots)
gather_importance = _by_device(reference.gather_importance)
gather_positions = _by_device(reference.gather_positions)
gather_rows = _by_device(reference.gather_rows)
max_pool = _by_device(reference.max_pool)
redundancy = _by_device(reference.redundancy)
select = _by_device(reference.select)
select_forced = _by_device(reference.select_forced)
store_log_sums = _by_device(reference.store_log_sums)
store_query = _by_device(reference.store_query)
zipage_score = _by_device(reference.zipage_score)
