"""Reads what SGLang's scheduler writes in its log at every decode step (`--decode-log-interval 1`) and at retractions."""

from __future__ import annotations

import dataclasses
import re

_DECODE = re.compile(r"Decode batch.*?#running-req: (\d+), #token: (\d+).*?#queue-req: (\d+)")
_RETRACT = re.compile(r"#retracted_reqs: (\d+)")


@dataclasses.dataclass
class LogStats:
    """Counts of requests (running, waiting) and KV tokens in the pool; `now` values are the last line's."""

    running_now: int = 0
    waiting_now: int = 0
    peak_running: int = 0
    peak_pool_tokens: int = 0
    running_sum: int = 0
    decode_steps: int = 0
    retractions: int = 0

    @property
    def mean_running(self) -> float:
        """Mean number of requests decoded in a step."""
        return self.running_sum / self.decode_steps if self.decode_steps else 0.0


def read_log(lines) -> LogStats:
    """LogStats of an iterable of log lines; lines that say nothing of this are skipped."""
    stats = LogStats()
    for line in lines:
        if match := _DECODE.search(line):
            running, tokens, waiting = map(int, match.groups())
            stats.running_now, stats.waiting_now = running, waiting
            stats.peak_running = max(stats.peak_running, running)
            stats.peak_pool_tokens = max(stats.peak_pool_tokens, tokens)
            stats.running_sum += running
            stats.decode_steps += 1
        elif match := _RETRACT.search(line):
            stats.retractions += int(match.group(1))
    return stats
