"""The file of one traced request: a .npz of NumPy arrays, readable without this package (`numpy.load`)."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

SUFFIX = ".zipage.npz"
FORMAT = 1


class TraceError(ValueError):
    """A file that is no trace, or traces that do not belong together; the message names the file."""


@dataclasses.dataclass(eq=False)
class Trace:
    """T tokens of a request, N compressions of it, L layers and H KV heads of the ranks that wrote it.

    token_ids: int32 [T], prompt and output.  prompt_len, start: tokens; positions below `start` are never evicted.
    true_lens: int32 [N], tokens that the request had at each compression.
    evicted_at: uint16 [L, H, true_lens[-1] - start], the compression (1 is the first) that evicted the token at position
        start + j, 0 if none did.  A token is evicted once from a head, so this is what every compression kept.
    scores: float16 [N, same], the remembered score F after each compression, its mean over the layers and heads that hold
        the token, NaN where none does; [0, 0] for policies that remember none.
    info: rid, model, config (the ZipageConfig), layers and kv_heads (global indices of L and H), rank, finish_reason,
        complete (False: the trace ends before the request did, because it grew too large), and version.
    """

    token_ids: np.ndarray
    prompt_len: int
    start: int
    true_lens: np.ndarray
    evicted_at: np.ndarray
    scores: np.ndarray
    info: dict

    @property
    def compressions(self) -> int:
        """N."""
        return len(self.true_lens)

    def held(self, n: int) -> np.ndarray:
        """bool [L, H, true_lens[n - 1] - start]: what compression n (1 <= n <= N) kept, by position from `start` on."""
        evicted_at = self.evicted_at[..., : self.true_lens[n - 1] - self.start]
        return (evicted_at == 0) | (evicted_at > n)

    def kept(self, n: int, layer: int, head: int) -> np.ndarray:
        """int64 [K]: positions that compression n kept, in order; layer and head count from 0 within this trace."""
        return np.flatnonzero(self.held(n)[layer, head]) + self.start

    def share(self, n: int) -> np.ndarray:
        """float32 [true_lens[n - 1] - start]: share of layers and heads that hold each token after compression n."""
        return self.held(n).mean(axis=(0, 1), dtype=np.float32)

    def save(self, path: Path):
        """Raises OSError."""
        numbers = np.array([FORMAT, self.prompt_len, self.start], dtype=np.int64)
        with open(path, "wb") as f:
            np.savez_compressed(
                f, numbers=numbers, token_ids=self.token_ids, true_lens=self.true_lens, evicted_at=self.evicted_at,
                scores=self.scores, info=np.array(json.dumps(self.info)),
            )


def load(path: Path) -> Trace:
    """Raises TraceError."""
    try:
        with np.load(path, allow_pickle=False) as data:
            version, prompt_len, start = data["numbers"].tolist()
            if version != FORMAT:
                raise TraceError(f"{path}: a trace of format {version}, this release reads format {FORMAT}")
            arrays = {name: data[name] for name in ("token_ids", "true_lens", "evicted_at", "scores")}
            return Trace(prompt_len=prompt_len, start=start, info=json.loads(str(data["info"])), **arrays)
    except TraceError:
        raise
    except Exception as error:  # zipfile, zlib and NumPy each have their own
        raise TraceError(f"{path}: not a trace written by --zipage-trace ({type(error).__name__}: {error})") from None


def merge(traces: list[Trace]) -> Trace:
    """The traces that tensor-parallel ranks wrote of one request, as one with the KV heads of all.

    A head that several ranks hold is taken once.  Scores are averaged over the ranks.  Raises TraceError.
    """
    first = traces[0]
    for other in traces[1:]:
        if other.info["rid"] != first.info["rid"] or not np.array_equal(other.true_lens, first.true_lens):
            raise TraceError(f"traces of different requests or runs: {first.info['rid']} and {other.info['rid']}")
    columns: dict[int, np.ndarray] = {}
    for trace in traces:
        for h, head in enumerate(trace.info["kv_heads"]):
            columns.setdefault(head, trace.evicted_at[:, h])
    heads = sorted(columns)
    scores = np.stack([trace.scores for trace in traces]).astype(np.float32)
    weight = np.isfinite(scores)
    count = weight.sum(axis=0)
    mean = np.where(weight, scores, 0).sum(axis=0) / np.maximum(count, 1)
    return dataclasses.replace(
        first, evicted_at=np.stack([columns[head] for head in heads], axis=1),
        scores=np.where(count > 0, mean, np.nan).astype(np.float16), info={**first.info, "kv_heads": heads},
    )
