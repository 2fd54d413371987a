"""The thread that turns what the device sends into files: the scheduler waits neither for the device nor for a disk."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import queue
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from zipage_sglang.trace.file import SUFFIX, Trace

logger = logging.getLogger("zipage")


@dataclasses.dataclass(frozen=True)
class Limits:
    """What tracing may cost.  requests: traced at a time.  request_bytes: arrays of one of them in memory.  files,
    folder_bytes: the folder, whose oldest traces go to make room for new ones.  pending: compressions that the device has
    sent and that wait for the thread; beyond that the trace in question ends early."""

    requests: int = 4
    request_bytes: int = 256 * 2**20
    files: int = 256
    folder_bytes: int = 2**30
    pending: int = 16


@dataclasses.dataclass(eq=False)
class Growing:
    """The arrays of a request that is still running; see `Trace`.  Only the writer's thread changes them.

    complete: whether all compressions so far were recorded.  failed: an error has left the arrays in an unknown state.
    """

    start: int
    evicted_at: torch.Tensor  # int16 [L, H, capacity]
    true_lens: list[int] = dataclasses.field(default_factory=list)
    scores: list[np.ndarray] = dataclasses.field(default_factory=list)  # float16 [tokens], one per compression
    complete: bool = True
    failed: bool = False

    def nbytes(self, tokens: int) -> int:
        """Bytes with a compression at that many tokens from `start` on."""
        layers, heads, _ = self.evicted_at.shape
        return 2 * layers * heads * tokens + 2 * (len(self.scores) + 1) * tokens

    def compressed(self, true_len: int, positions: torch.Tensor, importance: torch.Tensor | None):
        """positions: int32 [L, K, H], kept by the compression at `true_len` tokens.  importance: bf16, same shape, or None."""
        layers, kept, heads = positions.shape
        tokens = true_len - self.start
        if tokens > self.evicted_at.shape[2]:
            grown = torch.zeros(layers, heads, 2 * tokens, dtype=torch.int16)
            grown[..., : self.evicted_at.shape[2]] = self.evicted_at
            self.evicted_at = grown
        index = (positions.long() - self.start).transpose(1, 2).contiguous()
        held = torch.zeros(layers, heads, tokens, dtype=torch.bool).scatter_(2, index, True)
        self.true_lens.append(true_len)
        now = self.evicted_at[..., :tokens]
        now.masked_fill_(~held & (now == 0), len(self.true_lens))
        if importance is not None:
            total = torch.zeros(tokens).scatter_add_(0, index.flatten(), importance.float().transpose(1, 2).flatten())
            mean = total / held.sum(dim=(0, 1))  # 0 / 0 is NaN: nobody holds it
            self.scores.append(mean.numpy().astype(np.float16))

    def arrays(self) -> dict[str, np.ndarray]:
        tokens = self.true_lens[-1] - self.start
        scores = np.full((len(self.scores), tokens if self.scores else 0), np.nan, dtype=np.float16)
        for row, values in zip(scores, self.scores):
            row[: len(values)] = values
        return dict(evicted_at=self.evicted_at[..., :tokens].numpy().astype(np.uint16), scores=scores,
                    true_lens=np.array(self.true_lens, dtype=np.int32))


class Writer:
    """Does what it is given, in order, on a thread of its own that ends with the process.

    Errors end a trace, never the server: they are logged.
    """

    def __init__(self, folder: Path, limits: Limits):
        self.folder, self.limits = folder, limits
        self.jobs: queue.Queue[Callable[[], None]] = queue.Queue()
        threading.Thread(target=self._run, name="zipage-trace", daemon=True).start()

    def _run(self):
        while True:
            job = self.jobs.get()
            try:
                job()
            except Exception:
                logger.exception("a trace is lost")
            finally:
                self.jobs.task_done()

    def write(self, name: str, trace: Trace):
        """Into a file of its own, whole or not at all, after the oldest have made room for it."""
        temporary = self.folder / f"{name}.tmp"
        try:
            trace.save(temporary)
            size = temporary.stat().st_size
            if size > self.limits.folder_bytes:
                logger.warning("trace %s is larger than all traces together may be (%d bytes): dropped", name, size)
                return
            self._make_room(size)
            temporary.replace(self.folder / name)
        finally:
            temporary.unlink(missing_ok=True)

    def _make_room(self, size: int):
        found = []
        for path in self.folder.glob("*" + SUFFIX):
            with contextlib.suppress(FileNotFoundError):  # another rank makes room, too
                stat = path.stat()
                found.append((stat.st_mtime_ns, stat.st_size, path))
        found.sort()
        total = sum(bytes_ for _, bytes_, _ in found)
        while found and (len(found) >= self.limits.files or total + size > self.limits.folder_bytes):
            _, bytes_, path = found.pop(0)
            path.unlink(missing_ok=True)
            total -= bytes_


def file_name(rid: str, rank: int) -> str:
    """Of a request, whose id is whatever the client has sent."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", rid)[:80]
    if safe != rid:
        safe += "-" + hashlib.sha256(rid.encode()).hexdigest()[:8]
    return f"{safe}-rank{rank}{SUFFIX}"
