"""Figures of others, as reference lines and in a table of their own: never among ours."""

from __future__ import annotations

# Requests together -> ms a request: the official implementation's compression (layer stride 8), 9 blocks of 256, 36
# layers, 8 KV heads of 128, run on one H200 when this project was designed.
OFFICIAL_PIPELINE_MS = {1: 10.5, 4: 4.0, 32: 2.2}
OFFICIAL_SOURCE = "official Zipage kernels, layer stride 8, one H200, measured apart when this project was designed"

_README = "README figure of microsoft/Zipage (tps_cmp_exp.png), Qwen3-8B, hardware not stated"
PUBLISHED = (
    ("Zipage, tokens/s", "2,557", _README),
    ("vLLM full KV, tokens/s", "995", _README),
    ("nano-vLLM full KV, tokens/s", "930", _README),
    ("Zipage over full KV engines", "above 2.1", "abstract of arXiv 2603.08743"),
    (
        "R-KV's SGLang port over SGLang, GSM8K, not bound by memory",
        "0.63",
        "its RESULTS.md: 1,679 against 2,649 tokens/s, Qwen2.5-Math-7B, H100",
    ),
    ("TensorRT-LLM TriAttention over full KV, batch 32", "1.61", "TensorRT-LLM pull request 16957, Qwen3-8B"),
    ("official compression, 1 / 4 / 32 requests together, ms a request", "10.5 / 4.0 / 2.2", OFFICIAL_SOURCE),
)
