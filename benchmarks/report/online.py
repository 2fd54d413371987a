"""Requests at a rate, by SGLang's own client: `python -m sglang.bench_serving` against the mode's server.

Prompts and lengths come from our workload through the client's `custom` dataset: a prompt and a text that is as long as the
output shall be.  Times to first token, times between tokens and failures are the client's (`--output-details`); goodput
counts the requests whose own mean time per output token stays within the limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import timeline
from benchmarks.measures import percentile
from benchmarks.modes import Mode
from benchmarks.progress import Progress
from benchmarks.report import plan, workloads
from benchmarks.report.driving import RequestFailed
from benchmarks.report.options import Options
from benchmarks.report.servers import model_path, words
from benchmarks.server import Server

# Of bench_serving's result, as they are.
FIGURES = (
    "duration",
    "completed",
    "total_input_tokens",
    "total_output_tokens",
    "request_throughput",
    "output_throughput",
    "mean_ttft_ms",
    "median_ttft_ms",
    "p99_ttft_ms",
    "mean_tpot_ms",
    "median_tpot_ms",
    "p99_tpot_ms",
    "median_itl_ms",
    "p99_itl_ms",
    "concurrency",
    "max_concurrent_requests",
)


def measure(
    options: Options, unit: plan.Unit, mode: Mode, server: Server, seconds: float
) -> tuple[dict, dict[str, list[dict]]]:
    """(record without provenance, {"requests": rows}).  Raises RequestFailed if it fails or takes longer than `seconds`."""
    load = plan.load_of(options, unit)
    folder = options.out / "logs"
    dataset, result, log = (folder / f"{unit.name}.{end}" for end in ("dataset.jsonl", "result.jsonl", "client.log"))
    dataset.write_text("".join(json.dumps(_conversation(options, load, r)) + "\n" for r in load.requests))
    result.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "sglang.bench_serving",
        "--backend",
        "sglang",
        "--base-url",
        server.url,
        "--model",
        str(model_path(options)),
        "--dataset-name",
        "custom",
        "--dataset-path",
        str(dataset),
        "--num-prompts",
        str(len(load.requests)),
        "--request-rate",
        f"{unit.request_rate:g}",
        "--seed",
        str(options.seed),
        "--temperature",
        "0.6",
        "--flush-cache",
        # The server is warm, and may not flush its cache in the instant after a request.
        "--warmup-requests",
        "0",
        "--output-file",
        str(result),
        "--output-details",
        "--disable-tqdm",
        "--ready-check-timeout-sec",
        "0",
    ]
    before = server.log_path.stat().st_size
    _run(command, log, seconds, Progress(unit.name))
    if not result.exists():
        raise RequestFailed(f"sglang.bench_serving wrote no result:\n{log.read_text(errors='replace')[-2000:]}")
    record, rows = summarize(json.loads(result.read_text().splitlines()[-1]), load)
    for path in (dataset, result):  # large, and all of them is in the rows
        path.unlink()
    server_log = server.log_path.read_bytes()[before:].decode(errors="replace")
    record |= dict(client_command=" ".join(["python", *command[1:]]), retractions=timeline.retractions(server_log))
    return record, dict(requests=rows)


def _conversation(options: Options, load: workloads.Load, request: workloads.Request) -> dict:
    ids = load.prompts[request.question]
    answer = [ids[0]] * request.output
    return dict(conversations=[dict(content=words(options, ids)), dict(content=words(options, answer))])


def _run(command: list[str], log: Path, seconds: float, progress: Progress):
    """Its Ctrl-C is ours: both are told, and it leaves nothing behind."""
    start = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            while (code := process.poll()) is None:
                now = time.monotonic() - start
                if now > seconds:
                    raise RequestFailed(f"sglang.bench_serving was not done after {seconds:.0f} s")
                progress.show(f"{now:.0f} of at most {seconds:.0f} s")
                time.sleep(0.5)
        finally:
            process.kill()
            process.wait()
    if code:
        raise RequestFailed(f"sglang.bench_serving ended with code {code}:\n{log.read_text(errors='replace')[-2000:]}")
    progress.done(f"done after {time.monotonic() - start:.0f} s")


def summarize(result: dict, load: workloads.Load) -> tuple[dict, list[dict]]:
    """bench_serving's result with details -> (record, rows of its requests).  Raises RequestFailed if requests failed."""
    errors = [e for e in result["errors"] if e]
    if errors or result["completed"] != len(load.requests):
        raise RequestFailed(
            f"{len(load.requests) - result['completed']} of {len(load.requests)} requests failed: "
            f"{(errors or ['?'])[0][:500]}"
        )
    rows = []
    for n, (prompt, output, ttft, itls) in enumerate(
        zip(result["input_lens"], result["output_lens"], result["ttfts"], result["itls"], strict=True)
    ):
        tpot = sum(itls) / (output - 1) if output > 1 else None
        rows.append(
            dict(
                request=n,
                prompt_tokens=prompt,
                tokens=output,
                ttft_ms=round(1000 * ttft, 3),
                tpot_ms=None if tpot is None else round(1000 * tpot, 3),
            )
        )
    record = {name: result[name] for name in FIGURES} | dict(partial=False, load=workloads.summary(load), lengths=load.how)
    record["p90_tpot_ms"] = percentile([r["tpot_ms"] for r in rows if r["tpot_ms"] is not None], 90)
    return record, rows


def goodput(rows: list[dict], seconds: float, tpot_ms: float) -> dict:
    """Requests a second within the limit, and their share of all."""
    good = sum(r["tpot_ms"] is None or r["tpot_ms"] <= tpot_ms for r in rows)
    return dict(good=good, requests=len(rows), goodput=good / seconds, good_share=good / len(rows))
