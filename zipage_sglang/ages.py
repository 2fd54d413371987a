"""How old evicted tokens were: a histogram added up on the device and read a second later, so that nobody waits for it."""

from __future__ import annotations

import torch

from zipage_kernels.batch import CompressionBatch

# Tokens.
EDGES = (16, 32, 64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 65536)
MOST_LAYERS = 4  # that are looked at: enough to see what is evicted, and a small part of what scoring all of them costs
_NEVER = torch.iinfo(torch.int32).max


class EvictedAges:
    """Ages, in tokens, at which tokens were evicted; one count for each token, KV head of this rank and layer looked at.

    The age of a token is how many tokens the request had read or decoded after it.  At most four layers are looked at,
    evenly spaced.  Under CUDA graphs `add` is captured with the compression; it takes less memory than scoring has given back.
    """

    def __init__(self, layers: int, device: torch.device):
        """layers: local attention layers L."""
        self.step = -(-layers // MOST_LAYERS)
        self._edges = torch.tensor([*EDGES, _NEVER - 1], dtype=torch.int32, device=device)[:, None]
        # Entries up to each edge, those of any age, and the sum of all ages.
        self.totals = torch.zeros(len(EDGES) + 2, dtype=torch.int64, device=device)
        self._copy: tuple[torch.Tensor, torch.cuda.Event] | None = None

    def add(self, batch: CompressionBatch, keep: torch.Tensor, positions: torch.Tensor):
        """keep: bool, positions: int32, both [R, L, H, C] as `zipage_sglang.pipeline` has them."""
        keep, positions = keep[:, :: self.step], positions[:, :: self.step]
        latest = (batch.lengths.kv_lens + batch.lengths.evicted - 1)[:, None, None, None]
        gone = ~(keep | (positions < 0))
        ages = torch.where(gone, latest - positions, _NEVER).flatten()
        self.totals[:-1].add_((ages <= self._edges).sum(dim=1))
        self.totals[-1].add_(torch.where(ages < _NEVER, ages, 0).sum())

    def read(self, forward_stream, wait: bool = False) -> list[int] | None:
        """The totals as they were at an earlier call, None if their copy is still under way; starts the next copy.

        forward_stream: context that orders device work behind what has been enqueued.  wait: have them as they are now.
        """
        if self.totals.device.type != "cuda":
            return self.totals.tolist()
        if wait:
            self._copy = self._start(forward_stream)
            self._copy[1].synchronize()
        result = None
        if self._copy is not None and self._copy[1].query():
            result, self._copy = self._copy[0].tolist(), None
        if self._copy is None and not wait:
            self._copy = self._start(forward_stream)
        return result

    def _start(self, forward_stream) -> tuple[torch.Tensor, torch.cuda.Event]:
        with forward_stream:
            host = torch.empty(self.totals.shape, dtype=torch.int64, pin_memory=True)
            host.copy_(self.totals, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        return host, event
