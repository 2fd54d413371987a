"""Time of each operation of a compression: the kernels on a GPU (`benchmarks.kernels`), the torch twins on the CPU.

    python -m benchmarks.report.operations --json FILE     # on the CPU, at the reasoner's shape

The twins are the definition that the kernels are tested against, not tuned for speed: their times say what the CPU engine
spends, not what a GPU would.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.progress import Progress
from benchmarks.report.options import Options

REPEAT = 5
# Kernel -> operation, for the kernels of the fused pipeline: _sort_blocks and _block_scores belong to the lightning
# redundancy, which _block_scores computes together with the attention score.
FUSED = {
    "_gather_rows": "gather",
    "_gather": "gather",
    "_softmax_sums": "attention score, first pass",
    "_log_sums": "attention score, first pass",
    "_sort_blocks": "redundancy and attention score",
    "_block_scores": "redundancy and attention score",
    "_combine": "combine",
    "_select": "select",
    "_plan": "compact",
    "_move": "compact",
}


def measure(options: Options, seconds: float) -> dict:
    """Record without provenance.  Raises RuntimeError."""
    path = options.out / "logs" / "operations.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if options.device == "cuda":
        command = [sys.executable, "-m", "benchmarks.kernels", "--requests", "1", "4", "32", "--json", str(path)]
    else:
        command = [
            sys.executable,
            "-m",
            "benchmarks.report.operations",
            "--budget",
            str(options.size.budget),
            "--block",
            str(options.size.block),
            "--json",
            str(path),
        ]
    progress, log = Progress("operations"), path.with_suffix(".log")
    progress.show("running")
    with log.open("wb") as out:
        try:
            subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, timeout=seconds, check=False, start_new_session=True
            )
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"{' '.join(command[1:])} was not done after {seconds:.0f} s") from None
    if not path.exists():
        raise RuntimeError(f"{' '.join(command[1:])} failed:\n{log.read_text(errors='replace')[-2000:]}")
    data = json.loads(path.read_text())
    progress.done("done")
    made = (
        _of_kernels(data)
        if options.device == "cuda"
        else dict(shape=data["shape"], operations=data["operations"], whole=data["whole"])
    )
    return dict(partial=False, client_command=" ".join(["python", *command[1:]]), failures=data.get("failures", []), **made)


def _of_kernels(data: dict) -> dict:
    """`benchmarks.kernels` results as {"operations": [{"requests", "operation", "ms"}], "whole": [{"requests", "ms"}]}, ms
    a request."""
    operations, whole = [], []
    for key, value in data["results"].items():
        kind, _, rest = key.partition(".")
        if kind == "kernels" and not rest.startswith("pass."):
            requests, sums = int(rest.partition(".")[0]), {}
            for kernel, ms in value.items():
                name = FUSED.get(kernel, "other")
                sums[name] = sums.get(name, 0.0) + ms / requests
            operations += [dict(requests=requests, operation=name, ms=ms) for name, ms in sums.items()]
        elif kind == "pipeline" and rest.endswith(".ms"):
            requests = int(rest.partition(".")[0])
            whole.append(dict(requests=requests, ms=value / requests))
    return dict(
        shape="36 layers, 32 query and 8 KV heads of 128, bf16, 2,304 candidates to 2,048 (Qwen3-8B)",
        operations=operations,
        whole=whole,
    )


def twins(budget: int, block: int, window: int = 16) -> dict:
    """The pipeline of `zipage_sglang.pipeline.compress`, one request, steady state, operation by operation, and as one."""
    import torch

    from benchmarks.reasoner import MODEL_PATH
    from zipage_kernels import ops
    from zipage_kernels.batch import CompressionBatch
    from zipage_sglang.config import ZipageConfig
    from zipage_sglang.pipeline import KVBuffers, compress
    from zipage_sglang.policies import View, make_policy

    model = json.loads((MODEL_PATH / "config.json").read_text())
    layers, q_heads, kv_heads, head_dim = (
        model[k] for k in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    config = ZipageConfig(budget=budget, block=block, window=window)
    candidates, generator = config.cap, torch.Generator().manual_seed(0)
    slots = candidates + 1
    normal = lambda *shape: torch.randn(*shape, generator=generator)
    tables = (layers, slots, kv_heads)
    buffers = KVBuffers(
        [normal(slots, kv_heads, head_dim) for _ in range(layers)],
        [normal(slots, kv_heads, head_dim) for _ in range(layers)],
        normal(layers, window + 1, q_heads, head_dim),
        torch.arange(slots).int().sub(1).view(1, -1, 1).expand(tables).clone(),
        torch.rand(tables, generator=generator).bfloat16(),
        head_dim**-0.5,
    )
    rows, policy = torch.arange(1, slots)[None], make_policy(config)
    batch = lambda: CompressionBatch(rows, [candidates], [0], [0], [budget], [budget], [1], torch.arange(window)[None] + 1)
    now = batch()
    view = View(now, buffers)
    scores = policy.score(view)
    keep, _ = ops.select_forced(scores, view.positions, now, config.reserve, 0)
    runs = {
        "gather positions": lambda: ops.gather_positions(buffers.positions, now),
        "gather global score": lambda: ops.gather_importance(buffers.importance, now),
        "attention score": lambda: ops.attention_score(buffers.k_buffers, buffers.query_cache, now, buffers.scale),
        "redundancy": lambda: ops.redundancy(buffers.k_buffers, now, view.positions, block, config.tau, config.redundancy),
        "select": lambda: ops.select_forced(scores, view.positions, now, config.reserve, 0),
        "compact": lambda: ops.compact(
            buffers.k_buffers, buffers.v_buffers, buffers.tables, now, keep, view.positions, view.importance
        ),
    }
    operations = [dict(requests=1, operation=name, ms=_median_ms(run)) for name, run in runs.items()]
    whole = [dict(requests=1, ms=_median_ms(lambda: compress(batch(), buffers, policy, config)))]
    shape = (
        f"{layers} layers, {q_heads} query and {kv_heads} KV heads of {head_dim}, float32, {candidates} candidates to "
        f"{budget} (the reasoner), torch on {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}"
    )
    return dict(shape=shape, operations=operations, whole=whole)


def _median_ms(run) -> float:
    run()
    times = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        run()
        times.append(1000 * (time.perf_counter() - start))
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.report.operations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--budget", type=int, default=64)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    args.json.write_text(json.dumps(twins(args.budget, args.block), indent=1) + "\n")


if __name__ == "__main__":
    main()
