"""What the outside sees: Prometheus series beside SGLang's own, with its labels, and a summary in each answer's meta_info."""

from __future__ import annotations

import time
import weakref

from zipage_sglang import per_request

SECONDS = 1.0  # between two updates
TOKENS = (64, 128, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 65536)

# series -> (field of manager.Stats, help).  Counters; Prometheus adds `_total`.
COUNTERS = {
    "zipage:compressions": ("compressions", "Compressions of a request's KV rows."),
    "zipage:evicted_tokens": ("evicted_tokens", "Tokens evicted by compressions, each counted once for all layers and heads."),
    "zipage:freed_slots": ("freed_slots", "KV slots given back by compressions."),
    "zipage:copied_out_slots": ("copied_out_slots", "KV slots copied because the prefix tree owns the originals."),
    "zipage:retractions": ("retractions", "Requests retracted, compressed or not."),
    "zipage:failures": ("failures", "Requests whose compression failed and that were prefilled again."),
    "zipage:host_seconds": ("host_seconds", "CPU time of the plugin in the scheduler."),
}


class Metrics:
    """Feeds Prometheus from a manager's totals; one per scheduler that SGLang lets report metrics."""

    def __init__(self, manager, labels: dict[str, str], bound: int):
        """labels: those of SGLang's own series.  bound: requests that fit the pool at any length."""
        # Imported here because PROMETHEUS_MULTIPROC_DIR is set by then.
        from prometheus_client import Counter, Gauge, Histogram

        self.manager, self.labels = manager, labels
        self.next_update = 0.0
        self.reported = dict.fromkeys(COUNTERS, 0.0)
        self.counters = {name: Counter(name, text, labels.keys()) for name, (_, text) in COUNTERS.items()}
        self.gpu_seconds = Counter("zipage:compression_seconds", "Time of compressions on the device.", labels.keys())
        self.reported_gpu_seconds = 0.0

        def gauge(name: str, text: str):
            return Gauge(name, text, labels.keys(), multiprocess_mode="mostrecent")

        self.compressed = gauge("zipage:compressed_reqs", "Requests that hold a compressed row.")
        self.over = gauge("zipage:reqs_beyond_bound", "Requests that grow beyond K + b because there is room (--zipage-when).")
        self.slots_used = gauge("zipage:query_slots_used", "Query slots in use.")
        self.slots = gauge("zipage:query_slots", "Query slots in all.")
        self.bound = gauge("zipage:concurrency_bound", "Requests that fit the KV pool at any length, prompts not counted.")
        self.resident = Histogram(
            "zipage:resident_tokens", "KV tokens that a request held at its end.", labels.keys(), buckets=TOKENS)
        self.true_length = Histogram(
            "zipage:true_tokens", "Tokens of a request at its end, evicted ones included.", labels.keys(), buckets=TOKENS)
        self.slots.labels(**labels).set(manager.runtime.slots)
        self.bound.labels(**labels).set(bound)

    def update(self, idle: bool):
        """Called at every pass of the scheduler; does something once a second, and whenever nothing runs, because an idle
        scheduler may sleep from here on."""
        now = time.monotonic()
        if now < self.next_update and not idle:
            return
        self.next_update = now + SECONDS
        manager, labels = self.manager, self.labels
        for name, (field, _) in COUNTERS.items():
            total = getattr(manager.stats, field)
            self.counters[name].labels(**labels).inc(total - self.reported[name])
            self.reported[name] = total
        seconds = manager.compressor.seconds
        self.gpu_seconds.labels(**labels).inc(seconds - self.reported_gpu_seconds)
        self.reported_gpu_seconds = seconds
        self.compressed.labels(**labels).set(manager.compressed)
        self.over.labels(**labels).set(len(manager.over))
        self.slots_used.labels(**labels).set(manager.runtime.slots - len(manager.free_slots))

    def ended(self, compressions: int, evicted_tokens: int, kv_len: int):
        """A request has ended; see `outcome`."""
        self.resident.labels(**self.labels).observe(kv_len)
        self.true_length.labels(**self.labels).observe(kv_len + evicted_tokens)


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
