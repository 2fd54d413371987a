"""Greedy decoding with per-head eviction: when to compress, what moves where, and what retraction resets."""
import struct
import zlib
from collections import deque
from dataclasses import dataclass, field

import torch

from . import scoring


@dataclass(frozen=True)
class OracleConfig:
    """The knobs, named as the package names them. `policy`: zipage, attention, recent, random; `prefix`: keep, compress,
    auto; `redundancy`: lightning, flash, none; `pooling`: once, never, always. Raises ValueError if K is too small."""

    budget: int = 2048
    block: int = 256
    window: int = 16
    policy: str = "zipage"
    alpha: float = 0.8
    lam: float = 0.2
    tau: float = 0.4
    redundancy: str = "lightning"
    pooling: str = "once"
    sinks: int = 4
    recency: float = -1.0
    seed: int = 0
    prefix: str = "keep"
    passes: int = 0
    spread: int = 0

    def __post_init__(self):
        if self.window > self.block or self.recent + self.sinks > self.budget:
            raise ValueError("need window <= block and max(window, floor(recency * budget)) + sinks <= budget")

    @property
    def windows(self):
        """Windows that score: `passes`, or all of a block (of zipage; the other policies have no scores to add to)."""
        return self.passes or (self.block // self.window if self.policy == "zipage" else 1)

    def early(self, prompt):
        """Tokens by which a greedy request's first compression comes before K + b: CRC-32 of its prompt's ids, as int64 in
        little-endian order, modulo the steps to spread over."""
        steps = min(self.spread or self.block // 4, self.budget, self.block)
        return zlib.crc32(struct.pack(f"<{len(prompt)}q", *prompt)) % max(1, steps)

    @property
    def recent(self):
        if self.recency < 0:
            return max(self.window, min(max(self.budget // 4, 128), self.budget // 2))
        return scoring.recent_count(self.window, self.recency, self.budget)


@dataclass
class Compression:
    """One compression. count: its number since the last (re)prefill, from 0; tokens: output tokens sampled when the step
    was planned; true_len, kv_len: tokens fed and rows held just before it; kept: int64 [L, H, K] sorted positions of the
    kept candidates (the prefix is not listed in `keep`); gap: fp32 [L, H] score distance between last kept and first
    dropped token."""

    count: int
    tokens: int
    true_len: int
    kv_len: int
    kept: torch.Tensor
    gap: torch.Tensor


@dataclass
class Result:
    """tokens: sampled ids, an EOS that ended the output included; margins: logit of each minus the runner-up's."""

    tokens: list = field(default_factory=list)
    margins: list = field(default_factory=list)
    compressions: list = field(default_factory=list)

    @property
    def kept(self):
        """Per compression, layer and KV head: the sorted list of kept positions."""
        return [compression.kept.tolist() for compression in self.compressions]


class _Request:
    """State of one request between two prefills: rows, the last w queries, and F of the last compression's survivors."""

    def __init__(self, model, prompt, ids, capacity, config):
        self.model, self.config = model, config
        self.cache = model.new_cache(capacity)
        self.logits = model.prefill(ids, self.cache)
        self.count = 0  # compressions
        self.decoded = 0  # tokens fed by decode steps
        self.prefilled = len(ids)
        self.queries = deque(maxlen=config.window if config else 0)
        self.importance = torch.zeros(model.layers, model.heads, 0, dtype=torch.bfloat16)
        self.seen, self.windows = None, 0  # sums of I over the windows since the last compression
        self.compress_prefix = config is not None and (
            config.prefix == "compress" or (config.prefix == "auto" and len(prompt) > config.budget)
        )
        self.start = 0 if self.compress_prefix else len(prompt)  # c0, the first candidate row
        self.early = config.early(prompt) if config else 0

    @property
    def cap(self):
        """Candidates at which the next compression is due."""
        return self.config.budget + self.config.block - (self.early if self.count == 0 else 0)

    def due(self):
        """Asked when a decode step is planned: kv_len counts all tokens fed so far, not the one about to be fed."""
        config = self.config
        return (
            config is not None
            and self.cache.kv_len - self.start >= self.cap
            and self.decoded >= config.window
        )

    def step(self, token):
        self.logits, queries = self.model.forward([token], self.cache)
        self.queries.append([query[0] for query in queries])
        self.decoded += 1

    def score_early(self):
        """Asked before each decode step: adds up I of all candidates, if a window before the last ends here.

        Not before the first compression of a row whose candidates were prefilled: a prefix tree could share them.
        """
        config = self.config
        if config is None or not (self.count or self.start >= self.prefilled):
            return
        left = self.cap - (self.cache.kv_len - self.start)
        if 0 < left < config.windows * config.window and left % config.window == 0:
            self.seen = torch.stack([self._seen(layer) for layer in range(self.model.layers)]).to(torch.bfloat16)
            self.windows += 1

    @torch.inference_mode()
    def compress(self, tokens):
        config, cache, start, end = self.config, self.cache, self.start, self.cache.kv_len
        stored, kept, gaps = [], [], []
        for layer in range(self.model.layers):
            positions = cache.positions[layer, :, start:end]
            scores, importance = self._score(layer, positions)
            must_keep = scoring.forced(positions, cache.true_len, config.recent, config.sinks if self.compress_prefix else 0)
            keep, gap = scoring.select(scores, positions, must_keep, config.budget)
            kept.append(torch.stack([p[k].sort().values for p, k in zip(positions, keep)]))
            gaps.append(gap)
            if importance is not None:
                importance = importance.to(torch.bfloat16)
            for head in range(self.model.heads):
                source, hole = scoring.fill_holes(keep[head], config.budget)
                for rows in (cache.keys[layer, head], cache.values[layer, head], cache.positions[layer, head]):
                    rows[start + hole] = rows[start + source]
                if importance is not None:
                    importance[head, hole] = importance[head, source]
            if importance is not None:
                stored.append(importance[:, : config.budget])
        record = Compression(self.count, tokens, cache.true_len, end, torch.stack(kept), torch.stack(gaps))
        if stored:
            self.importance = torch.stack(stored)
        self.seen, self.windows = None, 0
        cache.kv_len = start + config.budget
        for rows in (cache.keys, cache.values):
            rows[:, :, cache.kv_len : end] = float("nan")  # whoever reads a freed row shows it
        self.count += 1
        return record

    def _score(self, layer, positions):
        """Z and F of one layer, fp32 [H, C]; F is None for the policies that store none."""
        config, candidates = self.config, slice(self.start, self.cache.kv_len)
        if config.policy == "recent":
            return positions.float(), None
        if config.policy == "random":
            return scoring.random_score(config.seed, layer, positions, self.count), None
        if config.policy == "attention":
            return self._attention(layer), None
        importance = self._importance(layer, config.alpha)
        pooled = importance
        if config.pooling == "always" or (config.pooling == "once" and self.count == 0):
            pooled = scoring.max_pool(importance, positions)
        if config.redundancy == "none":
            return pooled, importance
        keys = self.cache.keys[layer, :, candidates]
        similarity = scoring.redundancy(keys, positions, config.block, config.tau, config.redundancy)
        return config.lam * pooled - (1 - config.lam) * similarity, importance

    def _attention(self, layer):
        window = torch.stack([queries[layer] for queries in self.queries])
        keys = self.cache.keys[layer, :, : self.cache.kv_len]
        return scoring.attention_score(window, keys, self.model.scale)[:, self.start :]

    def _seen(self, layer):
        """I of the last w queries, and of the windows before them, added up; fp32 [H, C]."""
        total = self._attention(layer)
        if self.seen is not None:
            before = self.seen[layer].float()
            total[:, : before.shape[1]] += before
        return total

    def _importance(self, layer, alpha):
        return scoring.global_score(self._seen(layer) / (self.windows + 1), self.importance[layer], alpha)


def generate(model, prompt_ids, max_new_tokens, config=None, eos_id=None, ignore_eos=False, retract_after=()):
    """Greedy output of one request; config None = full KV.

    retract_after: numbers of output tokens; when that many are out, the request is retracted instead of taking its next
    decode step, and the next token comes from a fresh prefill of prompt + output (rows, queries, F and the number of the
    compression start over; c0 does not change).
    """
    result, retractions = Result(), set(retract_after)
    prompt, request = list(prompt_ids), None
    while len(result.tokens) < max_new_tokens:
        done = len(result.tokens)
        if request is None or done in retractions:
            request = _Request(model, prompt, prompt + result.tokens, len(prompt) + max_new_tokens, config)
        else:
            if request.due():
                result.compressions.append(request.compress(done))
            else:
                request.score_early()
            request.step(result.tokens[-1])
        top = request.logits.topk(2)
        result.tokens.append(top.indices[0].item())
        result.margins.append((top.values[0] - top.values[1]).item())
        if result.tokens[-1] == eos_id and not ignore_eos:
            break
    return result
