"""Admission by bounded footprint: a request reserves what its row can still grow to, not its whole max_new_tokens.

Reservation of a request until it ends (design: reservation): the tree-locked prefix is held already (and counted once per
shared node by the tree), then the private part of the prompt, min(remaining, slots up to the trigger), private slots for
a copy-out if one is due, and one page of slack.
"""

from __future__ import annotations

import contextlib

from zipage_patches import active, parking, telemetry
from zipage_patches.compat import batches, kv
from zipage_sglang import plan
from zipage_sglang.pressure import Shortage


GIVEN = "zipage_given"  # on an adder that chooses victims: {request: (slots that it holds, slots that it could grow by)}


def _remaining(req) -> int:
    return max(req.sampling_params.max_new_tokens - len(req.output_ids), 0)


def _waiting_growth(engine, req, page: int) -> int:
    """Slots beyond its prefill that a request about to be prefilled will need."""
    cfg, prefill = engine.config_of(req), len(req.origin_input_ids) + len(req.output_ids)
    if cfg is None:
        return _remaining(req)
    start = engine.start(req)
    to_trigger = max(0, plan.trigger_len(start, cfg.cap, cfg.window, prefill) - prefill)
    grow = min(_remaining(req), to_trigger)
    if grow <= to_trigger - cfg.spread_steps:  # it ends before a compression could copy anything out
        return grow
    protected = plan.floor_page(prefill, page) if engine.has_tree else 0
    return grow + plan.copy_out_slots(start, cfg.budget, protected, page)


def running_offset(original, adder, req):
    """AROUND PrefillAdder._get_running_request_total_token_offset: further slots of a running request, in tokens.

    While victims are chosen also the slots that each of them gives back.
    """
    growth = running_growth(active.manager().engine, req, adder.page_size)
    given = adder.__dict__.get(GIVEN)
    if given is None:
        return growth
    if req not in given:  # asked again once the slots are gone
        given[req] = plan.ceil_page(kv.allocated(req), adder.page_size) - kv.protected(req), growth
    return sum(given[req])


def running_growth(engine, req, page: int) -> int:
    """Slots that a running request may still take before it gives some back, one page of slack included.

    A row beyond its trigger takes none: it gives back when it must.  One that is first compressed early grows to K + b later on.
    """
    state = engine.state(req) or engine.new_state(req)
    kv_len, remaining, config = engine.kv_len(req), _remaining(req), state.config
    if config is None:
        return remaining + page
    grow = min(remaining, max(0, max(state.trigger, state.start + config.cap) - kv_len))
    if kv_len + remaining >= state.trigger:
        grow += plan.copy_out_slots(state.start, config.budget, engine.protected_len(req), page)
    return grow + page


def shortage(engine, batch, waiting: bool) -> Shortage:
    """KV slots missing for the next decode step, and, if `waiting`, for the first waiting request (`zipage_sglang.pressure`)."""
    scheduler, page = engine.scheduler, engine.page_size
    free = engine.allocator.available_size() + (engine.tree.evictable_size() if engine.has_tree else 0)
    # A copy-out takes slots before it frees any, so the largest must always be possible.
    over = active.manager().over
    for r, s in over:
        if s.copy_out is None:  # what the tree owns of the row stays the same until it is compressed
            s.copy_out = plan.copy_out_slots(s.start, s.config.budget, engine.protected_len(r), page)
    copies = max((s.copy_out or 0 for _, s in over), default=0)
    # Two steps: under overlap scheduling another step's slots are taken before this one's rows come back.
    now = 2 * page * len(batch.reqs) + copies - free
    if not waiting:
        return Shortage(now, None, free)
    holders = [r for r in batch.reqs if engine.holds_kv(r)] + parking.parked()
    full = len(holders) >= scheduler.max_running_requests
    if full or not scheduler.waiting_queue:
        return Shortage(now, None, free)
    head = scheduler.waiting_queue[0]
    need = plan.ceil_page(len(head.origin_input_ids) + len(head.output_ids), page) + _waiting_growth(engine, head, page) + page
    return Shortage(now, need + sum(running_growth(engine, r, page) for r in holders) - free, free)


