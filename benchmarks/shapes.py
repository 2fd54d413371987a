"""Model shapes for speed measurements with random weights: a folder with a config.json is all SGLang needs."""

from __future__ import annotations

import json
from pathlib import Path

_QWEN3 = dict(
    architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_act="silu", attention_bias=False, head_dim=128,
    num_key_value_heads=8, max_position_embeddings=40960, rms_norm_eps=1e-6, rope_theta=1000000, vocab_size=151936,
    torch_dtype="bfloat16", bos_token_id=151643, eos_token_id=151645,
)
SHAPES = {
    "qwen3-0.6b": dict(_QWEN3, hidden_size=1024, intermediate_size=3072, num_hidden_layers=28, num_attention_heads=16,
                       tie_word_embeddings=True),
    "qwen3-8b": dict(_QWEN3, hidden_size=4096, intermediate_size=12288, num_hidden_layers=36, num_attention_heads=32,
                     tie_word_embeddings=False),
}


def model_folder(name: str, parent: Path) -> Path:
    """Writes the shape's config.json into a folder of its own and returns it."""
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[name], indent=1))
    return folder
