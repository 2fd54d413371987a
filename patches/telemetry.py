"""What the outside sees: Prometheus series beside SGLang's own, with its labels, and a summary in an answer's meta_info."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from zipage_patches import active
from zipage_sglang.ages import EDGES

from zipage_sglang import per_request

SECONDS = 1.0  # between two updates
TOKENS = (64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 65536)


class Series(NamedTuple):
    """One Prometheus series.  kind: counter, gauge or histogram.  source: its total or value, of a manager; None where it is
    fed by events.  buckets: upper edges of a histogram."""

    name: str
    kind: str
    source: Callable | None
    help: str
    buckets: tuple[int, ...] = ()


SERIES = (
    Series("zipage:compressions", "counter", lambda m: m.stats.compressions, "Compressions of a request's KV rows."),
    Series("zipage:passes", "counter", lambda m: m.stats.passes,
           "Times that a request's rows were scored before their compression (--zipage-passes)."),
    Series("zipage:evicted_tokens", "counter", lambda m: m.stats.evicted_tokens,
           "Tokens evicted by compressions, each counted once for all layers and heads."),
    Series("zipage:freed_slots", "counter", lambda m: m.stats.freed_slots, "KV slots given back by compressions."),
    Series("zipage:freed_pages", "counter", lambda m: m.stats.freed_pages, "KV pages given back by compressions."),
    Series("zipage:copied_out_slots", "counter", lambda m: m.stats.copied_out_slots,
           "KV slots copied because the prefix tree owns the originals."),
    Series("zipage:retractions", "counter", lambda m: m.stats.retractions, "Requests retracted, compressed or not."),
    Series("zipage:failures", "counter", lambda m: m.stats.failures,
           "Requests whose compression failed and that were prefilled again, and those whose earlier scoring failed."),
    Series("zipage:held_back_seconds", "counter", lambda m: m.stats.held_back_seconds,
           "Time that retracted requests waited, added when they decode again."),
    Series("zipage:parked", "counter", lambda m: m.stats.parked,
           "Times that a request had to wait for a query slot or for its compression, with its KV."),
    Series("zipage:parked_seconds", "counter", lambda m: m.stats.parked_seconds, "Time of that waiting, added when it ends."),
    Series("zipage:compression_seconds", "counter", lambda m: m.compressor.seconds,
           "Time of compressions, and of scoring before them, on the device."),
    Series("zipage:host_seconds", "counter", lambda m: m.stats.host_seconds, "CPU time of the plugin in the scheduler."),
    Series("zipage:compressed_reqs", "gauge", lambda m: m.compressed, "Requests that hold a compressed row."),
    Series("zipage:held_back_reqs", "gauge", lambda m: m.engine.held_back(),
           "Retracted requests that wait to be prefilled again."),
    Series("zipage:parked_reqs", "gauge", lambda m: len(m.parked),
           "Requests that wait so, or that are being compressed beside the decode steps (--zipage-async-steps)."),
    Series("zipage:reqs_beyond_bound", "gauge", lambda m: len(m.over),
           "Requests that grow beyond K + b because there is room (--zipage-when)."),
    Series("zipage:query_slots_used", "gauge", lambda m: m.slots.used, "Query slots in use."),
    Series("zipage:query_slots", "gauge", lambda m: m.runtime.slots, "Query slots in all."),
    Series("zipage:concurrency_bound", "gauge", lambda m: m.engine.concurrency_bound(),
           "Requests that fit the KV pool at any length, prompts not counted."),
    Series("zipage:resident_tokens", "histogram", None, "KV tokens that a request held at its end.", TOKENS),
    Series("zipage:true_tokens", "histogram", None, "Tokens of a request at its end, evicted ones included.", TOKENS),
    Series("zipage:evicted_age_tokens", "histogram", None,
           "Tokens read or decoded after an evicted one; an entry for each token, KV head and sampled layer (at most 4).", EDGES),
)


class Metrics:
    """Feeds Prometheus from a manager's totals; one per scheduler that SGLang lets report metrics."""

    def __init__(self, manager, labels: dict[str, str]):
        """labels: those of SGLang's own series."""
        # Imported here because PROMETHEUS_MULTIPROC_DIR is set by then.
        from prometheus_client import Counter, Gauge, Histogram

        self.manager = manager
        self.next_update = 0.0
        make: dict[str, Callable] = {
            "counter": lambda s: Counter(s.name, s.help, labels.keys()),
            "gauge": lambda s: Gauge(s.name, s.help, labels.keys(), multiprocess_mode="mostrecent"),
            "histogram": lambda s: Histogram(s.name, s.help, labels.keys(), buckets=s.buckets),
        }
        self.series: dict[str, Any] = {s.name: make[s.kind](s).labels(**labels) for s in SERIES}
        self.reported = {s.name: 0.0 for s in SERIES if s.kind == "counter"}
        self.ages_at = 0  # compressions when the ages of evicted tokens were last asked for
        self.ages = [0] * (len(EDGES) + 2)

    def update(self, idle: bool):
        """Called at every pass of the scheduler; does something once a second, and whenever nothing runs, because an idle
        scheduler may sleep from here on."""
        now = time.monotonic()
        if now < self.next_update and not idle:
            return
        self.next_update = now + SECONDS
        for s in SERIES:
            if s.source is None:
                continue
            if s.kind == "gauge":
                self.series[s.name].set(s.source(self.manager))
            elif s.kind == "counter":
                total = s.source(self.manager)
                self.series[s.name].inc(total - self.reported[s.name])
                self.reported[s.name] = total
        self._update_ages(idle)

    def _update_ages(self, idle: bool):
        """Reads what an earlier update asked for; only when nothing runs there is time to wait for the last of it."""
        ages, compressions = self.manager.compressor.ages, self.manager.stats.compressions
        if ages is None or idle and compressions == self.ages_at:
            return
        totals = ages.read(self.manager.engine.compression_stream(), wait=idle)
        if totals is None:
            return
        if idle:
            self.ages_at = compressions
        # prometheus_client observes one value at a time; SGLang adds many to a histogram this way, too.
        histogram = self.series["zipage:evicted_age_tokens"]
        histogram._sum.inc(totals[-1] - self.ages[-1])
        # `totals` counts entries up to each edge, a bucket of prometheus_client those between two.
        grown = [new - old for new, old in zip(totals[:-1], self.ages[:-1])]
        for bucket, count in zip(histogram._buckets, (b - a for a, b in zip([0, *grown], grown))):
            bucket.inc(count)
        self.ages = totals

    def ended(self, compressions: int, evicted_tokens: int, kv_len: int):
        """A request has ended; see `outcome`."""
        self.series["zipage:resident_tokens"].observe(kv_len)
        self.series["zipage:true_tokens"].observe(kv_len + evicted_tokens)


