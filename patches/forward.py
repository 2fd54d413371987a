"""Forward pass: true positions for rows that hold fewer tokens, the query store, and attention plans that wait for their turn."""

from __future__ import annotations

import contextlib

import torch

from zipage_patches import active, log_sums


def init_new(forward_batch, cls, batch, model_runner, **kwargs):
    """AFTER ForwardBatch.init_new, on the forward stream.

    SGLang derives decode positions from seq_lens, which is kv_len here.  orig_seq_lens keeps counting true tokens through
    every filter, merge and decode step, so position = orig_seq_lens - 1 needs no bookkeeping of ours.  Without a compressed
    row the two agree.
    """
    manager = active.manager()
    if manager is None or not batch.forward_mode.is_decode():
        return None
    if manager.compressed:
        forward_batch.positions = (batch.orig_seq_lens - 1).to(torch.int64)
    manager.route_queries(batch.reqs)
    if active.checker is not None:
        active.checker.forward(forward_batch, batch)
    return None


def attention_forward(original, backend, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
    """AROUND AttentionBackend.forward: keep the queries of the decode steps before a compression.

    Every backend and every route (eager, captured decode graph) passes here with post-RoPE queries.  While a graph is
    captured the store is always recorded, so that a replay only needs new destination rows; it runs beside the attention,
    which would only wait for it.  What the attention found of the queries is stored after the last layer, of all at once.
    """
    runtime = active.runtime
    if runtime is None or not forward_batch.forward_mode.is_decode():
        return original(backend, q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
    index = layer.layer_id - runtime.buffers.first_layer
    if not runtime.capturing():
        if not runtime.active:
            return original(backend, q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
        runtime.store_query(index, q)
        with _sums_kept(runtime, backend, q, layer, forward_batch):
            return original(backend, q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
    main, side = torch.cuda.current_stream(), runtime.side_stream
    assert side is not None  # graphs are captured on CUDA only
    side.wait_stream(main)
    with torch.cuda.stream(side):
        runtime.store_query(index, q)
    with _sums_kept(runtime, backend, q, layer, forward_batch):
        out = original(backend, q, k, v, layer, forward_batch, save_kv_cache, **kwargs)
    main.wait_stream(side)  # q's memory is free for others from here on
    return out


@contextlib.contextmanager
def _sums_kept(runtime, backend, q, layer, forward_batch):
    """Around one layer's attention (`log_sums.kept`), where it gives sums at all."""
    if runtime.buffers.log_sums is None:
        yield
        return
    index = layer.layer_id - runtime.buffers.first_layer
    with log_sums.kept(backend, q, layer, forward_batch, runtime.step_log_sums[index, : len(q)]):
        yield
    if index == len(runtime.step_log_sums) - 1:
        runtime.store_log_sums(len(q))


def load_batch(original, runner, forward_batch, pp_proxy_tensors=None):
    """AROUND DecodeCudaGraphRunner.load_batch: plan a step's attention only when the plan before it has left the host.

    FlashInfer writes each plan of a captured batch size into one pinned buffer and copies it on the forward stream.  SGLang knows
    by then that the step before the last is done, and with nothing between two steps its successor's copy is, too.  A
    compression between them, or one that a step waits for, may keep that copy waiting: the next plan would overtake it, and the
    step would run with the tiles of other rows.
    """
    if active.manager() is None:  # while graphs are captured, nothing else runs
        return original(runner, forward_batch, pp_proxy_tensors)
    if active.planned is not None:
        active.planned.synchronize()
    result = original(runner, forward_batch, pp_proxy_tensors)
    active.planned = torch.cuda.current_stream().record_event()
    return result
