"""What happens to requests at moments that no client can choose, and what a machine without a GPU lacks."""

import json
import os

import torch


def small_groups(group, out):
    """`group` requests run for each one of a group of admissions: few enough for a CPU; none wait for company while there are requests
    whose ids begin with `single`.  passes.jsonl: one line per admission pass."""
    from zipage_patches import active, admission, grouping
    from zipage_sglang import grouping as rule

    rule.GROUP, admit = group, grouping.admit

    def recording(original, scheduler, running_batch):
        manager = active.manager()
        reqs = [*scheduler.waiting_queue, *running_batch.reqs]
        single = any(r.rid.startswith("single") for r in reqs)
        manager.groups.most = 0 if single else active.config.group_steps
        held, lacks = manager.stats.admissions_held, admission.shortage(manager.engine, running_batch, waiting=True).admission
        line = {"single": single, "waiting": len(scheduler.waiting_queue), "running": sum(not r.finished() for r in running_batch.reqs),
                "fits": lacks is not None and lacks < 0}  # the first that waits, with a slot to spare
        plan = admit(original, scheduler, running_batch)
        line["admitted"] = [r.rid for r in plan.batch_to_run.reqs] if plan.batch_to_run else []
        line["held"] = manager.stats.admissions_held > held
        with open(os.path.join(out, "passes.jsonl"), "a") as f:
            f.write(json.dumps(line) + "\n")
        return plan

    grouping.admit = recording


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


def abort_parked(count, prefix):
    """Requests to abort arrive for `count` requests whose ids begin so, one after the other, each while it is parked."""
    from sglang.srt.managers.io_struct import AbortReq
    from sglang.srt.managers.scheduler import Scheduler
    from zipage_patches import parking

    process, gone = Scheduler.process_input_requests, set()

    def processing(scheduler, recv_reqs):
        rids = [req.rid for req in parking.parked() if req.rid not in gone and req.rid.startswith(prefix)]
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

    enqueue, job, count, reqs = Compressor._enqueue, Manager._job, [0], []

    def remembering(manager, req, *args):
        reqs.append(req.rid)
        return job(manager, req, *args)

    def failing(compressor, jobs, *args):
        rids = [reqs.pop() for _ in range(min(len(jobs), len(reqs)))]
        count[0] += bool(rids)
        if rids and (count[0] in spec["calls"] or set(rids) & set(spec["rids"])):
            enqueue(compressor, jobs, *args)  # the worst case: tokens have been moved already
            raise RuntimeError("a kernel that does not launch")
        return enqueue(compressor, jobs, *args)

    Compressor._enqueue, Manager._job = failing, remembering


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