def decode_usage(parts, pool_stats):
    """AFTER PoolStats.get_decode_usage_msg_parts: two numbers more in the log's line about decode steps."""
    manager = active.manager()
    if manager is not None:
        parts += [f"#compressed-req: {manager.compressed}", f"#parked-req: {len(manager.parked)}",
                  f"#held-back-req: {manager.engine.held_back()}"]


def outcome(req) -> dict[str, int]:
    """Compressions of the row that a finished request was decoded from, tokens evicted from it, and tokens left in it."""
    state = req.__dict__.get("zipage")
    evicted = state.evicted if state is not None else 0
    return dict(compressions=state.count if state is not None else 0, evicted_tokens=evicted,
                kv_len=len(req.origin_input_ids) + len(req.output_ids) - evicted)


class Summary:
    """meta_info["zipage"] of one request: a list of one dict, sent with its last tokens.

    SGLang sends `customized_info` as one value per token, sliced by what is new; this has one for the whole request.
    """

    def __init__(self, req):
        self.req = weakref.ref(req)

    def __getitem__(self, new_tokens: slice) -> list[dict]:
        req = self.req()
        if req is None or not req.finished():
            return []
        return [{**per_request.effective(req.zipage_config), **outcome(req)}]


def attach_summary(req):
    """Have the request's answer say what was done to it."""
    if req.customized_info is None:
        req.customized_info = {}
    req.customized_info["zipage"] = Summary(req)
