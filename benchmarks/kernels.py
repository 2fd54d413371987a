"""Times the compression kernels at Qwen3-8B shapes: 36 layers, 32 query and 8 KV heads of 128, bf16, 2304 candidates.

    python -m benchmarks.kernels [--requests 1 4 32] [--json FILE] [--sweep]

First the whole pipeline as the engine runs it, steady state (new jobs every time, their packing and the graph's launch
included; the clock is the GPU's, so a launch-bound pipeline shows as one), and launched kernel by kernel; then every kernel by
itself with the bytes that it must move.  Keys have a mean, as real ones do, which makes half of all pairs similar; "unlike keys"
are the worst case, without a similar pair.  "A pass" only scores (--zipage-passes).  Softmax sums are those of the attention that
served the queries, as with FlashInfer; "own sums" finds them first, as with other attention backends.  A measurement that fails
is reported and the others go on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import traceback

import torch

from benchmarks import table
from zipage_kernels import ops
from zipage_kernels.batch import CompressionBatch
from zipage_sglang.compressor import Compressor, Job
from zipage_sglang.config import PRESETS, ZipageConfig
from zipage_sglang.pipeline import KVBuffers, compress
from zipage_sglang.policies import make_policy

LAYERS, Q_HEADS, KV_HEADS, HEAD_DIM = 36, 32, 8, 128
CONFIG = ZipageConfig(**PRESETS["paper"])
WINDOWS = dataclasses.replace(CONFIG, passes=0)  # so that passes are captured too
SCALE = HEAD_DIM**-0.5
# Of --sweep: rows of a split, keys of a tile, stages, warps.
PASSES = ((512, 64, 2, 4), (512, 64, 3, 4), (512, 64, 4, 4), (512, 32, 4, 4), (512, 128, 2, 8), (512, 128, 3, 8), (512, 128, 3, 4),
          (1024, 64, 3, 4), (1024, 128, 3, 8), (2304, 64, 3, 4))


class Setting:
    """A pool with the rows of `requests` requests, every slot of it in use, in random order."""

    def __init__(self, requests: int, candidates: int, alike: bool = True, sums: bool = True):
        generator = torch.Generator("cuda").manual_seed(0)
        slots = requests * candidates + 1
        normal = dict(generator=generator, device="cuda", dtype=torch.bfloat16)
        self.requests, self.candidates, self.step = requests, candidates, 0
        common = torch.randn(LAYERS, 1, KV_HEADS, HEAD_DIM, **normal)  # real keys resemble one another
        keys = [torch.randn(slots, KV_HEADS, HEAD_DIM, **normal).add_(common[layer], alpha=float(alike)) for layer in range(LAYERS)]
        values = [torch.randn(slots, KV_HEADS, HEAD_DIM, **normal) for _ in range(LAYERS)]
        self.rows = (torch.randperm(slots - 1, generator=generator, device="cuda") + 1).view(requests, candidates).int()
        self.query_rows = torch.arange(requests * CONFIG.window).view(requests, -1) + 1
        tables = (LAYERS, slots, KV_HEADS)
        self.buffers = KVBuffers(
            keys, values, torch.randn(LAYERS, requests * CONFIG.window + 1, Q_HEADS, HEAD_DIM, **normal),
            torch.zeros(tables, dtype=torch.int32, device="cuda"), torch.zeros(tables, dtype=torch.bfloat16, device="cuda"),
            SCALE, seen=torch.zeros(tables, dtype=torch.bfloat16, device="cuda"),
        )  # fmt: skip
        if sums:
            self.buffers.log_sums = self.log_sums()
        self.compressor = Compressor(self.buffers, make_policy(CONFIG), WINDOWS, self.rows)
        self.compressor.warm_up(graphs=True)

    def log_sums(self) -> torch.Tensor:
        """log2 of the queries' softmax sums over their rows, fp32 [L, M*w + 1, Hq]; a query's last rows are not its own here."""
        b = self.buffers
        sums = torch.zeros(b.query_cache.shape[:3], device="cuda")
        for r, rows in enumerate(self.query_rows.tolist()):
            for layer, keys in enumerate(b.k_buffers):
                queries = b.query_cache[layer, rows].view(len(rows), KV_HEADS, -1, HEAD_DIM)
                logits = torch.einsum("whgd,thd->whgt", queries.float(), keys[self.rows[r].long()].float()) * SCALE
                sums[layer, rows] = (logits.logsumexp(dim=-1) / math.log(2)).flatten(1)
        return sums

    def counts(self) -> dict:
        """The next compression's: the first one, then ever later ones of the steady state."""
        first = self.step == 0
        evicted = self.step * (self.candidates - CONFIG.budget)
        self.step += 1
        return dict(kv_len=self.candidates, start=0, evicted=evicted, stored=0 if first else CONFIG.budget,
                    keep=CONFIG.budget, count=self.step - 1, seen=self.candidates - CONFIG.window,
                    windows=WINDOWS.windows - 1)

    def jobs(self) -> list[Job]:
        counts = self.counts()
        return [Job(row=r, query_rows=q, **counts) for r, q in enumerate(self.query_rows.tolist())]

    def batch(self) -> CompressionBatch:
        c = self.counts()
        kv_lens, starts, evicted, stored, keeps, counts, seen, windows = ([c[n]] * self.requests for n in (
            "kv_len", "start", "evicted", "stored", "keep", "count", "seen", "windows"))
        query_rows = self.query_rows.to("cuda", non_blocking=True)
        return CompressionBatch(self.rows.long(), kv_lens, starts, evicted, stored, keeps, counts, query_rows, seen, windows)


