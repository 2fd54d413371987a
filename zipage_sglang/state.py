"""What the plugin remembers about one request between scheduler steps."""

from __future__ import annotations

import dataclasses

from zipage_sglang import plan

NO_SLOT = -1


@dataclasses.dataclass(slots=True)
class RequestState:
    """Lives on SGLang's request object from its first decode step to its end or retraction.

    start: first candidate row (c0).  prefill_len: rows after the last (re)prefill.  count: compressions since then.
    evicted: true length - kv_len.  slot: query slot or NO_SLOT.
    look_at: manager step at which the next look is booked, 0 before the first.
    over: whether the row may be compressed at any time, because it is longer than its trigger (`when` pressure).
    counted: whether the manager counts it among the compressed requests that hold a row.
    skip_insert: what SGLang's skip_radix_cache_insert said before the first compression, restored at a retraction.
    """

    start: int
    prefill_len: int
    count: int = 0
    evicted: int = 0
    slot: int = NO_SLOT
    look_at: int = 0
    over: bool = False
    counted: bool = False
    skip_insert: bool = False

    @property
    def compressed(self) -> bool:
        return self.count > 0

    def trigger(self, cap: int, window: int) -> int:
        """kv_len at which the next compression is due; `cap` and `window` in tokens."""
        return self.start + cap if self.compressed else plan.trigger_len(self.start, cap, window, self.prefill_len)
