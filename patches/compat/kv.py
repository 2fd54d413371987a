"""A request's KV bookkeeping: spread over the request in 0.5.17, all of it on `req.kv` in 0.5.23."""

from __future__ import annotations

from sglang.srt.managers.schedule_batch import ReqKvInfo

ON_KV = hasattr(ReqKvInfo, "kv_committed_len")

if ON_KV:

    def _record(req):
        return req.kv

    def holds(req) -> bool:
        """Whether the request has a row and slots."""
        return req.kv.holds_kv

else:

    def _record(req):
        return req

    def holds(req) -> bool:
        """Whether the request has a row and slots."""
        return req.kv is not None


def row(req) -> int:
    """The request's row of SGLang's row table."""
    return _record(req).req_pool_idx


def length(req) -> int:
    """KV slots that hold tokens."""
    return _record(req).kv_committed_len


def allocated(req) -> int:
    """KV slots of the row; equal to `length` between two steps."""
    return req.kv.kv_allocated_len


def set_length(req, slots: int):
    """The row holds, and has, so many slots from now on."""
    _record(req).kv_committed_len = req.kv.kv_allocated_len = slots


def protected(req) -> int:
    """Leading rows whose slots belong to the prefix tree."""
    return _record(req).cache_protected_len


def set_protected(req, rows: int):
    _record(req).cache_protected_len = rows
