"""The oracle's compressions, replayed from recorded keys and queries with plain Python bookkeeping: dictionaries by
position instead of rows that move. The scoring steps themselves are checked in test_oracle_scoring."""
import math
from dataclasses import replace

import pytest
import torch

from oracle import scoring
from oracle.decode import OracleConfig, generate
from oracle.model import Cache

CONFIG = OracleConfig(budget=16, block=8, window=4, sinks=2, recency=0.0, lam=0.7)
LAYERS, HEADS, GROUP, DIM, VOCAB = 2, 2, 2, 8, 50


class RandomModel:
    """Same interface as `Qwen3`: keys and queries depend on (layer, head, position) and a shared direction, the logits on
    the position. Records them by position."""

    layers, heads, scale = LAYERS, HEADS, DIM**-0.5

    def __init__(self, seed):
        generator = torch.Generator().manual_seed(seed)
        self.keys = torch.randn(LAYERS, HEADS, 200, DIM, generator=generator) + 0.5
        self.queries = torch.randn(LAYERS, 200, HEADS * GROUP, DIM, generator=generator)
        self.logits = torch.randn(200, VOCAB, generator=generator)

    def new_cache(self, capacity):
        return Cache(LAYERS, HEADS, capacity, DIM)

    def forward(self, ids, cache):
        start, end = cache.true_len, cache.true_len + len(ids)
        rows = slice(cache.kv_len, cache.kv_len + len(ids))
        cache.keys[:, :, rows] = self.keys[:, :, start:end]
        cache.values[:, :, rows] = self.keys[:, :, start:end]
        cache.positions[:, :, rows] = torch.arange(start, end)
        cache.true_len, cache.kv_len = end, rows.stop
        return self.logits[end - 1], list(self.queries[:, start:end])

    prefill = lambda self, ids, cache: self.forward(ids, cache)[0]


def replay(model, config, prompt_len, compressions, retract_after):
    """Kept positions [compression][layer][head] from the times of compressions and retractions alone."""
    start = 0 if config.prefix == "compress" else prompt_len
    history = []
    for compression in compressions:
        if compression.count == 0:
            rows = {(layer, head): [] for layer in range(LAYERS) for head in range(HEADS)}
            stored = {key: {} for key in rows}
            fed = start
        for held in rows.values():
            held.extend(range(fed, compression.true_len))
        fed = compression.true_len
        kept = []
        for layer, head in rows:
            held, f_old = rows[layer, head], stored[layer, head]
            # What was prefilled and is a candidate may be shared: only the last window scores it.
            shared = compression.count == 0 and (start < prompt_len or any(n < compression.tokens for n in retract_after))
            f = _importance(model, config, layer, head, start, held, f_old, fed, 1 if shared else config.windows)
            z = _z(model, config, layer, head, held, f, compression.count)
            must = {p for p in held if p >= fed - config.window or (config.prefix == "compress" and p < config.sinks)}
            best = sorted(held, key=lambda p: (p in must, z[p], p), reverse=True)[: config.budget]
            kept.append(sorted(best))
            stored[layer, head] = {p: torch.tensor(f[p]).bfloat16().item() for p in best}
            tail = [p for p in held[config.budget :] if p in best]
            rows[layer, head] = [p if p in best else tail.pop(0) for p in held[: config.budget]]
            assert not tail
        history.append([kept[layer * HEADS : (layer + 1) * HEADS] for layer in range(LAYERS)])
    return history


def _importance(model, config, layer, head, start, held, f_old, fed, windows):
    seen = {}
    for end in range(fed - (windows - 1) * config.window, fed + 1, config.window):
        there = [p for p in held if p < end]
        everything = list(range(start)) + there
        window = model.queries[layer, end - config.window : end, head * GROUP : (head + 1) * GROUP]
        attention = scoring.attention_score(window, model.keys[layer, head, everything][None], model.scale)[0, start:]
        total = {p: i + seen.get(p, 0) for p, i in zip(there, attention)}
        seen = {p: i.bfloat16().float() for p, i in total.items()}
    alpha = torch.tensor(config.alpha)
    attention = {p: (i / windows).item() for p, i in total.items()}
    return {p: max(i, (alpha * f_old[p]).item()) if p in f_old else i for p, i in attention.items()}


def _z(model, config, layer, head, held, f, count):
    if config.policy == "random":
        return dict(zip(held, scoring.random_score(config.seed, layer, torch.tensor([held] * HEADS), count)[head].tolist()))
    if config.pooling == "always" or (config.pooling == "once" and count == 0):
        order = sorted(held)
        f = {p: max(f[q] for q in order[max(0, i - 2) : i + 3]) for i, p in enumerate(order)}
    keys = model.keys[layer, head, held][None]
    r = scoring.redundancy(keys, torch.tensor([held]), config.block, config.tau, config.redundancy)[0]
    z = config.lam * torch.tensor([f[p] for p in held]) - (1 - config.lam) * r
    return dict(zip(held, z.tolist()))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("prompt_len, knobs, retract_after", [
    (21, {}, ()),
    (1, {}, ()),  # in keep, positions below `sinks` can be candidates, and are not forced
    (40, {"prefix": "compress"}, ()),
    (21, {"redundancy": "flash", "pooling": "always"}, (60,)),
    (21, {"policy": "random", "seed": 3}, (60,)),
    (21, {"alpha": 1.0, "pooling": "never", "lam": 0.95}, (9, 70)),
    (21, {"passes": 1}, ()),
    (30, {"prefix": "compress", "window": 2, "passes": 3}, (50,)),
])  # fmt: skip
def test_compressions_equal_the_replay(seed, prompt_len, knobs, retract_after):
    model, config = RandomModel(seed), replace(CONFIG, **knobs)
    result = generate(model, range(prompt_len), 120, config, retract_after=retract_after)
    assert result.kept == replay(model, config, prompt_len, result.compressions, retract_after)
    assert len(result.kept) >= 10 and all(math.isfinite(gap) for c in result.compressions for gap in c.gap.flatten().tolist())
