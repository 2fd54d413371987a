"""This process among the tensor-parallel ranks: `ps` of schedulers and model runners in 0.5.17, the runtime context in
0.5.23."""

from __future__ import annotations

from sglang.srt.runtime_context import get_parallel


def tensor_parallel(owner):
    """An object with `tp_rank` and `tp_size`; owner: the scheduler or the model runner."""
    return owner.ps if hasattr(owner, "ps") else get_parallel()
