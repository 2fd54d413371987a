"""Moves the survivors to the front of each request's candidate rows."""

from __future__ import annotations

import torch

from zipage_kernels.batch import CompressionBatch, Tables


def compact(
    k_buffers: list[torch.Tensor],
    v_buffers: list[torch.Tensor],
    tables: Tables,
    batch: CompressionBatch,
    keep: torch.Tensor,
    positions: torch.Tensor,
    importance_new: torch.Tensor | None,
) -> None:
    """Fills holes, in place: afterwards rows [c0, c0 + K) hold the kept tokens, with their table entries.

    Attention does not care about slot order (RoPE is in the keys), so survivors that already lie in [c0, c0 + K) stay.
    Per head, the i-th survivor behind them goes to the i-th hole, both in row order.  Sources lie at or after row c0 + K
    and targets before it, so the moves cannot race.

    k_buffers, v_buffers: L tensors [S, H, D], may be strided views.  keep: bool [R, L, H, C] from `select`.
    positions: int32 [R, L, H, C].  importance_new: fp32 [R, L, H, C], rounded to the table's bf16, or None when the
    policy stores none (the table is then left alone).
    """
    for r, (kept, n) in enumerate(zip(batch.keeps, batch.num_candidates)):
        slots = batch.candidate_slots(r)
        for layer, (k_buffer, v_buffer) in enumerate(zip(k_buffers, v_buffers)):
            # nonzero() lists (head, row) sorted, and a head has as many holes as survivors behind them: they pair up.
            head, hole = torch.nonzero(~keep[r, layer, :, :kept], as_tuple=True)
            _, source = torch.nonzero(keep[r, layer, :, kept:n], as_tuple=True)
            source = source + kept
            for buffer in (k_buffer, v_buffer):
                buffer[slots[hole], head] = buffer[slots[source], head]

            def write(table: torch.Tensor, values: torch.Tensor):
                moved = values[:, :kept].clone()
                moved[head, hole] = values[head, source]
                table[slots[:kept]] = moved.T.to(table.dtype)

            write(tables.positions[layer], positions[r, layer])
            if importance_new is not None:
                assert tables.importance is not None
                write(tables.importance[layer], importance_new[r, layer])


def copy_slots(
    k_buffers: list[torch.Tensor],
    v_buffers: list[torch.Tensor],
    tables: Tables,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """Copies whole tokens (K, V, position, importance; all layers and heads) from slots src to slots dst.

    Used before `compact` where it would write slots that the prefix cache owns.  src, dst: int64 [N], disjoint; dst
    distinct.
    """
    for buffer in (*k_buffers, *v_buffers):
        buffer[dst] = buffer[src]
    for table in (tables.positions, tables.importance):
        if table is not None:
            table[:, dst] = table[:, src]