def gpu_ms(run, repeat: int, warm: int = 3) -> float:
    """Milliseconds of one of `repeat` runs in a row, by the GPU's clock, from the first launch to the last kernel's end."""
    for _ in range(warm):
        run()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeat):
        run()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repeat


def median_ms(run, repeat: int = 7) -> float:
    return statistics.median(gpu_ms(run, repeat=1, warm=i == 0) for i in range(repeat))


def copy_bandwidth() -> float:
    """Bytes per second of a large copy on the device, read plus written."""
    source = torch.empty(2**32, dtype=torch.uint8, device="cuda").random_()
    target = torch.empty_like(source)
    return 2 * source.numel() / (gpu_ms(lambda: target.copy_(source), repeat=10) / 1e3)


def kernels_of(run) -> dict[str, float]:
    """Milliseconds of each kernel in one run, by its name."""
    from torch.profiler import ProfilerActivity, profile

    run()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(5):
            run()
        torch.cuda.synchronize()
    times: dict[str, float] = {}
    for event in profiler.key_averages():
        if event.device_time_total:
            name = event.key if event.key.startswith("_") else "torch: " + event.key[-40:]
            times[name] = times.get(name, 0.0) + event.device_time_total / 5e3
    return times


def least_bytes(candidates: int) -> dict[str, float]:
    """Bytes that each kernel must read and write for one request: inputs once, outputs once."""
    heads = LAYERS * KV_HEADS
    array, keys = heads * candidates * 4, heads * candidates * HEAD_DIM * 2  # one fp32 array, all keys
    moved = heads * min(CONFIG.budget, candidates - CONFIG.budget)
    return {
        "_gather_rows": candidates * 12,
        "_gather": heads * CONFIG.budget * 4 + array,
        "_softmax_sums": keys + array,
        "_sort_blocks": 4 * array,
        "_block_scores": keys + 5 * array,
        "_combine": heads * CONFIG.budget * 2 + 5 * array,
        "_select": 2 * array + array / 4,
        "_plan": array / 4 + array + heads * CONFIG.budget * 2,
        "_move": moved * (HEAD_DIM * 2 * 4 + 12),
        "_attention": keys + array,
        "_add_attention": keys + array,  # a bf16 of each candidate, read and written
        "_inverse_lengths": keys + array,
        "_similarity_sums": keys + 4 * array,
        "_softmax": 3 * array,
    }


class Report:
    """Collects what was measured; a failure is a row too."""

    def __init__(self):
        self.results: dict = {}
        self.failures: list[str] = []

    def measure(self, name: str, run):
        try:
            self.results[name] = run()
        except Exception:
            message = "".join(traceback.format_exc().splitlines(keepends=True)[-4:])
            self.failures.append(f"{name}:\n{message}")
            print(f"FAILED {name}:\n{message}", flush=True)
            return None
        return self.results[name]


