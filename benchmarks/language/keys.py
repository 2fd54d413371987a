"""How alike the keys of one block are in a real model: `python -m benchmarks.language_model --keys`.

The redundancy score compares keys after RoPE inside a block, and protects for every key the latest similar one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks import table
from benchmarks.language.stream import Stream

THRESHOLD = 0.5


def block_similarities(keys: torch.Tensor, block: int) -> torch.Tensor:
    """Cosine similarities inside each whole block: [tokens, H, D] -> fp32 [blocks, H, block, block], diagonal 0."""
    blocks = len(keys) // block
    unit = F.normalize(keys[: blocks * block].float(), dim=-1).view(blocks, block, *keys.shape[1:]).permute(0, 2, 1, 3)
    return (unit @ unit.transpose(-1, -2)) * (1 - torch.eye(block))


def counts(similarities: torch.Tensor) -> dict[str, torch.Tensor]:
    """Per key: `similar`, keys of its block above the threshold; `behind`, rows from the block's end to the latest of them
    (block if there is none); `newer`, that latest one lies after the key itself.  Each [blocks, H, block]."""
    block = similarities.shape[-1]
    similar = similarities > THRESHOLD
    latest = torch.where(similar, torch.arange(block), -1).amax(dim=-1)
    return dict(similar=similar.sum(dim=-1), behind=block - 1 - latest, newer=latest > torch.arange(block))


def measure(stream: Stream, block: int) -> list[dict[str, torch.Tensor]]:
    """Of each layer of a full-KV stream, flattened over blocks, heads and keys."""
    out = []
    for k in stream.rows.k:
        similarities = block_similarities(k[1 : stream.rows.length + 1].cpu(), block)
        mean = similarities.sum(dim=-1) / (block - 1)
        out.append({name: values.flatten() for name, values in (counts(similarities) | dict(mean=mean)).items()})
    return out


def merge(documents: list[list[dict[str, torch.Tensor]]]) -> list[dict[str, torch.Tensor]]:
    """The layers of several documents, one behind the other."""
    return [{name: torch.cat([d[layer][name] for d in documents]) for name in documents[0][layer]}
            for layer in range(len(documents[0]))]


def summary(layers: list[dict[str, torch.Tensor]], block: int) -> list[dict]:
    """One JSON-able row per layer."""
    rows = []
    for layer, c in enumerate(layers):
        has = c["behind"] < block
        behind = c["behind"][has].float()
        quantiles = behind.quantile(torch.tensor([0.5, 0.9])).tolist() if len(behind) else [None, None]
        rows.append(dict(
            layer=layer, mean_cosine=c["mean"].mean().item(), pairs_above=(c["similar"].float().mean() / (block - 1)).item(),
            keys_with_one=has.float().mean().item(), newer=c["newer"].float().mean().item(), behind_median=quantiles[0],
            behind_p90=quantiles[1],
            found_within={n: (c["behind"] < n).float().mean().item() for n in (16, 32, 64, 128)},
        ))  # fmt: skip
    return rows


def render(rows: list[dict], block: int) -> str:
    """found in last n: share of all keys whose latest similar key is one of the block's last n."""
    percent = lambda x: f"{100 * x:.1f} %"
    number = lambda x: "-" if x is None else f"{x:.0f}"
    head = ["layer", "mean cosine", "pairs > 0.5", "keys with one", "latest is newer", "rows from end: median", "90 %",
            *(f"in last {n}" for n in rows[0]["found_within"] if n < block)]
    return table.render(head, [
        [r["layer"], f"{r['mean_cosine']:.3f}", percent(r["pairs_above"]), percent(r["keys_with_one"]), percent(r["newer"]),
         number(r["behind_median"]), number(r["behind_p90"]),
         *(percent(v) for n, v in r["found_within"].items() if n < block)] for r in rows])