@contextlib.contextmanager
def _bounded(adder, req, done: int):
    """SGLang sees the bounded growth of a waiting request.  done: output tokens that it subtracts itself.

    ignore_eos is masked too: its special path simulates every request to its full length.
    """
    params = req.sampling_params
    real = params.max_new_tokens, params.ignore_eos
    params.max_new_tokens = done + _waiting_growth(active.manager().engine, req, adder.page_size)
    params.ignore_eos = False
    try:
        yield
    finally:
        params.max_new_tokens, params.ignore_eos = real


def add_one_req(original, adder, req, *args, **kwargs):
    """AROUND PrefillAdder.add_one_req, the admission gate."""
    with _bounded(adder, req, done=len(req.output_ids)):
        return original(adder, req, *args, **kwargs)


def preempt_to_schedule(original, adder, req, *args, **kwargs):
    """AROUND PrefillAdder.preempt_to_schedule: a newcomer of higher priority needs its bounded growth, and a victim gives what it
    holds besides what it could still grow to, which is little for a bounded row.  Requests that the pool could not hold again
    are spared."""
    engine = active.manager().engine
    spared = [r for r in adder.running_batch.reqs if engine.holds_kv(r) and not engine.refits(r)]
    given: dict = {}
    adder.__dict__[GIVEN] = given
    adder.preempt_list.extend(spared)
    try:
        with _bounded(adder, req, done=0):
            done = original(adder, req, *args, **kwargs)
    finally:
        del adder.__dict__[GIVEN]
        adder.preempt_list[:] = [r for r in adder.preempt_list if r not in spared]
    if done:  # what they held is counted as free by now, and was taken off the reservations as well
        batches.reserve(adder, sum(held for r, (held, _) in given.items() if r in adder.preempt_list))
    return done


def update_prefill_budget(original, adder, prefix_len, extend_input_len, max_new_tokens, *args, **kwargs):
    """AROUND PrefillAdder._update_prefill_budget: charge the bounded growth of the request just added.

    max_new_tokens is 0 for a chunk that is not the last, which must stay so.
    """
    if max_new_tokens > 0:
        max_new_tokens = _waiting_growth(active.manager().engine, adder.can_run_list[-1], adder.page_size)
    return original(adder, prefix_len, extend_input_len, max_new_tokens, *args, **kwargs)


def init_req_max_new_tokens(original, scheduler, req):
    """AROUND Scheduler.init_req_max_new_tokens: outputs longer than the pool are fine when the row stays bounded.

    SGLang clips max_new_tokens so that prompt and output fit the pool together.  That clip is lifted for a request whose
    bound fits.  One whose bound does not is not compressed, so that it can be admitted.

    Settings that a request cannot have end it as SGLang ends other invalid requests (the tokenizer process has refused it with
    the same words before, unless it came another way).
    """
    engine = active.manager().engine
    if (wrong := engine.settle(req)) is not None:
        req.set_finish_with_abort(wrong)
    telemetry.attach_summary(req)
    real = scheduler.max_total_num_tokens, scheduler.max_req_len
    if engine.config_of(req) is not None and not engine.fits(req, len(req.origin_input_ids), 1 << 30):
        req.zipage_config = None  # it ends before its first compression, or there is no room for the slots that one copies to
    if engine.config_of(req) is None:
        # Pages are rounded up twice after a retraction: it must still fit then.
        scheduler.max_total_num_tokens -= 3 * scheduler.page_size
    else:
        scheduler.max_total_num_tokens = 1 << 40
        scheduler.max_req_len = scheduler.model_config.context_len - 1
    try:
        return original(scheduler, req)
    finally:
        scheduler.max_total_num_tokens, scheduler.max_req_len = real
