"""Admissions in groups: while the pool is full, room that comes free may gather before somebody is admitted into it.

Each admission is a prefill, for which all requests that run wait.  `zipage_sglang.grouping` says when to put it off; who may be
admitted, and in which order, stays SGLang's decision.
"""

from __future__ import annotations

from zipage_patches import active, parking
from zipage_patches.compat import arguments


def admit(original, scheduler, running_batch):
    """Scheduler.get_new_batch_prefill, or that without a look at who waits."""
    manager = active.manager()
    groups, now = manager.groups, manager.watch.now
    if not groups.most:
        return original(scheduler, running_batch)
    looks = not running_batch.batch_is_full or scheduler.enable_priority_preemption
    rows, waiting = len(running_batch.reqs) + len(parking.parked()), len(scheduler.waiting_queue)
    if looks and groups.waits(now, rows, waiting) and _may_wait(scheduler, running_batch, groups.rows - rows):
        manager.stats.admissions_held += 1
        return _without_a_look(original, scheduler, running_batch)
    plan = original(scheduler, running_batch)
    prefill = plan.batch_to_run
    if prefill is not None:  # it is merged into the running batch, whose finished requests may still be there, by the next step
        rows = sum(not r.finished() for r in running_batch.reqs) + len(prefill.reqs) + len(parking.parked())
        groups.prompt = prefill.reqs[-1].origin_input_ids
    full = plan.running_batch.batch_is_full and bool(scheduler.waiting_queue)
    groups.looked(now, prefill is not None, full, rows)
    return plan


def _together(scheduler) -> int:
    """How many like the first who waits one prefill takes.

    With equal prompts the first alone, if it is the first of its prompt: the others find it in the prefix tree after that.
    """
    head, *others = scheduler.waiting_queue[:2]
    ids = head.origin_input_ids
    manager = active.manager()
    if others and others[0].origin_input_ids == ids != manager.groups.prompt and manager.engine.has_tree:
        return 1
    limits = [scheduler.chunked_prefill_size, scheduler.max_prefill_tokens]
    together = min([limit // max(1, len(ids)) for limit in limits if limit and limit > 0], default=len(scheduler.waiting_queue))
    return min(together, arguments.resolved(scheduler.server_args).prefill_max_requests or together)


def _may_wait(scheduler, running_batch, places: int) -> bool:
    """Whether a step without an admission is a decode step, nobody is there who must not wait for others, and one prefill takes
    more than have `places` now: a group of several prefills would stall those that run for longer."""
    if scheduler.chunked_req is not None or running_batch.is_prefill_only or running_batch.is_empty():
        return False
    if active.manager().engine.held_back():
        return False  # who was retracted has waited once
    if _together(scheduler) <= max(1, places):
        return False
    return not (scheduler.enable_priority_scheduling and _outranks(scheduler, running_batch))


def _outranks(scheduler, running_batch) -> bool:
    """Whether somebody who waits has a higher priority than somebody who runs."""
    sign = -1 if scheduler.schedule_low_priority_values_first else 1
    best = max(sign * r.priority for r in scheduler.waiting_queue)
    return best > min(sign * r.priority for r in running_batch.reqs)


def _without_a_look(original, scheduler, running_batch):
    """What else SGLang does there (grammars that are ready join the queue), as if the batch were full.  Its flag stays as it was:
    what cleared it is not seen again."""
    before = running_batch.batch_is_full, scheduler.enable_priority_preemption
    running_batch.batch_is_full, scheduler.enable_priority_preemption = True, False
    try:
        return original(scheduler, running_batch)
    finally:
        running_batch.batch_is_full, scheduler.enable_priority_preemption = before
