"""A trace as a picture: who was held when, over the request's positions.  Needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from zipage_sglang.trace.file import Trace


def draw(trace: Trace, path: Path):
    """Above, the share of (layer, KV head) that hold each position after each compression; below, the share of the KV heads
    of each layer at the end."""
    layers, heads, tokens = trace.evicted_at.shape
    over_time = np.full((trace.compressions, tokens), np.nan, dtype=np.float32)
    for n in range(1, trace.compressions + 1):
        share = trace.share(n)
        over_time[n - 1, : len(share)] = share
    at_end = trace.held(trace.compressions).mean(axis=1, dtype=np.float32)
    figure = Figure(figsize=(11, 7), layout="constrained")
    axes = figure.subplots(2, 1, sharex=True)
    extent = (trace.start, trace.start + tokens)
    panels = (
        (over_time, (trace.compressions + 0.5, 0.5), "compression", f"held, of {layers * heads} (layer, KV head) pairs"),
        (at_end, (layers - 0.5, -0.5), "layer", f"held after the last compression, of {heads} KV heads"),
    )
    for ax, (values, (bottom, top), label, title) in zip(axes, panels):
        image = ax.imshow(values, aspect="auto", interpolation="nearest", vmin=0, vmax=1, extent=(*extent, bottom, top))
        ax.set_ylabel(label)
        ax.set_title(title, fontsize=10)
        ax.yaxis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=axes, label="share")
    axes[-1].set_xlabel("position")
    figure.suptitle(f"{trace.info['rid']}: {len(trace.token_ids)} tokens, {trace.compressions} compressions")
    figure.savefig(path, dpi=120)
