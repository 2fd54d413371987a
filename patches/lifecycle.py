"""A request's ends: its row is freed (finish, abort, retraction), and who is retracted first."""

from __future__ import annotations

from zipage_patches import active, telemetry


def row_free(row_pool, req):
    """BEFORE ReqToTokenPool.free: give the query slot back."""
    manager = active.manager()
    if manager is not None:
        if active.metrics is not None and req.finished():
            active.metrics.ended(**telemetry.outcome(req))
        manager.release(req)


def reset_for_retract(result, req):
    """AFTER Req.reset_for_retract: the recomputed row will be exact again, so forget the compressed one."""
    state = req.__dict__.pop("zipage", None)
    if state is None:
        return
    if state.compressed:
        req.skip_radix_cache_insert = state.skip_insert
    manager = active.manager()
    if manager is not None:
        manager.stats.retractions += 1
        manager.stats.retracted_compressed += state.compressed


def retraction_order(order, reqs, *args):
    """AFTER ScheduleBatch._get_decode_retraction_order: from most to least worth keeping.

    A compressed request costs its whole true length to recompute and may not even fit the pool then, so it is kept before
    every uncompressed one; SGLang's own order decides among equals.
    """
    manager = active.manager()
    if manager is None:
        return None

    def rank(index):
        req = reqs[index]
        state = manager.engine.state(req)
        return 0 if not manager.engine.refits(req) else 1 if state is not None and state.compressed else 2

    return sorted(order, key=rank)


def retract_decode(original, batch, *args):
    """AROUND ScheduleBatch.retract_decode: a retraction that memory does not ask for must not cost anybody the request.

    SGLang's test lever retracts although pages are free; when no victim could ever be prefilled again, nobody goes.
    """
    manager = active.manager()
    if manager is not None and batch.check_decode_mem() and not any(manager.engine.refits(r) for r in batch.reqs):
        return [], manager.engine.scheduler.new_token_ratio_tracker.current, []
    return original(batch, *args)


def refuse_beams(original, coordinator, req, recv_req):
    """AROUND BeamCoordinator.validate_and_init: the error that a beam request is answered with."""
    return ("--enable-zipage does not support beam_width: the rows of a beam group share slots, which a compression would move "
            "under the other rows. Send n samples instead, or serve without --enable-zipage.")
