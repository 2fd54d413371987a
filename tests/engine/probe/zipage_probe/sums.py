"""Softmax sums of decode queries: from an attention that does not give any, as FlashInfer's would, and looked at where one does."""

import contextlib
import json
import math
import os

import torch


def given():
    from zipage_patches import active, log_sums

    @contextlib.contextmanager
    def kept(backend, q, layer, forward_batch, out):
        yield
        table = active.manager().engine.row_pool.req_to_token
        keys = active.runtime.buffers.k_buffers[layer.layer_id]
        for i, (row, kv_len) in enumerate(zip(forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist())):
            out[i] = found(q[i], keys[table[row, :kv_len].long()], layer.scaling)

    log_sums.kept, log_sums.given_by = kept, lambda server_args, layers: True


def found(query, keys, scale):
    """query: [Hq, D] or [Hq * D].  keys: [T, H, D].  log2 of the softmax sums of their products, [Hq]."""
    queries = query.view(keys.shape[1], -1, keys.shape[2]).float()
    return (torch.einsum("hgd,thd->hgt", queries, keys.float()) * scale).logsumexp(dim=-1).flatten() / math.log(2)


def looked_at(out):
    """sums.jsonl: for each job that scores, the largest difference between the sums that its queries have and those of its row,
    over all layers, heads and queries of the window."""
    from zipage_sglang.compressor import Compressor

    enqueue = Compressor._enqueue

    def looking(compressor, jobs, snapshot, scoring):
        b = compressor.buffers
        for job in jobs:
            if job.row < 0 or b.log_sums is None:  # warm-up
                continue
            row = compressor.row_table[job.row, : job.kv_len].long()
            difference = 0.0
            for token, place in enumerate(job.query_rows):
                seen = row[: job.kv_len - len(job.query_rows) + token + 1]
                for layer, keys in enumerate(b.k_buffers):
                    right = found(b.query_cache[layer, place], keys[seen], b.scale)
                    difference = max(difference, (right - b.log_sums[layer, place]).abs().max().item())
            with open(os.path.join(out, "sums.jsonl"), "a") as f:
                f.write(json.dumps({"kv_len": job.kv_len, "scoring": scoring, "difference": difference}) + "\n")
        return enqueue(compressor, jobs, snapshot, scoring)

    Compressor._enqueue = looking
