"""Models for speed measurements: real shapes with random weights (a folder with a config.json is all SGLang needs), and the
embedded reasoner for machines without a GPU."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.device import CPU
from benchmarks.reasoner import MODEL_PATH

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
MODELS = ("reasoner", *SHAPES)


def token_ids(model: str) -> range:
    """Token ids for random prompts."""
    return range(3, 260) if model == "reasoner" else range(1000, 100000)


def engine_arguments(model: str, device: str, attention_backend: str, graph_batch: int, parent: Path) -> dict:
    """sgl.Engine arguments of a speed run.  device: cuda or cpu.  graph_batch: largest batch with a decode graph.  The model's
    folder is made in `parent`."""
    options = dict(skip_tokenizer_init=True, grammar_backend="none", log_level="info")
    if model == "reasoner":
        options |= dict(model_path=str(MODEL_PATH))
    else:
        options |= dict(model_path=str(model_folder(model, parent)), load_format="dummy")
    if device == "cpu":
        return options | CPU
    return options | dict(dtype="bfloat16", attention_backend=attention_backend, cuda_graph_max_bs_decode=graph_batch,
                          disable_prefill_cuda_graph=True)


def model_folder(name: str, parent: Path) -> Path:
    """Writes the shape's config.json into a folder of its own and returns it."""
    folder = parent / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(SHAPES[name], indent=1))
    return folder
