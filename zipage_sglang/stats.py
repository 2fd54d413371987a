"""What a manager counts."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass
class Stats:
    """Totals since the start, for /server_info and the benchmarks.

    steps: passes with requests running.  host_seconds: the scheduler's time in this package, compress_seconds of it for
    compressions.  passes: scores of a row before the one at its compression, by request.
    held_back_seconds: time that retracted requests waited, added when they decode again.  sat_out: steps that requests sat out
    while they were compressed beside them.  admissions_held: steps at which nobody looked whom to admit (for groups).
    """

    steps: int = 0
    host_seconds: float = 0.0
    compress_seconds: float = 0.0
    compressions: int = 0
    passes: int = 0
    evicted_tokens: int = 0
    freed_slots: int = 0
    freed_pages: int = 0
    copied_out_slots: int = 0
    failures: int = 0
    retractions: int = 0
    retracted_compressed: int = 0
    parked: int = 0
    parked_seconds: float = 0.0
    peak_parked: int = 0
    sat_out: int = 0
    held_back_seconds: float = 0.0
    admissions_held: int = 0
    peak_running: int = 0
    peak_kv_tokens: int = 0
    peak_query_slots: int = 0
