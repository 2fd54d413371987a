"""Calls on the scheduler and its batches that take other arguments in another release."""

from __future__ import annotations

import inspect

from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.managers.scheduler import Scheduler

_TAKES_ARGS = "server_args" in inspect.signature(ScheduleBatch.release_req).parameters
_SENDS_ABORTS = hasattr(Scheduler, "send_abort_output")


def release(scheduler, batch, index: int, remaining: int):
    """Free a running request's row and slots so that it can be prefilled again; `remaining` requests stay in the batch."""
    batch.release_req(index, remaining, *([scheduler.server_args] if _TAKES_ARGS else []))


def reserve(adder, tokens: int):
    """Have a PrefillAdder leave so many more KV slots to requests that run."""
    if hasattr(adder, "memory_budget"):
        adder.memory_budget.total_offset += tokens
    else:
        adder.rem_total_token_offset += tokens


def send_abort(scheduler, abort, req):
    """Tell the client that a request which waits has ended."""
    if _SENDS_ABORTS:
        scheduler.send_abort_output(abort, req)
    else:
        scheduler.ipc_channels.send_to_tokenizer.send_output(abort, req)
