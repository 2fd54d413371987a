"""A trace as one HTML page that needs neither a server nor a network."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from pathlib import Path

import numpy as np

from zipage_sglang.trace.file import Trace

TEMPLATE = Path(__file__).with_name("page.html")


def _packed(array: np.ndarray, dtype: str) -> str:
    """Little-endian numbers, deflated, in base64; the page inflates them with DecompressionStream."""
    return base64.b64encode(zlib.compress(np.ascontiguousarray(array).astype(dtype).tobytes(), 6)).decode()


def render(trace: Trace, texts: list[str] | None) -> str:
    """texts: one per token, shown in place of their ids."""
    layers, heads, _ = trace.evicted_at.shape
    data = dict(
        tokenIds=trace.token_ids.tolist(), texts=texts, promptLen=trace.prompt_len, start=trace.start,
        trueLens=trace.true_lens.tolist(), layers=trace.info["layers"], heads=trace.info["kv_heads"],
        info={**trace.info, "layers": layers, "kv_heads": heads},
        evictedAt=_packed(trace.evicted_at, "<u2"), scores=_packed(trace.scores, "<f4") if trace.scores.size else None,
    )
    # "</script>" in a token's text must not end the script.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    values = dict(title=html.escape(trace.info["rid"]), data=text)
    return re.sub(r"\{\{(title|data)\}\}", lambda match: values[match[1]], TEMPLATE.read_text(encoding="utf-8"))
