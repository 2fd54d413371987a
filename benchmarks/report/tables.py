"""The report's tables, from the records: numbers with their own precision in the CSV files, rounded ones on the page."""

from __future__ import annotations

import dataclasses

from benchmarks import measures
from benchmarks.report import online
from benchmarks.report.references import OFFICIAL_PIPELINE_MS, PUBLISHED
from benchmarks.report.state import State


@dataclasses.dataclass(frozen=True)
class Table:
    """columns: (key of a row, head, digits behind the point; None for text)."""

    name: str
    title: str
    columns: tuple[tuple[str, str, int | None], ...]
    rows: list[dict]
    note: str = ""

    @property
    def heads(self) -> list[str]:
        return [head for _, head, _ in self.columns]

    def cells(self) -> list[list[str]]:
        return [[cell(row.get(key), digits) for key, _, digits in self.columns] for row in self.rows]

    def raw(self) -> list[dict]:
        return [{key: row.get(key) for key, _, _ in self.columns} for row in self.rows]


def cell(value, digits: int | None) -> str:
    if value is None:
        return "-"
    return str(value) if digits is None else f"{value:,.{digits}f}"


_WORKLOAD = (("workload", "workload", None), ("arrivals", "arrivals", None))
_THROUGHPUT = (
    ("mode", "mode", None),
    ("output_tokens", "output tokens", 0),
    ("seconds", "seconds", 1),
    ("rate", "tokens/s", 1),
    ("rate_over_full", "x full KV", 2),
    ("half_rate", "tokens/s, 2nd half", 1),
    ("half_over_full", "x full KV, 2nd half", 2),
    ("running_mean", "running", 1),
    ("running_peak", "most running", 0),
    ("usage_mean", "pool used", 2),
    ("retractions", "retractions", 0),
    ("finished", "answered", 0),
    ("requests", "of", 0),
    ("partial", "", None),
)
_LATENCY = (
    ("mode", "mode", None),
    ("ttft_p50_s", "TTFT p50 s", 2),
    ("ttft_p99_s", "TTFT p99 s", 2),
    ("tpot_p50_ms", "TPOT p50 ms", 2),
    ("tpot_p99_ms", "TPOT p99 ms", 2),
    ("step_p50_ms", "step p50 ms", 2),
    ("step_p99_ms", "step p99 ms", 2),
    ("gap_p50_ms", "gap p50 ms", 2),
    ("gap_p99_ms", "gap p99 ms", 2),
)
_COMPRESSION = (
    ("workload", "workload", None),
    ("mode", "mode", None),
    ("compressions", "compressions", 0),
    ("evicted_tokens", "tokens evicted", 0),
    ("device_ms", "device ms each", 3),
    ("host_us_per_compression", "host us each", 0),
    ("host_us_per_step", "host us a step", 0),
    ("compression_seconds", "compressing s", 2),
    ("other_seconds", "other time s", 2),
    ("decode_seconds", "decode steps s", 2),
    ("compression_share", "share", 4),
    ("buffer_mib", "tables MiB", 1),
)
_RANGES = (
    ("workload", "workload", None),
    ("arrivals", "arrivals", None),
    ("mode", "mode", None),
    ("low", "running from", 0),
    ("high", "to", 0),
    ("steps", "steps", 0),
    ("share", "share of steps", 4),
    ("tokens", "tokens", 0),
    ("seconds", "seconds", 2),
    ("step_p50_ms", "step p50 ms", 2),
    ("step_p99_ms", "step p99 ms", 2),
    ("prefill_share", "with a prefill", 4),
    ("prefill_p50_ms", "those p50 ms", 2),
)
_ONLINE = (
    ("request_rate", "requests/s", 2),
    ("mode", "mode", None),
    ("completed", "requests", 0),
    ("duration", "seconds", 1),
    ("request_throughput", "answered/s", 3),
    ("output_throughput", "tokens/s", 1),
    ("median_ttft_ms", "TTFT p50 ms", 0),
    ("p99_ttft_ms", "TTFT p99 ms", 0),
    ("median_tpot_ms", "TPOT p50 ms", 1),
    ("p90_tpot_ms", "TPOT p90 ms", 1),
    ("p99_tpot_ms", "TPOT p99 ms", 1),
    ("goodput", "good/s", 3),
    ("good_share", "share good", 2),
    ("retractions", "retractions", 0),
)


