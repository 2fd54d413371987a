"""Records what compressions keep of a few requests at a time; used by the scheduler's thread, which it never holds up."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import numpy as np
import torch

import zipage_sglang
from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import KVBuffers
from zipage_sglang.policies import make_policy
from zipage_sglang.trace.file import Trace
from zipage_sglang.trace.writer import Growing, Limits, Writer, file_name

logger = logging.getLogger("zipage")
ATTRIBUTE = "zipage_trace"  # on SGLang's request, while it is being traced
MOST_COMPRESSIONS = 2**15 - 1  # what int16 counts


class Recorder:
    """Traces the first requests that are compressed while fewer than `Limits.requests` are traced; others pass unseen.

    What is kept is read back from the tables through the request's row, in a copy that nobody waits for: `compressed` must
    be called on the stream that the compression ran on, before anything else is enqueued there.
    """

    def __init__(self, folder: Path, config: ZipageConfig, buffers: KVBuffers, row_table: torch.Tensor, model: str,
                 rank: int, limits: Limits = Limits()):
        """row_table: SGLang's req_to_token.  rank: of tensor parallelism."""
        self.config, self.buffers, self.row_table = config, buffers, row_table
        self.model, self.rank, self.limits = model, rank, limits
        self.writer = Writer(folder, limits)
        self.live: set[Growing] = set()  # entered by the scheduler's thread, left by the writer's

    def slots(self, row: int, start: int, kept: int) -> torch.Tensor:
        """int64 [kept - start]: what [start, kept) of a row holds on the current stream."""
        return self.row_table[row, start:kept].long()

    def compressed(self, req, slots: torch.Tensor, start: int, true_len: int, first: bool):
        """A compression of the request has been enqueued.  slots: what it kept; start: its first candidate row; true_len: tokens
        of the request, evicted ones included.  first: since its prefill; a trace must begin with that."""
        growing = req.__dict__.get(ATTRIBUTE) or (self._begin(req, start) if first else None)
        if growing is None or not growing.complete:
            return
        if (self.writer.jobs.qsize() >= self.limits.pending or growing.nbytes(true_len - start) > self.limits.request_bytes
                or len(growing.true_lens) >= MOST_COMPRESSIONS):
            growing.complete = False
            return
        try:
            scored = make_policy(self._config(req)).stores_importance
            positions, importance, copied = self._copy(slots, scored)
        except RuntimeError:  # no memory, on either side
            logger.exception("the trace of %s ends early", req.rid)
            growing.complete = False
            return

        def merge():
            if copied is not None:
                copied.synchronize()
            if not growing.failed:
                growing.failed = True  # unless what follows succeeds: with one compression missing the next would be wrong
                growing.compressed(true_len, positions, importance)
                growing.failed = False

        self.writer.jobs.put(merge)

    def ended(self, req):
        """The request has finished; its row may be gone."""
        growing = req.__dict__.pop(ATTRIBUTE, None)
        if growing is None:
            return
        ids, prompt_len = list(req.origin_input_ids) + list(req.output_ids), len(req.origin_input_ids)
        heads, layers = self.buffers.k_buffers[0].shape[1], len(self.buffers.k_buffers)
        info: dict = dict(
            rid=str(req.rid), model=self.model, config=dataclasses.asdict(self._config(req)), rank=self.rank,
            layers=list(range(self.buffers.first_layer, self.buffers.first_layer + layers)),
            kv_heads=list(range(self.buffers.first_kv_head, self.buffers.first_kv_head + heads)),
            finish_reason=req.finished_reason.to_json() if req.finished_reason is not None else None,
            version=zipage_sglang.__version__,
        )

        def write():
            try:
                if growing.true_lens and not growing.failed:
                    trace = Trace(token_ids=np.array(ids, dtype=np.int32), prompt_len=prompt_len, start=growing.start,
                                  info={**info, "complete": growing.complete}, **growing.arrays())
                    self.writer.write(file_name(info["rid"], self.rank), trace)
            finally:
                self.live.discard(growing)

        self.writer.jobs.put(write)

    def dropped(self, req):
        """The request was retracted: it will be prefilled and compressed anew, and what was recorded is void."""
        growing = req.__dict__.pop(ATTRIBUTE, None)
        if growing is not None:
            self.writer.jobs.put(lambda: self.live.discard(growing))

    def _config(self, req) -> ZipageConfig:
        """The request's own, where it has asked for one (`zipage_sglang.per_request`)."""
        return getattr(req, "zipage_config", None) or self.config

    def _copy(self, slots: torch.Tensor, scored: bool):
        """(positions, importance or None, event or None): on the host once the event has come to pass."""
        if slots.is_cuda:
            slots.record_stream(torch.cuda.current_stream(slots.device))
        stored = self.buffers.importance if scored else None
        positions = _to_host(self.buffers.positions[:, slots])
        importance = _to_host(stored[:, slots]) if stored is not None else None
        if not slots.is_cuda:
            return positions, importance, None
        copied = torch.cuda.Event()
        copied.record()
        return positions, importance, copied

    def _begin(self, req, start: int) -> Growing | None:
        if len(self.live) >= self.limits.requests:
            return None
        layers, heads = len(self.buffers.k_buffers), self.buffers.k_buffers[0].shape[1]
        growing = Growing(start, torch.zeros(layers, heads, 0, dtype=torch.int16))
        req.__dict__[ATTRIBUTE] = growing
        self.live.add(growing)
        return growing


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the host, under way when this returns."""
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor, non_blocking=True)
