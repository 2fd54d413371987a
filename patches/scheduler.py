"""Scheduler: built with a manager beside it, stepped before every admission pass, and reporting what it did."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from sglang.srt.managers.io_struct import AbortReq
from zipage_patches import active, grouping, install, refusals
from zipage_patches.compat import arguments, batches, ranks
from zipage_patches.engine import SGLangEngine
from zipage_patches.telemetry import Metrics
from zipage_sglang import invariants
from zipage_sglang.manager import Manager
from zipage_sglang.sizing.memory import what_fits
from zipage_sglang.trace.recorder import Recorder

logger = logging.getLogger("zipage")
MOST_FAILURES = 3  # of one request's compressions, after which it is not tried again


def scheduler_init(original, scheduler, server_args, *args, **kwargs):
    """AROUND Scheduler.__init__: install the run-time hooks first (graphs are captured inside), then the manager."""
    if not getattr(server_args, "enable_zipage", False):
        return original(scheduler, server_args, *args, **kwargs)
    active.config = server_args.zipage_config()
    install.install_runtime_hooks()
    original(scheduler, server_args, *args, **kwargs)
    refusals.check_scheduler(scheduler)
    engine = SGLangEngine(scheduler, active.config)
    assert active.runtime is not None
    manager = Manager(active.config, active.compressor, active.runtime, engine)
    active.set_manager(manager)
    active.checker = invariants.from_environment(manager)
    if scheduler.metrics_collector is not None:
        active.metrics = Metrics(manager, scheduler.metrics_collector.labels)
    if server_args.zipage_trace:
        folder, rows = Path(server_args.zipage_trace), engine.row_pool.req_to_token
        model = arguments.resolved(server_args).served_model_name
        active.recorder = Recorder(folder, active.config, active.runtime.buffers, rows, model,
                                   ranks.tensor_parallel(scheduler).tp_rank)
    _say_what_fits(scheduler)
    return None


def _say_what_fits(scheduler):
    config, pool, context = active.config, scheduler.max_total_num_tokens, scheduler.model_config.context_len
    fits = what_fits(config, pool, scheduler.page_size, context)
    assert active.runtime is not None
    buffers = active.runtime.buffers
    kv_bytes = sum(t.numel() * t.element_size() for t in (*buffers.k_buffers, *buffers.v_buffers))
    ours = active.runtime.nbytes + active.workspace_bytes
    windows = f"{config.windows} windows" if config.windows > 1 else "one window"
    logger.info(
        "zipage on: budget %d, block %d, policy %s, %s of %d queries; a request holds at most its prompt and %d private tokens: "
        "about %d fit the pool of %d tokens at any length, without compression %d that grow to the context length of %d; tables, "
        "query slots and workspace take %.1f MiB, %.1f %% of the KV pool's memory",
        config.budget, config.block, config.policy, windows, config.window, fits.bound, fits.bounded, pool, fits.unbounded,
        context, ours / 2**20, 100 * ours / kv_bytes,
    )
    if config.policy == "zipage" and config.passes == 0 and config.windows == 1 and config.window < config.block:
        logger.warning("zipage: --zipage-async-steps and --zipage-when pressure let one window of queries score instead of all, "
                       "which costs accuracy (docs/tuning.md); --zipage-passes 1 says that this is meant")


def get_new_batch_prefill(original, scheduler, running_batch):
    """AROUND Scheduler.get_new_batch_prefill: compress first, so that this very pass admits into the freed pages."""
    manager = active.manager()
    _step(scheduler, manager, running_batch)
    try:
        return grouping.admit(original, scheduler, running_batch)
    finally:
        manager.engine.requeue()


def should_defer_prefill(deferred, scheduler, running_batch):
    """AFTER Scheduler._should_defer_prefill (0.5.23): a pass that only decodes does not ask for a prefill batch."""
    if deferred:
        manager = active.manager()
        _step(scheduler, manager, running_batch)
        manager.engine.requeue()


def _step(scheduler, manager, running_batch):
    checker = active.checker
    if checker is not None:
        checker.scheduler(scheduler, running_batch)
    manager.step(running_batch)
    if active.metrics is not None:
        active.metrics.update(idle=not running_batch.reqs and not manager.parked)
    if checker is not None:
        checker.scheduler(scheduler, running_batch)
    if manager.stats.retractions:
        _abort_unschedulable(scheduler, manager)


def _abort_unschedulable(scheduler, manager):
    """A retracted request that the pool cannot hold any more would block the queue for ever, and one whose compression fails
    again and again would never end: end it with a reason."""
    reasons = [(r, _reason(r, manager.engine)) for r in scheduler.waiting_queue if r.is_retracted]
    doomed = [r for r, message in reasons if message]
    for req, message in reasons:
        if not message:
            continue
        # Without a status code: one would end the whole batch of an `Engine.generate` with an exception.
        reason = {"type": "abort", "message": message}
        batches.send_abort(scheduler, AbortReq(finished_reason=reason, rid=req.rid), req)
        logger.warning("request %s aborted: %s", req.rid, message)
    if doomed:
        gone = {id(r) for r in doomed}
        scheduler.waiting_queue = [r for r in scheduler.waiting_queue if id(r) not in gone]


def _reason(req, engine) -> str | None:
    """Why a retracted request can never end well."""
    tokens = len(req.origin_input_ids) + len(req.output_ids)
    if not engine.refits(req):
        return (f"retracted at {tokens} tokens, which the KV pool of {engine.pool_size} tokens cannot hold again; raise "
                "--mem-fraction-static or --max-total-tokens")
    if (failures := getattr(req, "zipage_failures", 0)) >= MOST_FAILURES:
        return f"its compression failed {failures} times, last at {tokens} tokens; the server's log says why"
    return None


def get_internal_state(result, scheduler, recv_req):
    """AFTER Scheduler.get_internal_state: a `zipage` block in /server_info."""
    manager = active.manager()
    if manager is not None:
        result.internal_state["zipage"] = {
            **dataclasses.asdict(manager.stats),
            "nan_scores": int(manager.compressor.nan_scores),
            "gpu_seconds": manager.compressor.seconds,
            "compressed": manager.compressed,
            "held_back": manager.engine.held_back(),
            "parked_now": len(manager.parked),
            "beyond_bound": len(manager.over),
            "concurrency_bound": manager.engine.concurrency_bound(),
            "query_slots": manager.runtime.slots,
            "query_slots_used": manager.slots.used,
            "buffer_bytes": manager.runtime.nbytes,
            "workspace_bytes": active.workspace_bytes,
            "running": len(scheduler.running_batch.reqs),
            "waiting": len(scheduler.waiting_queue),
            "config": dataclasses.asdict(manager.config),
        }
