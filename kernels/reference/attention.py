"""Window attention: how much the last w queries of a request look at each of its keys."""

from __future__ import annotations

import math

import torch

from zipage_kernels.batch import CompressionBatch

LOG2_E = math.log2(math.e)


def store_query(q: torch.Tensor, dst: torch.Tensor, cache_layer: torch.Tensor) -> None:
    """Saves one decode step's post-RoPE queries of one layer: cache_layer[dst] = q.

    q: [B, Hq, D], any dtype.  dst: int64 [B], rows of the cache; those other than 0 are distinct.
    cache_layer: [M*w + 1, Hq, D], written in place.  Row 0 is the trash row that padded and untracked requests name; its
    content is undefined and never read.
    """
    cache_layer[dst] = q.to(cache_layer.dtype)


def store_log_sums(step: torch.Tensor, dst: torch.Tensor, log_sums: torch.Tensor) -> None:
    """Saves what one decode step's attention found of its queries, all layers at once: log_sums[:, dst] = step.

    step: fp32 [L, B, Hq].  dst: as for `store_query`.  log_sums: fp32 [L, M*w + 1, Hq], written in place, row 0 is trash.
    """
    log_sums[:, dst] = step


def attention_score(
    k_buffers: list[torch.Tensor], query_cache: torch.Tensor, batch: CompressionBatch, scale: float,
    log_sums: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """I of arXiv 2603.08743: I_j = mean over the window's queries i of max over the group's heads h of A[h, i, j].

    A[h, i, :] = softmax_j(q_i . k_j * scale) in fp32 over ALL rows of the request (its kept prefix too), causal: query i
    of the window sees no row after its own, and contributes 0 there while the mean still divides by w.

    k_buffers: L tensors [S, H, D].  query_cache: [L, M*w + 1, Hq, D].  log_sums: fp32 [L, M*w + 1, Hq], log2 of each query's
    softmax sum as the attention found it that served its token (over the same rows: they do not change between two
    compressions), or None to find it here.  Returns fp32 [R, L, H, C], padding -inf.
    """
    num_heads, head_dim = k_buffers[0].shape[1:]
    window = batch.window
    scores = torch.full(
        (batch.size, len(k_buffers), num_heads, batch.C), -torch.inf, dtype=torch.float32, device=batch.rows.device
    )
    for r, kv_len in enumerate(batch.kv_lens):
        slots = batch.rows[r, :kv_len]
        row = torch.arange(kv_len, device=slots.device)
        future = row > row[kv_len - window :, None]  # [w, kv_len]
        for layer, k_buffer in enumerate(k_buffers):
            keys = k_buffer[slots].float()
            queries = query_cache[layer, batch.query_rows[r]].float().view(window, num_heads, -1, head_dim)
            logits = torch.einsum("whgd,thd->hgwt", queries, keys) * scale
            logits = logits.masked_fill(future, -torch.inf)
            if log_sums is None:
                weights = logits.softmax(dim=-1)
            else:
                sums = log_sums[layer, batch.query_rows[r]].view(window, num_heads, -1).permute(1, 2, 0)
                weights = torch.exp2(logits * LOG2_E - sums[..., None])
            looked_at = weights.amax(dim=1).mean(dim=1)  # [H, kv_len]
            scores[r, layer, :, : kv_len - batch.starts[r]] = looked_at[:, batch.starts[r] :]
    return scores
