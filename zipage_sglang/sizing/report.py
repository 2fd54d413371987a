"""A plan in words, and as JSON."""

from __future__ import annotations

import dataclasses

from zipage_sglang.sizing.planner import Plan, gib
from zipage_sglang.sizing.speed import REACHED


def as_dict(plan: Plan) -> dict:
    """What --json prints: bytes, tokens, milliseconds; names are those of the dataclasses."""
    s = plan.setting
    result = dataclasses.asdict(plan)
    for name in ("zipage", "full"):
        step = getattr(plan, name).step
        result[name]["step"] = step and step._asdict()
    result["fits"] = plan.fits._asdict()
    result["setting"] |= {"weights": s.weights._asdict() | {"total": s.weights.total}, "kv_bytes": s.kv_bytes}
    return result


def as_text(plan: Plan, gpu: str, prompt: int, output: int | None) -> str:
    """gpu: what to call the GPUs.  prompt, output: as asked for."""
    s, o = plan.setting, plan.overhead
    shape = s.shape
    length = f"{output:,} output tokens" if output else f"output up to the context length of {s.context_len:,}"
    fit, reached = plan.max_running_requests, [f"{100 * share:.0f}" for share in REACHED]
    lines = [
        f"{s.name}, {s.dtype}, on {s.tp} x {gpu}" + (", figures of one GPU" if s.tp > 1 else ""),
        "",
        f"weights         {gib(s.weights.total / s.tp):>11}",
        f"KV pool         {gib(plan.pool * s.kv_bytes):>11}   {plan.pool:,} tokens of {s.kv_bytes / 1024:,.1f} KiB: "
        f"{shape.layers} layers, {shape.kv_heads} KV heads of {shape.head_dim}",
        f"plugin          {gib(o.total):>11}   {100 * o.share:.1f} % of the KV pool: positions and scores "
        f"{gib(o.positions_and_scores)}, query slots {gib(o.query_slots)}, workspace {gib(o.workspace)}",
        f"left            {gib(s.memory * (1 - s.fraction)):>11}   activations and CUDA graphs "
        f"(--mem-fraction-static {s.fraction:g})",
        "",
        f"Requests of {prompt:,} prompt and {length} (K {s.config.budget:,}, b {s.config.block:,}, {s.config.policy}):",
        f"{'':28}{'zipage':>14}{'full KV':>14}",
        _row("KV tokens at most", plan, lambda x: f"{x.most:,}"),
        _row("KV tokens on average", plan, lambda x: f"{x.held:,.0f}"),
        _row("requests running", plan, lambda x: f"{x.running:,}"),
    ]
    if plan.zipage.step and plan.full.step:
        lines += [
            _row("decode step, ms", plan, lambda x: _range(x.step.fast_ms, x.step.slow_ms, 1)),
            _row("output tokens/s", plan, lambda x: _range(x.tokens_per_second[1], x.tokens_per_second[0], 0)),
            f"Times: bytes read at {reached[0]} to {reached[1]} % of the memory bandwidth, as decode steps did on an H200.",
        ]
    else:
        lines.append("No times: say which GPU it is (--gpu) or give its memory bandwidth (--bandwidth, GB/s).")
    lines += [
        "zipage: what admission can promise, to the end. full KV: what fits on average; requests are retracted before that.",
        "",
        f"recommended     --max-running-requests {fit} --cuda-graph-max-bs-decode {plan.cuda_graph_max_bs}",
    ]
    return "\n".join(lines)


def _row(name: str, plan: Plan, value) -> str:
    return f"{name:28}{value(plan.zipage):>14}{value(plan.full):>14}"


def _range(low: float, high: float, digits: int) -> str:
    return f"{low:,.{digits}f} - {high:,.{digits}f}"


