"""A test-only SGLang plugin, loaded in the scheduler process beside the real one: records what happened there, and breaks
the package on purpose (ZIPAGE_MUTATION) so that tests can show that they notice."""

import json
import os

import torch


def register():
    if out := os.environ.get("ZIPAGE_PROBE_DIR"):
        record(out)
    if chunks := os.environ.get("ZIPAGE_ABORT_CHUNKS"):
        abort_chunks(json.loads(chunks))
    if count := os.environ.get("ZIPAGE_ABORT_PARKED"):
        abort_parked(int(count))
    if os.environ.get("ZIPAGE_ABORT_WAITING"):
        abort_waiting()
    if spec := os.environ.get("ZIPAGE_FAIL"):
        failing_compressions(json.loads(spec))
    if os.environ.get("ZIPAGE_LAG"):
        lagging_stream()
        lagging_compressions()
        latest_pages_first()
    if ms := os.environ.get("ZIPAGE_BUSY"):
        slow_compressions(float(ms))
    if os.environ.get("ZIPAGE_UNCHECKED"):
        unchecked()
    if os.environ.get("ZIPAGE_UNPINNED") and not torch.cuda.is_available():
        unpinned()
    if name := os.environ.get("ZIPAGE_MUTATION"):
        MUTATIONS[name]()


def record(out):
    """kept.jsonl: one line per compression with the sorted positions that each layer and KV head kept, read back from the
    tables through the request's row; events.jsonl: retractions and how long the output was."""
    from zipage_patches import lifecycle
    from zipage_sglang.manager import Manager

    after, reset = Manager._after, lifecycle.reset_for_retract

    def recording_after(manager, item):
        row = manager.engine.row_pool.req_to_token[manager.engine.row(item.req), item.state.start : item.plan.kept].long()
        kept = manager.runtime.buffers.positions[:, row].transpose(1, 2).sort(dim=-1).values
        line = {"rid": item.req.rid, "n": item.state.count, "true_len": item.plan.kv_len + item.state.evicted,
                "kept": kept.tolist(),
                "copied": item.plan.new_slots}
        slot = after(manager, item)
        with open(os.path.join(out, "kept.jsonl"), "a") as f:
            f.write(json.dumps(line) + "\n")
        return slot

    def recording_reset(result, req):
        with open(os.path.join(out, "events.jsonl"), "a") as f:
            f.write(json.dumps({"rid": req.rid, "event": "retract", "outputs": len(req.output_ids)}) + "\n")
        return reset(result, req)

    Manager._after, lifecycle.reset_for_retract = recording_after, recording_reset


def abort_chunks(chunks):
    """chunks: {rid: n}.  A request to abort `rid` arrives while it is the one being prefilled in chunks, n chunks done or under
    way."""
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.scheduler import Scheduler

    process, seen = Scheduler.process_input_requests, {}

    def processing(scheduler, recv_reqs):
        if (req := scheduler.chunked_req) is not None:
            seen[req.rid] = seen.get(req.rid, 0) + 1
            if seen[req.rid] == chunks.get(req.rid):
                recv_reqs = [*recv_reqs, AbortReq(rid=req.rid)]
        return process(scheduler, recv_reqs)

    Scheduler.process_input_requests = processing


def abort_parked(count):
    """Requests to abort arrive for `count` requests, one after the other, each while it is parked."""
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.scheduler import Scheduler
    from zipage_patches import parking

    process, gone = Scheduler.process_input_requests, set()

    def processing(scheduler, recv_reqs):
        rids = [req.rid for req in parking.parked() if req.rid not in gone]
        if rids and len(gone) < count:
            gone.add(rids[-1])
            recv_reqs = [*recv_reqs, AbortReq(rid=rids[-1])]
        return process(scheduler, recv_reqs)

    Scheduler.process_input_requests = processing


def abort_waiting():
    """Requests to abort arrive for all that wait while pages are held by a compression beside the decode steps."""
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.scheduler import Scheduler
    from zipage_patches import active

    process = Scheduler.process_input_requests

    def processing(scheduler, recv_reqs):
        if active.manager().flights.aloft:
            recv_reqs = [*recv_reqs, *(AbortReq(rid=req.rid) for req in scheduler.waiting_queue)]
        return process(scheduler, recv_reqs)

    Scheduler.process_input_requests = processing


