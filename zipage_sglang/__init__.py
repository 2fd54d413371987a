"""zipage_sglang: Compressed PagedAttention (arXiv 2603.08743) as an SGLang plugin."""

__version__ = "0.1.0"