def pipeline_rows(report: Report, requests: int, candidates: int):
    """(whole pipeline, its kernels) as table rows."""
    setting = Setting(requests, candidates)
    whole, parts = [], []

    def run():
        setting.compressor.run(setting.jobs())

    def launched():
        compress(setting.batch(), setting.buffers, setting.compressor.policy, CONFIG)

    repeat = max(6, 64 // requests)
    in_a_row = report.measure(f"pipeline.{requests}.ms", lambda: gpu_ms(run, repeat))
    single = report.measure(f"pipeline.{requests}.single_ms", lambda: median_ms(run))
    passes = report.measure(f"pass.{requests}.ms", lambda: pass_ms(setting, repeat))
    eager = report.measure(f"launched.{requests}.ms", lambda: gpu_ms(launched, repeat))
    unlike = report.measure(f"unlike.{requests}.ms", lambda: other_ms(requests, candidates, repeat, alike=False))
    own = report.measure(f"own_sums.{requests}.ms", lambda: other_ms(requests, candidates, repeat, sums=False))
    own_pass = report.measure(f"own_sums.pass.{requests}.ms", lambda: pass_ms(Setting(requests, candidates, sums=False), repeat))
    found = in_a_row, single, eager, unlike, passes, own, own_pass
    if all(found):
        whole.append([f"{requests}", *(f"{ms / requests:.4f}" for ms in found)])
    scoring = report.measure(f"kernels.pass.{requests}.ms", lambda: kernels_of(lambda: setting.compressor.score(setting.jobs()))) or {}
    times = report.measure(f"kernels.{requests}.ms", lambda: kernels_of(run)) or {}
    needed = least_bytes(candidates)
    bandwidth = report.results.get("copy_bytes_per_s")
    for name, ms in sorted(times.items(), key=lambda item: -item[1]):
        row = [f"{name} x{requests}", f"{1e3 * ms / requests:.1f}"]
        if name in needed and bandwidth:
            rate = needed[name] * requests / (ms / 1e3)
            row += [f"{needed[name] / 1e6:.1f}", f"{rate / 1e9:.0f}", f"{100 * rate / bandwidth:.0f} %"]
        parts.append(row + [""] * (5 - len(row)))
    for name, ms in scoring.items():
        if name == "_add_attention" and bandwidth:
            rate = needed[name] * requests / (ms / 1e3)
            parts.append([f"a pass: {name} x{requests}", f"{1e3 * ms / requests:.1f}", f"{needed[name] / 1e6:.1f}", f"{rate / 1e9:.0f}",
                          f"{100 * rate / bandwidth:.0f} %"])
    parts.append([f"all x{requests}", f"{1e3 * sum(times.values()) / requests:.1f}", "", "", ""])
    return whole, parts, setting


def other_ms(requests: int, candidates: int, repeat: int, **options) -> float:
    setting = Setting(requests, candidates, **options)
    return gpu_ms(lambda: setting.compressor.run(setting.jobs()), repeat)


def pass_ms(setting: Setting, repeat: int) -> float:
    return gpu_ms(lambda: setting.compressor.score(setting.jobs()), repeat)


def other_rows(report: Report, setting: Setting) -> list[list]:
    """Operations that the preset's pipeline does not call, one request at a time."""
    b, batch = setting.buffers, setting.batch()
    positions = ops.gather_positions(b.positions, batch)
    queries = torch.randn(64, Q_HEADS, HEAD_DIM, dtype=torch.bfloat16, device="cuda")
    nowhere = torch.zeros(64, dtype=torch.int64, device="cuda")
    pairs = setting.rows.long().flatten()[: setting.candidates // 2 * 2].view(2, -1)
    importance = torch.rand(positions.shape, device="cuda")

    step = torch.zeros(LAYERS, 64, Q_HEADS, device="cuda")

    def store():
        for layer in range(LAYERS):
            ops.store_query(queries, nowhere, b.query_cache[layer])

    def replayed(run):
        def measured():
            run()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                run()
            return gpu_ms(graph.replay, 20)

        return measured

    def timed(run, repeat=5):
        return lambda: gpu_ms(run, repeat)

    runs = {
        "attention_score": timed(lambda: ops.attention_score(b.k_buffers, b.query_cache, batch, SCALE)),
        "redundancy lightning": timed(lambda: ops.redundancy(b.k_buffers, batch, positions, 256, 0.4, "lightning")),
        "redundancy flash": timed(lambda: ops.redundancy(b.k_buffers, batch, positions, 256, 0.4, "flash")),
        "max_pool": timed(lambda: ops.max_pool(importance, positions)),
        "copy_slots, half a request": timed(lambda: ops.copy_slots(b.k_buffers, b.v_buffers, b.tables, *pairs)),
        "store_query, 36 layers, batch 64, in a graph": replayed(store),
        "store_log_sums, batch 64, in a graph": replayed(lambda: ops.store_log_sums(step, nowhere, b.log_sums)),
    }
    times = {name: report.measure(f"{name}.ms", run) for name, run in runs.items()}
    return [[name, f"{ms:.3f}"] for name, ms in times.items() if ms]


def sweep_rows(report: Report, setting: Setting) -> list[list]:
    """Launch options of the two heaviest kernels."""
    from zipage_kernels.triton import attention, fused, seen

    policy, rows = make_policy(CONFIG), []
    batch, b = setting.batch(), setting.buffers

    def compression():
        compress(setting.batch(), setting.buffers, policy, CONFIG)

    def scoring():
        ops.add_attention(b.k_buffers, b.query_cache, b.seen, batch, SCALE, b.log_sums)

    def trial(kernel: str, label: str, changes: list, run=compression):
        saved = [(module, name, getattr(module, name)) for module, name, _ in changes]
        for module, name, value in changes:
            setattr(module, name, value)
        ms = report.measure(f"sweep.{label}.ms", lambda: kernels_of(run).get(kernel))
        for module, name, value in saved:
            setattr(module, name, value)
        if ms:
            rows.append([label, f"{1e3 * ms / setting.requests:.1f}"])

    for keys, stages, warps in [(64, 1, 4), (64, 2, 4), (64, 3, 4)]:
        options = dict(num_warps=warps, num_stages=stages)
        trial("_softmax_sums", f"_softmax_sums {keys} keys, {stages} stages, {warps} warps",
              [(attention, "FIRST_PASS_KEYS", keys), (attention, "FIRST_PASS", options)],
              lambda: ops.attention_score(b.k_buffers, b.query_cache, batch, SCALE))
    for split, keys, stages, warps in PASSES:
        trial("_add_attention", f"_add_attention {split} rows, {keys} keys, {stages} stages, {warps} warps",
              [(seen, "SPLIT_ROWS", split), (seen, "KEYS", keys), (seen, "OPTIONS", dict(num_warps=warps, num_stages=stages))],
              scoring)
    for registers, warps in [(128, 8), (None, 8), (None, 4)]:
        trial("_block_scores", f"_block_scores {registers} registers, {warps} warps",
              [(fused, "REGISTERS", registers), (fused, "OPTIONS", dict(num_warps=warps, num_stages=1))])
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[1, 4, 32])
    parser.add_argument("--candidates", type=int, default=CONFIG.cap)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--sweep", action="store_true", help="also try other launch options of the heaviest kernels")
    args = parser.parse_args(arguments)
    report = Report()
    bandwidth = report.measure("copy_bytes_per_s", copy_bandwidth)
    whole, parts, others, sweep = [], [], [], []
    for requests in args.requests:
        made = report.measure(f"setting.{requests}", lambda: pipeline_rows(report, requests, args.candidates))
        if made:
            del report.results[f"setting.{requests}"]
            whole += made[0]
            parts += made[1]
            if requests == args.requests[0]:
                others = other_rows(report, made[2])
            if args.sweep and requests == args.requests[min(1, len(args.requests) - 1)]:
                sweep = sweep_rows(report, made[2])
        del made
        torch.cuda.empty_cache()
    print(f"{torch.cuda.get_device_name()}, copy {bandwidth / 1e9:.0f} GB/s" if bandwidth else "no copy bandwidth")
    print(table.render(["requests", "ms / request", "one at a time", "kernel by kernel", "unlike keys", "a pass", "own sums", "a pass, own sums"], whole), "\n")
    print(table.render(["kernel", "us / request", "MB / request", "GB/s", "of copy"], parts), "\n")
    for name, rows in (("operation", others), ("launch options", sweep)):
        if rows:
            print(table.render([name, "ms" if rows is others else "us / request"], rows), "\n")
    if args.json:
        from benchmarks import provenance

        with open(args.json, "w") as file:
            json.dump(provenance.describe() | dict(results=report.results, failures=report.failures), file, indent=1)
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit(main())
