"""Parked requests: out of the running batch for some steps, with their row, their pages and their place among the admitted;
pages that a compression beside the decode steps still holds.

Each waits in a ScheduleBatch of its own, split off the running batch and merged back later, so that sampling parameters,
logprob options and grammar go along.  The step in flight may still end it; its row is freed then as always.
"""

from __future__ import annotations

import copy
import dataclasses

from sglang.srt.managers.schedule_batch import FINISH_ABORT, ScheduleBatch
from sglang.srt.sampling.penaltylib import BatchedPenalizerOrchestrator
from zipage_patches import active, admission
from zipage_patches.compat import batches, kv


@dataclasses.dataclass(frozen=True, eq=False)
class Place:
    """batch: the parked request's own.  known: output tokens that it had when it was parked; under overlap scheduling the step in
    flight adds one."""

    batch: ScheduleBatch
    known: int


def split_off(batch, index: int) -> Place:
    """The request at `index`; `batch` is left as it is."""
    alone = copy.copy(batch)
    alone.sampling_info = copy.copy(batch.sampling_info)
    alone.sampling_info.penalizer_orchestrator = _own_penalties(batch.sampling_info.penalizer_orchestrator, alone)
    if len(batch.reqs) > 1:
        alone.filter_batch(keep_indices=[index])
    alone.batch_is_full = False
    req = batch.reqs[index]
    return Place(alone, len(req.output_ids) - (req in _late(batch.sampling_info.penalizer_orchestrator)))


def _own_penalties(penalties, batch) -> BatchedPenalizerOrchestrator:
    """The same counts for another batch of the same requests."""
    own = BatchedPenalizerOrchestrator(penalties.vocab_size, batch, set())
    for kind, counts in penalties.penalizers.items():
        own.penalizers[kind] = copied = kind(own)
        copied.__dict__.update((k, v) for k, v in counts.__dict__.items() if k != "_orchestrator_ref")
    own.is_required = penalties.is_required
    return own


def _count_one_behind(batch, late: list):
    """Before a step that overlaps another, penalties count the last known token: the one before the last, which is in flight.
    Requests that sat out a step have all their tokens known, so their first count is put one back, or the last token would count
    twice and the one before it never."""
    penalties = batch.sampling_info.penalizer_orchestrator
    if not late or not penalties.is_required:
        return
    late = late + _late(penalties)

    def once(tokens):
        del penalties.cumulate_output_tokens
        tokens = tokens.clone()
        for i, req in enumerate(penalties.reqs()):
            if req in late:
                tokens[i] = [*req.origin_input_ids[-1:], *req.output_ids][-2]
        penalties.cumulate_output_tokens(tokens)

    once.late = late  # type: ignore[attr-defined]
    penalties.cumulate_output_tokens = once


def _late(penalties) -> list:
    """Requests whose next count is put one back, since they have come back and no step has been prepared yet."""
    return getattr(penalties.__dict__.get("cumulate_output_tokens"), "late", [])


def merge_back(running, places: list[Place]):
    """The running batch with the parked requests behind its own; a new one if it had none."""
    for place in places:
        if running.is_empty():
            running = place.batch
        else:
            running.merge_batch(place.batch)
    _count_one_behind(running, [req for p in places for req in p.batch.reqs if len(req.output_ids) > p.known])
    return running


def get_next_batch_to_run(original, scheduler, running_batch, last_batch):
    """AROUND Scheduler.get_next_batch_to_run: parked requests come back, and pages that compressions held, before anyone is
    admitted."""
    manager = active.manager()
    if manager.parked or manager.flights.aloft:
        aloft = len(manager.flights.aloft)
        running_batch = merge_back(running_batch, manager.come_back())
        if len(manager.flights.aloft) < aloft:
            running_batch.batch_is_full = False
    return original(scheduler, running_batch=running_batch, last_batch=last_batch)


def parked() -> list:
    """Requests that hold KV and are in no batch of SGLang's."""
    manager = active.manager()
    if manager is None:
        return []
    return [item.req for item in manager.parked if manager.engine.holds_kv(item.req)]


def is_fully_idle(result, scheduler, *args, **kwargs):
    """AFTER Scheduler.is_fully_idle."""
    if parked():
        return False
    if result and (manager := active.manager()) is not None:
        manager.land()  # pages of requests that ended while they were compressed
    return None


def num_allocatable(original, scheduler, running_bs, *args, **kwargs):
    """AROUND Scheduler.get_num_allocatable_reqs: parked requests count among the running ones."""
    return original(scheduler, running_bs + len(parked()), *args, **kwargs)


def can_schedule_lora(original, scheduler, req, running_loras):
    """AROUND Scheduler._can_schedule_lora_req: adapters of parked requests are as good as running, they come back to them."""
    return original(scheduler, req, running_loras | {r.lora_id for r in parked()})


def adder_init(result, adder, *args, **kwargs):
    """AFTER PrefillAdder.__init__: what parked requests may still grow to stays reserved."""
    engine = active.manager().engine
    batches.reserve(adder, sum(admission.running_growth(engine, req, adder.page_size) for req in parked()))


def abort_request(result, scheduler, recv_req):
    """AFTER Scheduler.abort_request (0.5.17): they come back at the next step and end there."""
    for req in parked():
        if recv_req.abort_all or req.rid.startswith(recv_req.rid):
            req.to_finish = FINISH_ABORT()


def running_timeout(original, scheduler, running_batch):
    """AROUND Scheduler._abort_on_running_timeout (0.5.17)."""
    original(scheduler, running_batch)
    for item in active.manager().parked:
        original(scheduler, item.place.batch)


def inflight_batches(found, scheduler):
    """AFTER Scheduler._collect_inflight_batches (0.5.23), where aborts and timeouts look for requests: parked ones come back at
    the next step and end there."""
    return [*found, *(item.place.batch for item in active.manager().parked)]


def owners(found, checker):
    """AFTER SchedulerInvariantChecker._requests_owning_rows (0.5.23), for SGLang's own checks of pool and pages."""
    return [*found, *(req for req in parked() if req not in found)]


def pause_generation(scheduler, recv_req):
    """BEFORE Scheduler.pause_generation: in mode `retract` everybody goes back to the queue."""
    manager = active.manager()
    manager.land()  # no step may come for long
    if recv_req.mode == "retract" and manager.parked:
        scheduler.running_batch = merge_back(scheduler.running_batch, [item.place for item in manager.parked])
        manager.parked = []


def uncached_sizes(result, checker):
    """AFTER SchedulerInvariantChecker._get_total_uncached_sizes, SGLang's own check of the pool while it works: parked requests
    (0.5.23 has them from `owners`), and pages that compressions hold."""
    full, swa = result
    page = checker.page_size
    full += sum(-(-len(segment.slots) // page) * page for segment in active.manager().flights.segments)
    if kv.ON_KV:
        return full, swa
    batches = [b for b in (checker.get_last_batch(), checker.get_running_batch()) if b is not None]
    for req in parked():
        if not any(req in batch.reqs for batch in batches):
            full += -(-kv.allocated(req) // page) * page - kv.protected(req)
    return full, swa