def failing_compressions(spec):
    """spec: {"calls": [n, ...], "rids": [rid, ...]}.  Compressions (counted over all requests) and requests that raise."""
    from zipage_sglang.compressor import Compressor
    from zipage_sglang.manager import Manager

    run, job, count, reqs = Compressor.run, Manager._job, [0], []

    def remembering(manager, item):
        reqs.append(item.req.rid)
        return job(manager, item)

    def failing(compressor, jobs, rows=None):
        rids = [reqs.pop() for _ in range(min(len(jobs), len(reqs)))]
        count[0] += bool(rids)
        if rids and (count[0] in spec["calls"] or set(rids) & set(spec["rids"])):
            run(compressor, jobs, rows)  # the worst case: tokens have been moved already
            raise RuntimeError("a kernel that does not launch")
        return run(compressor, jobs, rows)

    Compressor.run, Manager._job = failing, remembering


def lagging_stream():
    """The forward stream as a GPU that is behind has it: what is enqueued there happens when the next step runs, not at once.

    The scheduler's invariants are checked at every step except where something is still waiting, those of the forward pass always.
    """
    from zipage_patches import forward
    from zipage_sglang.compressor import Compressor
    from zipage_sglang.invariants import InvariantChecker
    from zipage_sglang.runtime import Runtime

    waiting, init_new, check = [], forward.init_new, InvariantChecker.scheduler

    def checking(checker, *args):
        if not waiting:
            check(checker, *args)

    def later(method):
        return lambda *args: waiting.append((method, args))

    def running(*args, **kwargs):
        while waiting:
            method, enqueued = waiting.pop(0)
            method(*enqueued)
        return init_new(*args, **kwargs)

    Compressor.run, Runtime.copy_slots, forward.init_new = later(Compressor.run), later(Runtime.copy_slots), running
    InvariantChecker.scheduler = checking


def lagging_compressions():
    """The stream of compressions (--zipage-async-steps) as late as it may be: they happen when the forward stream has waited for
    them.  Until then nothing of their rows may be free, or be written by a step.  Without such a stream they lag as above."""
    from zipage_patches import active, forward
    from zipage_patches.engine import SGLangEngine
    from zipage_sglang.compressor import Compressor

    enqueue, init_new, beside, awaited = Compressor.run, forward.init_new, [], []

    def run(*args):
        beside.append(args) if active.config.async_steps else enqueue(*args)

    def mark(engine):
        return len(beside)

    def wait_for(engine, mark):
        while len(awaited) < mark:
            awaited.append(beside[len(awaited)])
            enqueue(*awaited[-1])

    def stepping(forward_batch, cls, batch, *args, **kwargs):
        for _, _, *snapshot in beside[len(awaited):]:
            held = {slot for rows in snapshot for some in rows for job, row in zip(some.jobs, some.table)
                    for slot in row[job.start : job.kv_len].tolist()}
            taken = held & {*active.manager().engine.allocator.free_pages.tolist(), *batch.out_cache_loc.tolist()}
            assert not taken, f"slots of a row that is still to be compressed were given out: {sorted(taken)[:5]}"
        return init_new(forward_batch, cls, batch, *args, **kwargs)

    Compressor.run, SGLangEngine.mark, SGLangEngine.wait_for, forward.init_new = run, mark, wait_for, stepping


def slow_compressions(ms):
    """A GPU on which a step's compressions take that much longer."""
    from zipage_sglang.compressor import Compressor

    run = Compressor.run

    def running(compressor, *args):
        run(compressor, *args)
        torch.cuda._sleep(int(ms * 1.7e6))  # cycles

    Compressor.run = running


def latest_pages_first():
    """What was freed last is given out first, so that nothing is free for long before somebody writes there."""
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    free = TokenToKVPoolAllocator.free

    def freeing(allocator, free_index):
        before = len(allocator.free_pages)
        free(allocator, free_index)
        allocator.free_pages = allocator.free_pages.roll(len(allocator.free_pages) - before)

    TokenToKVPoolAllocator.free = freeing


def unchecked():
    """Requests with `unchecked` in their custom_params reach the scheduler whatever their settings are."""
    from zipage_patches import tokenizer

    check = tokenizer.per_request.request_config

    class Lenient:
        request_config = staticmethod(lambda params, *rest: None if params.get("unchecked") else check(params, *rest))

    tokenizer.per_request = Lenient


def unpinned():
    """Every LoRA backend of SGLang pins host memory, which torch cannot do without a GPU; plain memory does as well there."""
    torch.Tensor.pin_memory = lambda tensor, device=None: tensor
    for name in ("tensor", "zeros", "empty"):
        def make(*args, _make=getattr(torch, name), pin_memory=False, **kwargs):
            return _make(*args, **kwargs)
        setattr(torch, name, make)


def skip_compaction():
    """The kept tokens are chosen, but not moved."""
    from zipage_kernels import ops

    ops.compact = lambda *args, **kwargs: None


