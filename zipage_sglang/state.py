"""What the plugin remembers about one request between scheduler steps."""

from __future__ import annotations

import dataclasses

from zipage_sglang import plan
from zipage_sglang.config import ZipageConfig
from zipage_sglang.flight import Flight

NO_SLOT = -1


@dataclasses.dataclass(slots=True)
class RequestState:
    """Lives on SGLang's request object from its first decode step to its end or retraction.

    start: first candidate row (c0).  prefill_len: rows after the last (re)prefill.  config: the request's own, None where it is
    not to be compressed.  early: tokens by which its first compression comes before K + b.
    count: compressions since the prefill.
    stored: first candidates whose score is in the table.  seen: those that windows since the last compression have scored.
    windows: how many of them did.  evicted: true length - kv_len.  slot: query slot or NO_SLOT.
    look_at: manager step at which the next look is booked, 0 before the first.
    parked_at: manager step since which the request waits for its compression, 0 if it does not.
    over: whether the row may be compressed at any time, because it is longer than its trigger (`when` pressure).
    copy_out: slots that its compression will copy out of the prefix tree while it is `over`, None if nobody asked yet.
    counted: whether the manager counts it among the compressed requests that hold a row.
    flight: the compression that is under way beside the decode steps, None if there is none.
    skip_insert: what SGLang's skip_radix_cache_insert said before the first compression, restored at a retraction.
    """

    start: int
    prefill_len: int
    config: ZipageConfig | None
    early: int = 0
    count: int = 0
    stored: int = 0
    seen: int = 0
    windows: int = 0
    evicted: int = 0
    slot: int = NO_SLOT
    look_at: int = 0
    parked_at: int = 0
    over: bool = False
    copy_out: int | None = None
    counted: bool = False
    flight: Flight | None = None
    skip_insert: bool = False

    @property
    def compressed(self) -> bool:
        return self.count > 0

    @property
    def scored(self) -> int:
        """Tokens before the next compression whose queries score.

        Windows before the last one only where the candidates lie in slots of its own, as those that it decoded itself and those
        that a compression left do: others may read the rest, and its scores, in the prefix tree.
        """
        assert self.config is not None
        own = self.compressed or self.start >= self.prefill_len
        return self.config.scored if own else self.config.window

    @property
    def trigger(self) -> int:
        """kv_len at which the next compression is due."""
        if self.config is None:
            return plan.NEVER
        cap = self.config.cap
        if self.compressed:
            return self.start + cap
        return plan.trigger_len(self.start, cap - self.early, self.config.window, self.prefill_len)