def order(records: dict[str, dict], modes: list[str]) -> list[dict]:
    """By workload as first planned, then by mode."""
    rank = {mode: n for n, mode in enumerate(modes)}
    return sorted(records.values(), key=lambda r: rank.get(r.get("mode"), len(rank)))


def pairs(records: list[dict]) -> list[tuple[str, str]]:
    """(workload, arrivals) of the offline units, all-at-once first."""
    found = {(r["workload"], r["arrivals"]) for r in records if r["kind"] == "offline"}
    return sorted(found, key=lambda p: (p[1] != "all", p))


def offline_rows(records: list[dict], pair: tuple[str, str]) -> list[dict]:
    """Records of one workload with what they are of full KV's."""
    rows = [
        dict(r, requests=r["load"]["requests"], partial="cut short" if r["partial"] else "")
        for r in records
        if r["kind"] == "offline" and (r["workload"], r["arrivals"]) == pair
    ]
    full = next((r for r in rows if r["mode"] == "full"), None)
    for row in rows if full else []:
        row["rate_over_full"] = row["rate"] / full["rate"] if full["rate"] else None
        row["half_over_full"] = row["half_rate"] / full["half_rate"] if row["half_rate"] and full["half_rate"] else None
    return rows


def throughput(records: list[dict], pair: tuple[str, str]) -> Table:
    note = (
        "tokens/s: all output tokens over all seconds. 2nd half, running, pool used: decode steps in the second half of "
        "the time, weighted by time. A load that was not answered whole was cut off at the same time in every mode; one "
        "that was answered whole ends with few requests, so that its second half says little."
    )
    return Table(
        f"throughput-{file_of(pair)}", f"{title_of(pair)}: throughput", _THROUGHPUT, offline_rows(records, pair), note
    )


def latency(records: list[dict], pair: tuple[str, str]) -> Table:
    note = (
        "TTFT from sending to the first token, waiting in the queue included. TPOT: mean time of a request's tokens "
        "after the first. step: decode steps of the second half without a prefill beside them. gap: between two tokens "
        "of a streamed request."
    )
    return Table(f"latency-{file_of(pair)}", f"{title_of(pair)}: latency", _LATENCY, offline_rows(records, pair), note)


def workload_table(records: list[dict]) -> Table:
    rows, seen = [], set()
    for r in records:
        if r["kind"] != "operations" and (key := (r["kind"], r["workload"], r["arrivals"])) not in seen:
            seen.add(key)
            rows.append(dict(r["load"], kind=r["kind"], workload=r["workload"], arrivals=r["arrivals"]))
    columns = (
        ("kind", "", None),
        *_WORKLOAD,
        ("questions", "questions", 0),
        ("requests", "requests", 0),
        ("prompt_mean", "prompt tokens", 0),
        ("output_mean", "output tokens", 0),
        ("output_max", "longest", 0),
        ("output_tokens", "in all", 0),
    )
    return Table("workloads", "Workloads as they were run", columns, rows)


def compression(records: list[dict]) -> Table:
    rows = []
    for r in records:
        if r["kind"] == "offline" and r["arrivals"] == "all" and r.get("compressions") is not None:
            spent = r["gpu_seconds"] if r["gpu_seconds"] is not None else r["compress_seconds"]
            rows.append(
                dict(
                    r,
                    compression_seconds=spent,
                    other_seconds=max(0.0, r["seconds"] - spent),
                    device_ms=1000 * spent / r["compressions"] if r["compressions"] else None,
                    compression_share=spent / r["seconds"],
                )
            )
    note = (
        "compressing: the plugin's clock on the device; share: of all seconds. host: its CPU time in the scheduler, in "
        "the second half of the time. Decode steps include the compressions that ran in them."
    )
    return Table("compression", "Compressing against decoding", _COMPRESSION, rows, note)


