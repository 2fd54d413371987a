"""Likelihood of a document under full KV and under one compressed setting, token by token."""

from __future__ import annotations

import dataclasses
import time

import torch
import torch.nn.functional as F

from benchmarks.language.documents import Document
from benchmarks.language.stream import Stream
from zipage_sglang.config import ZipageConfig
from zipage_sglang.state import RequestState

CHUNK = 128  # most tokens fed at a time


@dataclasses.dataclass(frozen=True)
class FullPass:
    """What every compressed pass over a document is compared with, and starts from.

    nll: fp32 [T - 1], nats of token i + 1 given the tokens up to i.  top: int64 [T - 1], the likeliest token i + 1.  Both hold
    nothing before the first cut.  queries: the query cache at each cut.
    """

    stream: Stream
    nll: torch.Tensor
    top: torch.Tensor
    queries: dict[int, torch.Tensor]


def first_cut(config: ZipageConfig, document: Document) -> int:
    """Tokens before the first compression."""
    return RequestState(config.start(document.prompt_len), document.prompt_len, config).trigger


def _predict(model, hidden: torch.Tensor, following: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """(nats, likeliest token) at each position that a token follows."""
    with torch.inference_mode():
        logits = model.lm_head(hidden[: len(following)]).float()
        nats = F.cross_entropy(logits, torch.tensor(following, device=logits.device), reduction="none")
        return nats.cpu(), logits.argmax(dim=-1).cpu()


def full_pass(model, document: Document, cuts: set[int], window: int) -> FullPass:
    """cuts: lengths at which compressed passes start from it."""
    ids = document.ids
    stream = Stream(model, None, document.prompt_len, len(ids), window)
    nll, top = torch.zeros(len(ids) - 1), torch.zeros(len(ids) - 1, dtype=torch.int64)
    queries = {}
    while stream.fed < len(ids):
        first = stream.fed
        end = min([first + CHUNK, len(ids), *(cut for cut in cuts if cut > first)])
        hidden = stream.feed(ids[first:end])
        if end in cuts:
            queries[end] = stream.rows.query_cache.clone()
        following = ids[first + 1 : end + 1]
        if first >= min(cuts) and following:
            at = slice(first, first + len(following))
            nll[at], top[at] = _predict(model, hidden, following)
    return FullPass(stream, nll, top, queries)


def compressed_pass(model, document: Document, config: ZipageConfig, full: FullPass) -> dict:
    """One record: only tokens that were predicted after the first compression count.  Means are nats per token."""
    started = time.perf_counter()
    ids, cut = document.ids, first_cut(config, document)
    stream = Stream(model, config, document.prompt_len, len(ids), full.stream.rows.window)
    stream.take_prefix(full.stream, cut, full.queries[cut])
    nll, top = [], []
    for first, hidden in stream.chunks(ids, CHUNK):
        following = ids[first + 1 : first + 1 + len(hidden)]
        if following:
            some = _predict(model, hidden, following)
            nll.append(some[0])
            top.append(some[1])
    nll, top = torch.cat(nll), torch.cat(top)
    return dict(
        tokens=len(nll),
        nll=nll.mean().item(),
        nll_full=full.nll[cut:].mean().item(),
        agreement=(top == full.top[cut:]).float().mean().item(),
        compressions=stream.state.count,
        nan_scores=int(stream.compressor.nan_scores),
        seconds=round(time.perf_counter() - started, 2),
        compress_seconds=round(stream.compressor.seconds, 2),
    )
