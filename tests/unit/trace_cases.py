"""A traced request whose kept sets are known: random ones, told to a Growing the way the tables hold them."""

import dataclasses

import numpy as np
import torch

from zipage_sglang.config import ZipageConfig
from zipage_sglang.trace.file import Trace
from zipage_sglang.trace.writer import Growing

LAYERS, HEADS, KEEP, BLOCK = 3, 2, 8, 4


def random_trace(start=5, compressions=4, scored=True, seed=0, rid="known", end=3):
    """(trace, kept, importance): kept[n][layer][head] is the sorted list of positions that compression n + 1 kept,
    importance[n] maps (layer, head, position) to what the table holds.  end: tokens after the last compression."""
    rng = np.random.default_rng(seed)
    growing = Growing(start, torch.zeros(LAYERS, HEADS, 0, dtype=torch.int16))
    alive = [[list(range(start, start + KEEP)) for _ in range(HEADS)] for _ in range(LAYERS)]
    true_len, kept, importance = start + KEEP, [], []
    for _ in range(compressions):
        new, true_len = list(range(true_len, true_len + BLOCK)), true_len + BLOCK
        alive = [[sorted(rng.choice(head + new, KEEP, replace=False).tolist()) for head in layer] for layer in alive]
        kept.append(alive)
        # In row order, which is not position order.
        rows = torch.tensor([[rng.permutation(head).tolist() for head in layer] for layer in alive], dtype=torch.int32)
        values = torch.tensor(rng.random(rows.shape), dtype=torch.bfloat16)
        importance.append({(l, h, int(rows[l, h, k])): float(values[l, h, k])
                           for l in range(LAYERS) for h in range(HEADS) for k in range(KEEP)})
        growing.compressed(true_len, rows.transpose(1, 2), values.transpose(1, 2) if scored else None)
    config = ZipageConfig(budget=KEEP, block=BLOCK, window=2)
    info = dict(rid=rid, model="m", config=dataclasses.asdict(config), rank=0, complete=True, layers=list(range(LAYERS)),
                kv_heads=list(range(HEADS)), finish_reason={"type": "length"}, version="0")
    token_ids = np.arange(100, 100 + true_len + end, dtype=np.int32)
    trace = Trace(token_ids=token_ids, prompt_len=start, start=start, info=info, **growing.arrays())
    return trace, kept, importance