def operations_table(records: list[dict]) -> Table | None:
    record = next((r for r in records if r["kind"] == "operations"), None)
    if record is None:
        return None
    whole = {w["requests"]: w["ms"] for w in record["whole"]}
    rows = [
        dict(o, share=o["ms"] / sum(p["ms"] for p in record["operations"] if p["requests"] == o["requests"]))
        for o in record["operations"]
    ]
    rows += [dict(requests=n, operation="pipeline as the engine runs it", ms=ms, share=None) for n, ms in whole.items()]
    columns = (
        ("requests", "requests together", 0),
        ("operation", "operation", None),
        ("ms", "ms a request", 4),
        ("share", "share", 3),
    )
    note = f"{record['shape']}."
    if set(whole) & set(OFFICIAL_PIPELINE_MS) and "Qwen3-8B" in record["shape"]:
        note += " The official kernels' figures at these shapes are in the last table."
    return Table("operations", "Operations of a compression", columns, rows, note)


def ranges(most: int, count: int = 8) -> list[tuple[int, int]]:
    """Concurrency ranges [low, high] from 1 to `most`, about `count` of equal width, a round number."""
    width = next(w for w in (n * 10**e for e in range(9) for n in (1, 2, 5)) if w * count >= most)
    return [(low, low + width - 1) for low in range(1, most + 1, width)]


def range_table(records: list[dict], state: State) -> Table:
    """Steps of every offline unit by requests running."""
    rows = []
    for pair in pairs(records):
        mine = {
            r["mode"]: (r, state.rows(r["unit"], "steps"))
            for r in records
            if r["kind"] == "offline" and (r["workload"], r["arrivals"]) == pair
        }
        most = max((int(s["running"]) for _, steps in mine.values() for s in steps), default=0)
        for mode, (_, steps) in mine.items():
            for low, high in ranges(most) if most else []:
                inside = [s for s in steps if low <= s["running"] <= high]
                alone = [s["step_ms"] for s in inside if not s["prefill"]]
                beside = [s["step_ms"] for s in inside if s["prefill"]]
                rows.append(
                    dict(
                        workload=pair[0],
                        arrivals=pair[1],
                        mode=mode,
                        low=low,
                        high=high,
                        steps=len(inside),
                        share=len(inside) / len(steps) if steps else 0.0,
                        tokens=sum(s["running"] for s in inside),
                        seconds=sum(s["step_ms"] for s in inside) / 1000,
                        step_p50_ms=measures.percentile(alone, 50),
                        step_p99_ms=measures.percentile(alone, 99),
                        prefill_share=len(beside) / len(inside) if inside else None,
                        prefill_p50_ms=measures.percentile(beside, 50),
                    )
                )
    note = (
        "Every decode step of the whole run but the first. Step p50 and p99: without a prefill beside them; with a prefill: the share "
        "of steps that waited for one, and their median."
    )
    return Table("ranges", "Steps by requests running", _RANGES, rows, note)


def online_table(records: list[dict], state: State, tpot_ms: float) -> Table:
    rows = [
        dict(r, **online.goodput(state.rows(r["unit"], "requests"), r["duration"], tpot_ms))
        for r in records
        if r["kind"] == "online"
    ]
    rows.sort(key=lambda r: r["request_rate"])
    note = (
        "sglang.bench_serving, Poisson arrivals, each request a prompt of its own. good: time per output token at most "
        f"{tpot_ms:g} ms. Seconds last until the last answer."
    )
    return Table("online", "Online: request rates", _ONLINE, rows, note)


def published() -> Table:
    columns = (
        ("what", "published or measured elsewhere, not in this run", None),
        ("figure", "figure", None),
        ("source", "source", None),
    )
    return Table(
        "published", "Others, for reference", columns, [dict(zip(("what", "figure", "source"), row)) for row in PUBLISHED]
    )


def file_of(pair: tuple[str, str]) -> str:
    return f"{pair[0]}-{pair[1].replace(':', '_')}"


def title_of(pair: tuple[str, str]) -> str:
    kind, *numbers = pair[1].split(":")
    how = {"all": "all at once", "poisson": "Poisson, {} a second", "bursts": "bursts of {}, every {} s"}[kind].format(
        *numbers
    )
    return f"{pair[0]}, {how}"
