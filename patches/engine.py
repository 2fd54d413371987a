"""The manager's view of SGLang's scheduler: lengths, slots, rows, streams, retraction.  The one place that writes a
request's KV bookkeeping.

Five copies of kv_len exist and are changed together in `publish`: batch.seq_lens, batch.seq_lens_cpu, the request's committed
and allocated lengths (see `compat.kv`) and the filled part of the row.
"""

from __future__ import annotations

import contextlib
import time
import zlib

import numpy as np
import torch

from sglang.srt.mem_cache.common import evict_from_tree_cache
from zipage_patches import active, admission, parking
from zipage_patches.compat import batches, kv, ranks, tree
from zipage_sglang import plan
from zipage_sglang.config import ZipageConfig
from zipage_sglang.engine import Compression
from zipage_sglang.flight import Remains, Segment
from zipage_sglang.per_request import InvalidSettings, request_config
from zipage_sglang.pressure import Gain, Shortage
from zipage_sglang.sizing.memory import what_fits
from zipage_sglang.state import RequestState


class SGLangEngine:
    """Implements zipage_sglang.manager.Engine on a live scheduler."""

    def __init__(self, scheduler, config: ZipageConfig):
        self.scheduler = scheduler
        self.config = config
        self.allocator = scheduler.token_to_kv_pool_allocator
        self.tree = scheduler.tree_cache
        self.row_pool = scheduler.req_to_token_pool
        self.page_size = scheduler.page_size
        self.pool_size = scheduler.max_total_num_tokens
        self.device = torch.device(scheduler.device)
        self.tp_size = ranks.tensor_parallel(scheduler).tp_size
        self.retracted: list = []
        self.deterministic = bool(scheduler.server_args.enable_deterministic_inference)
        self._turns = 0  # requests whose answers are a matter of chance, so far
        self.has_tree = tree.shares_prefixes(self.tree)

    # --- one request -------------------------------------------------------------------------------------------------

    def settle(self, req) -> str | None:
        """Decide a request's configuration, once, when it comes in; returns what is wrong with its settings."""
        params, prompt = req.sampling_params.custom_params, len(req.origin_input_ids)
        try:
            req.zipage_config = request_config(params, self.config, self.page_size, prompt)
        except InvalidSettings as error:
            req.zipage_config = self.config
            return str(error)
        return None

    @staticmethod
    def config_of(req) -> ZipageConfig | None:
        """The request's own configuration, None where it is not to be compressed."""
        return req.zipage_config

    @staticmethod
    def state(req) -> RequestState | None:
        return req.__dict__.get("zipage")

    def new_state(self, req) -> RequestState:
        """State of a request that is seen in the running batch for the first time since its (re)prefill."""
        config = self.config_of(req)
        state = RequestState(
            start=self.start(req),
            prefill_len=kv.length(req) - req.decode_batch_idx,
            config=config,
            early=config.early(self._number(req)) if config else 0,
            skip_insert=req.skip_radix_cache_insert,
        )
        req.zipage = state
        if (since := req.__dict__.pop("zipage_held_since", None)) is not None:
            active.manager().stats.held_back_seconds += time.monotonic() - since
        return state

    def _number(self, req) -> int:
        """What spreads first compressions: a request's turn, or its prompt where the same request must get the same answer."""
        params = req.sampling_params
        if params.top_k != 1 and not self.deterministic:  # SGLang does not look at seeds then
            self._turns += 1
            return self._turns
        return zlib.crc32(np.asarray(req.origin_input_ids, dtype=np.int64).tobytes()) + (params.sampling_seed or 0)

    def start(self, req) -> int:
        """First candidate row c0."""
        config = self.config_of(req) or self.config  # where nothing is compressed, any does
        return config.start(len(req.origin_input_ids))

    @staticmethod
    def holds_kv(req) -> bool:
        return kv.holds(req) and not req.finished()

    @staticmethod
    def has_row(req) -> bool:
        """Whether it holds KV, finished or not."""
        return kv.holds(req)

    @staticmethod
    def allocated_len(req) -> int:
        return kv.allocated(req)

    def tree_slots(self) -> torch.Tensor:
        """All slots that the prefix tree owns, int64 on the host."""
        return tree.slots(self.tree)

    @staticmethod
    def kv_len(req) -> int:
        return kv.length(req)

    @staticmethod
    def protected_len(req) -> int:
        """Leading rows whose slots belong to the prefix tree."""
        return kv.protected(req)

    def fits(self, req, prefill_len: int, remaining: int) -> bool:
        """Whether a request could be prefilled and bounded in an otherwise empty pool, or grow in full if it has no bound."""
        cfg = self.config_of(req)
        if cfg is None:
            return plan.fits_whole(prefill_len, remaining, self.page_size, self.pool_size)
        return plan.fits_alone(prefill_len, remaining, self.start(req), cfg.budget, cfg.cap, cfg.window, self.has_tree,
                               self.page_size, self.pool_size)

    def refits(self, req) -> bool:
        """Whether a request could be prefilled again, output so far included, after a retraction."""
        done = len(req.output_ids)
        remaining = max(req.sampling_params.max_new_tokens - done, 0)
        return self.fits(req, len(req.origin_input_ids) + done, remaining)

    # --- all requests ------------------------------------------------------------------------------------------------

    def held_back(self) -> int:
        """Requests that have been retracted and wait to be prefilled again."""
        return len(self.retracted) + sum(req.is_retracted for req in self.scheduler.waiting_queue)

    def concurrency_bound(self) -> int:
        """Requests that fit the pool at any length, their prompts not counted."""
        return what_fits(self.config, self.pool_size, self.page_size, self.scheduler.model_config.context_len).bounded

    # --- slots and rows ----------------------------------------------------------------------------------------------

    def allocate(self, slots: int) -> torch.Tensor | None:
        """int64 [slots], whole pages; evicts unlocked tree nodes when the pool is short; None when that is not enough."""
        evict_from_tree_cache(self.tree, slots)
        return self.allocator.alloc(slots)

    def copy_out(self, work: list[Compression], runtime):
        """Give private slots to the rows that the tree owns and the compression will write; move the tree lock up."""
        moved = [(item, item.new_slots) for item in work if item.new_slots is not None]
        if not moved:
            return
        table = self.row_pool.req_to_token
        old = []
        for item, new_slots in moved:
            row = table[kv.row(item.req)]
            item.old_slots = row[item.plan.cut : item.plan.copied].to(torch.int64)
            old.append(item.old_slots)
            row[item.plan.cut : item.plan.copied] = new_slots.to(torch.int32)
        # Rows are rewritten on the schedule stream (the decode step in flight has read them already); the copy itself must
        # follow that step, which still reads the old slots.
        src, dst = torch.cat(old), torch.cat([new_slots for _, new_slots in moved])
        with self.forward_stream():
            runtime.copy_slots(src, dst)
        if self.device.type == "cuda":
            stream = self.scheduler.forward_stream
            src.record_stream(stream)
            dst.record_stream(stream)

    def undo_copy_out(self, work: list[Compression]):
        """The rows get back the slots that the tree owns; the private ones are freed."""
        for item in work:
            if item.old_slots is not None:
                row = self.row_pool.req_to_token[kv.row(item.req)]
                row[item.plan.cut : item.plan.copied] = item.old_slots.to(torch.int32)
            if item.new_slots is not None:
                self.allocator.free(item.new_slots)

    @staticmethod
    def failed(req):
        """Counts on the request itself, because its state ends with the retraction that follows."""
        req.zipage_failures = getattr(req, "zipage_failures", 0) + 1

    @staticmethod
    def row(req) -> int:
        """The request's row of SGLang's row table."""
        return kv.row(req)

    # --- memory pressure ---------------------------------------------------------------------------------------------

    def shortage(self, batch, waiting: bool) -> Shortage:
        """What the next decode step and, if `waiting`, the first waiting request lack, were nothing compressed."""
        return admission.shortage(self, batch, waiting)

    def gain(self, req) -> Gain:
        """What compressing a row beyond its trigger yields."""
        state = self.state(req)
        assert state is not None and state.config is not None
        cfg = state.config
        row = plan.plan_row(state.start, cfg.budget, self.kv_len(req), self.protected_len(req), self.page_size)
        freed = row.kv_len - row.free_from - row.new_slots
        return Gain(freed, freed - cfg.block, row.new_slots)

    @contextlib.contextmanager
    def forward_stream(self):
        """Order device work after the decode step in flight and before the next one."""
        s = self.scheduler
        if not s.enable_overlap:
            yield
            return
        with s.forward_stream_ctx:
            s.forward_stream.wait_stream(s.schedule_stream)
            yield

    @contextlib.contextmanager
    def compression_stream(self):
        """Order device work after the decode step in flight and what is enqueued behind it so far: before the next one, or beside
        it where compressions have a stream of their own."""
        assert active.runtime is not None
        own = active.runtime.compression_stream
        with self.forward_stream():
            if own is None:
                yield
                return
            own.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(own):
            yield

    @staticmethod
    def mark() -> torch.cuda.Event | None:
        """A point behind the compressions enqueued so far, None where decode steps come after them anyway."""
        assert active.runtime is not None
        stream = active.runtime.compression_stream
        return stream.record_event() if stream is not None else None

    def wait_for(self, mark: torch.cuda.Event | None):
        """Whatever is enqueued on the forward stream from here on comes after the mark."""
        if mark is not None:
            with self.forward_stream():
                torch.cuda.current_stream(self.device).wait_event(mark)

    # --- after the kernels are enqueued ------------------------------------------------------------------------------

    def free(self, remains: Remains):
        """Give pages back, so that the same pass can admit into them."""
        for slots, start in remains.segments:
            self.allocator.free_segment(slots, start_pos=start)
        for lock in remains.locks:
            tree.unlock(self.tree, lock)
        # SGLang clears this only when the batch shrinks, but pages have just come free.
        self.scheduler.running_batch.batch_is_full = False

    def publish(self, batch, work: list[Compression]) -> Remains:
        """Shorten rows; returns what they have no more, for `free`."""
        if active.recorder is not None:
            slots = [active.recorder.slots(self.row(item.req), item.state.start, item.plan.kept) for item in work]
            with self.compression_stream():
                for item, kept in zip(work, slots):
                    state = item.state
                    active.recorder.compressed(item.req, kept, state.start, item.plan.kv_len + state.evicted,
                                               first=not state.compressed)
        lens, remains = batch.seq_lens_cpu.clone(), Remains([], [])
        for item in work:
            req, plan = item.req, item.plan
            if plan.free_from < plan.kv_len:
                freed = self.row_pool.req_to_token[kv.row(req), plan.free_from : plan.kv_len].to(torch.int64)
                remains.segments.append(Segment(freed, plan.free_from))
            if item.new_slots is not None:
                remains.locks.append(tree.shorten_lock(self.tree, req, plan.cut))
            # The row no longer matches the token ids: it must never enter the tree.
            req.skip_radix_cache_insert = True
            kv.set_length(req, plan.kept)
            lens[item.index] = plan.kept
        # New tensors, never in place: the batch in flight still refers to the old ones.
        batch.seq_lens_cpu = lens
        staged = lens.pin_memory() if self.device.type == "cuda" else lens.clone()
        batch.seq_lens = staged.to(self.device, non_blocking=True)
        batch.seq_lens_sum = None
        batch.batch_is_full = False  # see `free`
        return remains

    @staticmethod
    def ending(req) -> bool:
        """Whether the next step that is run with the request is its last."""
        return req.to_finish is not None

    @staticmethod
    def remaining(req) -> int:
        """Most tokens that are still to come; under overlap scheduling the one in flight is among them."""
        return req.sampling_params.max_new_tokens - len(req.output_ids)

    def leave(self, batch, parked: list[int], retracted: list[int]) -> dict:
        """Take requests out of the batch.  Returns {index: place} of those that keep their row and come back by `parking`;
        `requeue` sends the others back to the waiting queue, to be prefilled again."""
        places = {index: parking.split_off(batch, index) for index in parked}
        reqs = [batch.reqs[i] for i in retracted]
        for n, index in enumerate(retracted):
            batches.release(self.scheduler, batch, index, len(batch.reqs) - n - 1)
        gone = {*places, *retracted}
        batch.filter_batch(keep_indices=[i for i in range(len(batch.reqs)) if i not in gone])
        batch.batch_is_full = False
        self.retracted += reqs
        return places

    def requeue(self):
        """After this pass's admission: under overlap scheduling the last step's result is still to come, and would be added to a
        request that was admitted again before it.  As long as the request counts as retracted, SGLang drops that token."""
        for req in self.retracted:
            self.scheduler._add_request_to_queue(req, is_retracted=True)
        self.retracted = []
