"""One workload in one mode: sent to the mode's server, and what the clients, SGLang's log and the plugin counted."""

from __future__ import annotations

from benchmarks import timeline
from benchmarks.measures import percentile
from benchmarks.modes import Mode
from benchmarks.progress import Progress
from benchmarks.report import plan, workloads
from benchmarks.report.arrivals import arrange
from benchmarks.report.driving import Course, drive
from benchmarks.report.options import Options
from benchmarks.server import Server
from benchmarks.throughput import plugin_cost, token_gaps
from zipage_sglang.sizing import ceiling

COUNTERS = ("steps", "compressions", "evicted_tokens", "retractions", "compress_seconds", "host_seconds", "gpu_seconds")
PROMPT_STEPS = 3  # decode lines that a load must leave in the log to be summed up


def measure(
    options: Options, unit: plan.Unit, mode: Mode, server: Server, seconds: float
) -> tuple[dict, dict[str, list[dict]]]:
    """(record without provenance, {"steps": rows, "requests": rows, "samples": rows}).  Raises RequestFailed."""
    load = arrange(plan.load_of(options, unit), unit.arrivals, options.seed)
    progress = Progress(unit.name)
    before = server.log_path.stat().st_size

    def show(course: Course):
        now = course.samples[-1]["time"]
        progress.show(
            f"{now:.0f} of at most {seconds:.0f} s, {sum(r.finished for r in course.requests)} of {len(course.requests)} "
            f"answered, {course.output_tokens} tokens"
        )

    course = drive(server.url, load, seconds, options.size.stream_interval, options.size.probes, show)
    log = server.log_path.read_bytes()[before:].decode(errors="replace")
    steps = timeline.read_steps(log)
    record = summarize(options, mode, load, course, steps, log)
    progress.done(
        f"{record['finished']} of {len(load.requests)} answered, {record['output_tokens']} tokens in "
        f"{record['seconds']:.1f} s{', interrupted' if course.interrupted else ''}"
    )
    rows = dict(
        steps=steps,
        requests=[_request_row(n, r) for n, r in enumerate(course.requests)],
        samples=[
            dict(time=round(s["time"], 3), **{k: (s["zipage"] or {}).get(k) for k in COUNTERS}) for s in course.samples
        ],
    )
    return record, rows


def _request_row(n: int, r) -> dict:
    seconds = lambda value: None if value is None else round(value, 4)
    return dict(
        request=n,
        question=r.question,
        prompt_tokens=r.prompt_tokens,
        wanted=r.wanted,
        sent=seconds(r.sent),
        first=seconds(r.first),
        last=seconds(r.last),
        tokens=r.tokens,
    )


def summarize(options: Options, mode: Mode, load: workloads.Load, course: Course, steps: list[dict], log: str) -> dict:
    """JSON-able; times in s or ms as named.  rate: all output tokens over all seconds; `half` figures: of decode steps in
    the second half of the time."""
    seconds, tokens = course.seconds, course.output_tokens
    ttft = [r.first - r.sent for r in course.requests if r.first is not None]
    tpot = [(r.last - r.first) / (r.tokens - 1) for r in course.requests if r.tokens > 1]
    zipage = _grown(course)
    record = dict(
        partial=course.interrupted,
        interrupted=course.interrupted,
        load=workloads.summary(load),
        lengths=load.how,
        seconds=seconds,
        output_tokens=tokens,
        rate=tokens / seconds,
        finished=sum(r.finished for r in course.requests),
        whole=all(r.finished for r in course.requests),
        ttft_p50_s=percentile(ttft, 50),
        ttft_p99_s=percentile(ttft, 99),
        tpot_p50_ms=_ms(percentile(tpot, 50)),
        tpot_p99_ms=_ms(percentile(tpot, 99)),
        retractions=max(timeline.retractions(log), zipage.pop("retractions", None) or 0),
        decode_steps=len(steps),
        decode_tokens=sum(s["running"] for s in steps),
        decode_seconds=sum(s["step_ms"] for s in steps) / 1000,
        **_steps(steps),
        **token_gaps(dict(arrivals=[r.times for r in course.requests], seconds=seconds)),
        **zipage,
    )
    if mode.config:
        record |= plugin_cost(dict(samples=[s for s in course.samples if s["zipage"]], seconds=seconds))
    prompt = round(record["load"]["prompt_mean"])
    record["held_expected"] = ceiling.held(load.groups(), prompt, mode.config)
    return record


def _steps(steps: list[dict]) -> dict:
    half = timeline.second_half(steps) if len(steps) > PROMPT_STEPS else []
    if not half:
        return dict(
            half_rate=None,
            running_mean=None,
            usage_mean=None,
            step_ms=None,
            step_p50_ms=None,
            step_p99_ms=None,
            running_peak=None,
        )
    means, times = timeline.means(half), timeline.step_times(half)
    return dict(
        half_rate=means["rate"],
        running_mean=means["running"],
        usage_mean=means["usage"],
        step_ms=means["step_ms"],
        step_p50_ms=times["step_p50_ms"],
        step_p99_ms=times["step_p99_ms"],
        running_peak=max(s["running"] for s in steps),
    )


def _grown(course: Course) -> dict:
    """What the plugin's counters grew by."""
    first, last = course.samples[0]["zipage"], course.samples[-1]["zipage"]
    if not first or not last:
        return {}
    difference = lambda key: None if first.get(key) is None or last.get(key) is None else last[key] - first[key]
    return {key if key != "steps" else "plugin_steps": difference(key) for key in COUNTERS} | dict(
        buffer_mib=last.get("buffer_bytes", 0) / 2**20
    )


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000 * seconds
