"""Samples the model's own long answers: `python -m benchmarks.language.generate` rewrites generations.json.

The file is kept with the code because sampling does not repeat bit for bit on another processor.  Full KV in float32; the
answers never end by themselves.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from transformers import AttentionInterface

from benchmarks.language import model as smollm2
from benchmarks.progress import Progress

FILE = Path(__file__).parent / "generations.json"
SEED, TEMPERATURE, TOP_K, TOKENS = 20, 1.0, 100, 1536  # TOKENS: of each document, its prompt included
PROMPTS = (
    "Write a long story about a lighthouse keeper who finds a map in a bottle, follows it, and comes home a year later.",
    "Explain step by step, with many worked examples, how to solve linear equations and systems of two equations.",
    "Write a detailed history of the railways, from the first steam engines to high-speed trains, decade by decade.",
    "Describe a two-week journey through Italy day by day: where to stay, what to see, what to eat and what it costs.",
)


class Cache:
    """Keys and values of B documents in [B, H, T, D] per layer; pads: unused columns at the left of each."""

    def __init__(self, config, pads: list[int], tokens: int):
        shape = (len(pads), config.num_key_value_heads, tokens, config.head_dim)
        self.k, self.v = ([torch.zeros(shape) for _ in range(config.num_hidden_layers)] for _ in "kv")
        column = torch.arange(tokens)
        self.visible = (column <= column[:, None]) & (column >= torch.tensor(pads)[:, None, None])
        self.visible |= torch.eye(tokens, dtype=torch.bool)  # padding sees itself, or it would turn to NaN
        self.length = 0


def _attention(module, query, key, value, attention_mask, scaling: float, cache: Cache, **_):
    k, v = cache.k[module.layer_idx], cache.v[module.layer_idx]
    new = slice(cache.length, cache.length + key.shape[2])
    k[:, :, new], v[:, :, new] = key, value
    group = query.shape[1] // k.shape[1]
    out = F.scaled_dot_product_attention(
        query.reshape(len(k), k.shape[1], -1, k.shape[-1]), k[:, :, : new.stop], v[:, :, : new.stop],
        cache.visible[:, None, new, : new.stop].repeat(1, 1, group, 1), scale=scaling)  # fmt: skip
    return out.reshape(query.shape).transpose(1, 2), None


AttentionInterface.register("kv_columns", _attention)


@torch.inference_mode()
def sample(model, prompts: list[list[int]], tokens: int, banned: list[int], seed: int) -> list[list[int]]:
    """Continues every prompt to a document of `tokens` tokens."""
    model.set_attn_implementation("kv_columns")
    width = max(map(len, prompts))
    pads = [width - len(p) for p in prompts]
    cache = Cache(model.config, pads, end := tokens + max(pads))
    generator = torch.Generator().manual_seed(seed)
    progress = Progress("generate")
    ids = torch.tensor([[0] * pad + prompt for pad, prompt in zip(pads, prompts)])
    out = ids
    while out.shape[1] < end:
        positions = (cache.length + torch.arange(ids.shape[1]) - torch.tensor(pads)[:, None]).clamp(min=0)
        logits = model(input_ids=ids, position_ids=positions, use_cache=False, cache=cache, logits_to_keep=1).logits[:, 0]
        cache.length += ids.shape[1]
        logits[:, banned] = -torch.inf
        best, index = (logits / TEMPERATURE).topk(TOP_K)
        ids = index.gather(1, torch.multinomial(best.softmax(-1), 1, generator=generator))
        out = torch.cat([out, ids], dim=1)
        progress.show(f"{out.shape[1]} of {end} tokens")
    return [row[pad:][:tokens] for pad, row in zip(pads, out.tolist())]


def main():
    torch.set_num_threads(1)
    model, tokenizer = smollm2.load()
    texts = [tokenizer.apply_chat_template([dict(role="user", content=p)], tokenize=False, add_generation_prompt=True)
             for p in PROMPTS]
    prompts = [tokenizer(text).input_ids for text in texts]
    banned = [tokenizer.convert_tokens_to_ids(t) for t in ("<|im_end|>", "<|im_start|>", "<|endoftext|>")]
    documents = sample(model, prompts, TOKENS, banned, SEED)
    answers = [dict(prompt_len=len(p), ids=ids) for p, ids in zip(prompts, documents)]
    FILE.write_text("\n".join(["[", ",\n".join(json.dumps(a) for a in answers), "]"]) + "\n")
    for answer in answers:
        print(f"{answer['prompt_len']} of {TOKENS} tokens are the prompt; the end:", repr(tokenizer.decode(answer["ids"])[-300:]))


if __name__ == "__main__":
    main()
