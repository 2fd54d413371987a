"""Minimal Qwen3 forward in fp32 from a Hugging Face folder, over a cache in which every layer and KV head has its own
rows. Shapes: L layers, H KV heads, G query heads per KV head (Hq = H * G), D head size, V vocabulary."""
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open


class Cache:
    """Keys, values and positions of one sequence: row i of head h has nothing to do with row i of another head.

    keys, values fp32 [L, H, capacity, D]; positions int64 [L, H, capacity]; only the first `kv_len` rows count.
    `true_len` counts the tokens fed so far, so `true_len - kv_len` have been evicted (per head).
    """

    def __init__(self, layers, heads, capacity, dim):
        self.keys = torch.full((layers, heads, capacity, dim), float("nan"))
        self.values = torch.full((layers, heads, capacity, dim), float("nan"))
        self.positions = torch.full((layers, heads, capacity), -1)
        self.kv_len = 0
        self.true_len = 0


def transposed(*weights):
    """Rows of the given [out, in] weights as one [in, out] matrix: twice as fast for a single token on a CPU."""
    return torch.cat(weights).t().contiguous()


def rms_norm(x, weight, eps):
    """Over the last dimension."""
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight


class Qwen3:
    """Weights upcast to fp32. Raises ValueError for a folder that is not a plain-RoPE, full-attention Qwen3."""

    def __init__(self, folder):
        folder = Path(folder)
        config = json.loads((folder / "config.json").read_text())
        rope = config.get("rope_parameters") or {"rope_type": "default", "rope_theta": config["rope_theta"]}
        if config["model_type"] != "qwen3" or rope["rope_type"] != "default" or config["use_sliding_window"]:
            raise ValueError(f"{folder} is not a plain Qwen3")
        self.layers = config["num_hidden_layers"]
        self.query_heads = config["num_attention_heads"]
        self.heads = config["num_key_value_heads"]
        self.dim = config["head_dim"]
        self.eps = config["rms_norm_eps"]
        self.scale = self.dim**-0.5

        weights = {}
        for file in sorted(folder.glob("*.safetensors")):
            with safe_open(file, framework="pt") as tensors:
                weights |= {name: tensors.get_tensor(name).float() for name in tensors.keys()}
        self.embedding = weights["model.embed_tokens.weight"]
        self.final_norm = weights["model.norm.weight"]
        self.head = transposed(self.embedding if config["tie_word_embeddings"] else weights["lm_head.weight"])
        self.blocks = [self._block(weights, f"model.layers.{i}.") for i in range(self.layers)]

        inverse = 1.0 / rope["rope_theta"] ** (torch.arange(0, self.dim, 2).float() / self.dim)
        angles = torch.arange(config["max_position_embeddings"]).float()[:, None] * inverse
        self.cos = torch.cat([angles, angles], -1).cos()[:, None]  # [positions, 1, D]
        self.sin = torch.cat([angles, angles], -1).sin()[:, None]

    def _block(self, weights, prefix):
        def get(name):
            return weights[prefix + name + ".weight"]

        return {
            "norm_in": get("input_layernorm"),
            "qkv": transposed(*(get(f"self_attn.{x}_proj") for x in "qkv")),
            # q_norm and k_norm act on each head alone, so one call can do all heads: [Hq + H, D]
            "norm_qk": torch.cat([
                get("self_attn.q_norm").expand(self.query_heads, -1),
                get("self_attn.k_norm").expand(self.heads, -1),
            ]),
            "out": transposed(get("self_attn.o_proj")),
            "norm_mlp": get("post_attention_layernorm"),
            "gate_up": transposed(get("mlp.gate_proj"), get("mlp.up_proj")),
            "down": transposed(get("mlp.down_proj")),
        }

    def new_cache(self, capacity):
        return Cache(self.layers, self.heads, capacity, self.dim)

    @torch.inference_mode()
    def forward(self, ids, cache):
        """Feed token ids [T] at positions true_len.. and write their rows at kv_len..

        Returns the last token's logits fp32 [V] and the post-RoPE queries, a list over layers of fp32 [T, Hq, D].
        """
        count, start = len(ids), cache.kv_len
        end = start + count
        positions = torch.arange(cache.true_len, cache.true_len + count)
        cos, sin = self.cos[positions], self.sin[positions]
        cache.positions[:, :, start:end] = positions
        queries = []
        x = self.embedding[torch.as_tensor(ids)]
        for layer, block in enumerate(self.blocks):
            qkv = (rms_norm(x, block["norm_in"], self.eps) @ block["qkv"]).view(count, -1, self.dim)
            qk = rms_norm(qkv[:, : self.query_heads + self.heads], block["norm_qk"], self.eps)
            first, second = qk.chunk(2, -1)
            qk = qk * cos + torch.cat([-second, first], -1) * sin
            query, key = qk.split([self.query_heads, self.heads], 1)
            cache.keys[layer, :, start:end] = key.transpose(0, 1)
            cache.values[layer, :, start:end] = qkv[:, self.query_heads + self.heads :].transpose(0, 1)
            queries.append(query)
            attended = self._attend(query, cache.keys[layer, :, :end], cache.values[layer, :, :end])
            x = x + attended @ block["out"]
            gate, up = (rms_norm(x, block["norm_mlp"], self.eps) @ block["gate_up"]).chunk(2, -1)
            x = x + (F.silu(gate) * up) @ block["down"]
        cache.kv_len, cache.true_len = end, cache.true_len + count
        return (rms_norm(x[-1:], self.final_norm, self.eps) @ self.head)[0], queries

    def _attend(self, query, keys, values):
        """query [T, Hq, D] of the last T rows, keys and values [H, n, D] -> [T, Hq * D]; causal among the last T rows."""
        count, rows = len(query), keys.shape[1]
        grouped = query.view(count, self.heads, -1, self.dim).permute(1, 2, 0, 3)  # [H, G, T, D]
        scores = (grouped.reshape(self.heads, -1, self.dim) @ keys.mT).view(self.heads, -1, count, rows) * self.scale
        if count > 1:
            future = torch.ones(count, count, dtype=torch.bool).triu(1)
            scores[..., rows - count :].masked_fill_(future, float("-inf"))
        weights = scores.softmax(-1).view(self.heads, -1, rows)
        return (weights @ values).view(self.heads, -1, count, self.dim).permute(2, 0, 1, 3).reshape(count, -1)

    def prefill(self, ids, cache, chunk=512):
        """Feed all ids in chunks (bounds the [Hq, chunk, n] scores); returns the last logits."""
        for start in range(0, len(ids), chunk):
            logits, _ = self.forward(ids[start : start + chunk], cache)
        return logits
