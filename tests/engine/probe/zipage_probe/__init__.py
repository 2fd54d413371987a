"""A test-only SGLang plugin, loaded in the scheduler process beside the real one: records what happened there, and does what the
environment asks for (events, streams, sums, mutations), so that tests can show that they notice."""

import json
import os

import torch
from zipage_probe import events, mutations, streams, sums


def register():
    if out := os.environ.get("ZIPAGE_PROBE_DIR"):
        record(out)
    if group := os.environ.get("ZIPAGE_GROUP"):
        events.small_groups(int(group), out)
    if chunks := os.environ.get("ZIPAGE_ABORT_CHUNKS"):
        events.abort_chunks(json.loads(chunks))
    if count := os.environ.get("ZIPAGE_ABORT_PARKED"):
        events.abort_parked(int(count), os.environ.get("ZIPAGE_ABORT_PREFIX", ""))
    if os.environ.get("ZIPAGE_ABORT_WAITING"):
        events.abort_waiting()
    if spec := os.environ.get("ZIPAGE_FAIL"):
        events.failing_compressions(json.loads(spec))
    if os.environ.get("ZIPAGE_LAG"):
        streams.lagging_stream()
        streams.lagging_compressions()
        streams.latest_pages_first()
    if ms := os.environ.get("ZIPAGE_BUSY"):
        streams.slow_compressions(float(ms))
    if spec := os.environ.get("ZIPAGE_DELAY"):
        streams.delayed_compressions(**json.loads(spec))
    if os.environ.get("ZIPAGE_SUMS"):
        sums.given()
    if os.environ.get("ZIPAGE_LOOK_AT_SUMS"):
        sums.looked_at(out)
    if os.environ.get("ZIPAGE_UNCHECKED"):
        events.unchecked()
    if os.environ.get("ZIPAGE_UNPINNED") and not torch.cuda.is_available():
        events.unpinned()
    if name := os.environ.get("ZIPAGE_MUTATION"):
        mutations.MUTATIONS[name]()


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
