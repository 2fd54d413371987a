"""Devices that are behind or slow, so that what must wait for something is seen to wait."""

import torch


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

    Compressor._enqueue, Runtime.copy_slots, forward.init_new = later(Compressor._enqueue), later(Runtime.copy_slots), running
    InvariantChecker.scheduler = checking


def lagging_compressions():
    """The stream of compressions (--zipage-async-steps) as late as it may be: they happen when the forward stream has waited for
    them.  Until then nothing of their rows may be free, or be written by a step.  Without such a stream they lag as above."""
    from zipage_patches import active, forward
    from zipage_patches.engine import SGLangEngine
    from zipage_sglang.compressor import Compressor

    enqueue, init_new, beside, awaited = Compressor._enqueue, forward.init_new, [], []

    def run(*args):
        beside.append(args) if active.config.async_steps else enqueue(*args)

    def mark(engine):
        return len(beside)

    def wait_for(engine, mark):
        while len(awaited) < mark:
            awaited.append(beside[len(awaited)])
            enqueue(*awaited[-1])

    def stepping(forward_batch, cls, batch, *args, **kwargs):
        for _, _, snapshot, _ in beside[len(awaited):]:
            held = {slot for some in snapshot or () for job, row in zip(some.jobs, some.table)
                    for slot in row[job.start : job.kv_len].tolist()}
            taken = held & {*active.manager().engine.allocator.free_pages.tolist(), *batch.out_cache_loc.tolist()}
            assert not taken, f"slots of a row that is still to be compressed were given out: {sorted(taken)[:5]}"
        return init_new(forward_batch, cls, batch, *args, **kwargs)

    Compressor._enqueue, SGLangEngine.mark, SGLangEngine.wait_for, forward.init_new = run, mark, wait_for, stepping


def slow_compressions(ms):
    """A GPU on which a step's compressions take that much longer."""
    from zipage_sglang.compressor import Compressor

    enqueue = Compressor._enqueue

    def enqueuing(compressor, *args):
        enqueue(compressor, *args)
        torch.cuda._sleep(int(ms * 1.7e6))  # cycles

    Compressor._enqueue = enqueuing


def delayed_compressions(prefixes, launches, ms):
    """A GPU on which the first `launches` compressions of requests whose ids begin with one of `prefixes` (each counted by itself)
    hang for so long before their first kernel, beside the decode steps.  Pages that were freed last are given out first."""
    from zipage_sglang.compressor import Compressor
    from zipage_sglang.manager import Manager

    enqueue, job, left, rids = Compressor._enqueue, Manager._job, dict.fromkeys(prefixes, launches), []

    def remembering(manager, req, *args):
        rids.append(req.rid)
        return job(manager, req, *args)

    def enqueuing(compressor, *args):
        prefix = next((p for p in prefixes if left[p] and any(rid.startswith(p) for rid in rids)), None)
        rids.clear()
        if prefix is not None:
            left[prefix] -= 1
            torch.cuda._sleep(int(ms * 1.7e6))  # cycles
        enqueue(compressor, *args)

    Compressor._enqueue, Manager._job = enqueuing, remembering
    latest_pages_first()


def latest_pages_first():
    """What was freed last is given out first, so that nothing is free for long before somebody writes there."""
    from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator

    free = TokenToKVPoolAllocator.free

    def freeing(allocator, free_index):
        before = len(allocator.free_pages)
        free(allocator, free_index)
        allocator.free_pages = allocator.free_pages.roll(len(allocator.free_pages) - before)

    TokenToKVPoolAllocator.free = freeing