def position_off_by_one():
    """Positions shift by one as soon as a request has been compressed."""
    from zipage_patches import active, forward

    original = forward.init_new

    def shifted(forward_batch, cls, batch, model_runner, **kwargs):
        if batch.forward_mode.is_decode() and active.manager() is not None:
            states = [active.manager().engine.state(r) for r in batch.reqs]
            batch.orig_seq_lens = batch.orig_seq_lens + torch.tensor(
                [int(s is not None and s.count == 1) for s in states], dtype=batch.orig_seq_lens.dtype
            )
        return original(forward_batch, cls, batch, model_runner, **kwargs)

    forward.init_new = shifted


def leak_page():
    """Evicted slots are not given back."""
    from zipage_patches.engine import SGLangEngine

    SGLangEngine.free = lambda engine, remains: None


def stale_seq_lens_cpu():
    """Only the device copy of the batch's lengths is shortened."""
    from zipage_patches.engine import SGLangEngine

    publish = SGLangEngine.publish

    def stale(engine, batch, work):
        before = batch.seq_lens_cpu
        remains = publish(engine, batch, work)
        batch.seq_lens_cpu = before
        return remains

    SGLangEngine.publish = stale


def write_into_tree():
    """The copy-out of tree-owned slots is skipped, so the compaction writes what the prefix tree owns."""
    from zipage_patches.compat import kv
    from zipage_patches.engine import SGLangEngine
    from zipage_sglang.plan import floor_page

    SGLangEngine.protected_len = lambda engine, req: min(
        kv.protected(req), floor_page(len(req.origin_input_ids), engine.page_size)
    )


def forget_query_slot():
    """A finished request keeps its query slot."""
    from zipage_patches import lifecycle

    lifecycle.row_free = lambda row_pool, req: None


def insert_compressed_rows():
    """A compressed row enters the prefix tree under its token ids."""
    from zipage_patches.engine import SGLangEngine

    publish = SGLangEngine.publish

    def inserting(engine, batch, work):
        remains = publish(engine, batch, work)
        for item in work:
            item.req.skip_radix_cache_insert = False
        return remains

    SGLangEngine.publish = inserting


def compress_regardless():
    """A request's wish not to be compressed is forgotten."""
    from zipage_patches.engine import SGLangEngine

    SGLangEngine.config_of = lambda engine, req: req.zipage_config or engine.config


def one_configuration():
    """What is due in one step is compressed in one launch, with the configuration of the first."""
    from zipage_sglang.compressor import Compressor

    Compressor._groups = lambda compressor, jobs: [[job._replace(config=jobs[0].config) for job in jobs]]


def late_rows():
    """Rows are read when their compression begins, not when it is planned."""
    from zipage_sglang.compressor import Compressor

    run = Compressor.run
    Compressor.run = lambda compressor, jobs, rows=None: run(compressor, jobs)


def uncounted_tokens():
    """Penalties miss the token before the step that was in flight when a request was parked, and count that step's twice."""
    from zipage_patches import parking

    parking._count_one_behind = lambda batch, late: None


def pages_at_once():
    """Pages are given back when a compression beside the decode steps is launched, not when it is over."""
    from zipage_sglang.flight import Flights

    launch = Flights.launch

    def launching(flights, lands, remains, query_slots):
        flights.engine.free(remains)
        return launch(flights, lands, type(remains)([], []), query_slots)

    Flights.launch = launching


def unlock_at_once():
    """The prefix tree may evict what a compression beside the decode steps still reads."""
    from zipage_sglang.flight import Flights

    launch = Flights.launch

    def launching(flights, lands, remains, query_slots):
        flights.engine.free(remains._replace(segments=[]))
        return launch(flights, lands, remains._replace(locks=[]), query_slots)

    Flights.launch = launching


def no_wait():
    """A row that is freed while it is compressed is not waited for."""
    from zipage_sglang.manager import Manager

    release = Manager.release

    def releasing(manager, req):
        if (state := manager.engine.state(req)) is not None:
            state.flight = None
        release(manager, req)

    Manager.release = releasing


def early_plans():
    """Attention is planned without waiting for the plan before it."""
    from zipage_patches import forward

    forward.load_batch = lambda original, runner, *args, **kwargs: original(runner, *args, **kwargs)


def ignore_pressure():
    """Rows beyond their trigger are never compressed, whoever waits."""
    from zipage_sglang.manager import Manager

    Manager._needed = lambda manager, batch: []


MUTATIONS = {f.__name__: f for f in (skip_compaction, position_off_by_one, leak_page, stale_seq_lens_cpu, write_into_tree,
                                     forget_query_slot, insert_compressed_rows, ignore_pressure, compress_regardless, one_configuration,
                                     uncounted_tokens, late_rows, pages_at_once, no_wait, unlock_at_once, early_plans)}
