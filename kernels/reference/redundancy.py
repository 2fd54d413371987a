"""Redundancy: how similar each candidate's key is to the other candidates' keys."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from zipage_kernels.batch import CompressionBatch

CHUNK = 256  # columns of the similarity matrix that exist at a time


def _similarity_sums(keys: torch.Tensor, positions: torch.Tensor, threshold: float) -> torch.Tensor:
    """R_m = sum_n S[m, n] over the off-diagonal cosine similarities that are left after the protection of the latest.

    In each column n, the entry of the latest row m (by position) with S[m, n] > threshold is zeroed: of a group of
    similar tokens the most recent one does not count as redundant.
    keys: fp32 [n, H, D], unit length.  positions: int32 [H, n].  Returns fp32 [H, n].
    """
    sums = torch.zeros(positions.shape, dtype=torch.float32, device=keys.device)
    for first in range(0, len(keys), CHUNK):
        similarity = torch.einsum("mhd,nhd->hmn", keys, keys[first : first + CHUNK])
        similarity[:, first:].diagonal(dim1=1, dim2=2).zero_()
        similar = similarity > threshold
        latest = torch.where(similar, positions[:, :, None], -1).argmax(dim=1, keepdim=True)  # [H, 1, columns]
        protected = torch.zeros_like(similar).scatter_(1, latest, True) & similar
        sums += similarity.masked_fill_(protected, 0.0).sum(dim=2)
    return sums


def redundancy(
    k_buffers: list[torch.Tensor],
    batch: CompressionBatch,
    positions: torch.Tensor,
    block: int,
    tau: float,
    mode: str,
    threshold: float = 0.5,
) -> torch.Tensor:
    """R of arXiv 2603.08743: softmax over a request's candidates of their summed key similarities.

    mode "flash" compares all pairs of candidates and divides by tau * (number of candidates); "lightning" compares pairs
    inside the same block of consecutive candidate rows and divides by tau * block, the short last block included.
    Keys are post-RoPE; a key of length 0 is similar to nothing.

    k_buffers: L tensors [S, H, D].  positions: int32 [R, L, H, C].  Returns fp32 [R, L, H, C], padding 0 (it takes no
    share of the softmax).  Raises ValueError for an unknown mode.
    """
    if mode not in ("lightning", "flash"):
        raise ValueError(f"redundancy mode must be 'lightning' or 'flash', got {mode!r}")
    out = torch.zeros(positions.shape, dtype=torch.float32, device=positions.device)
    for r, n in enumerate(batch.num_candidates):
        compared = block if mode == "lightning" else n
        slots = batch.candidate_slots(r)
        for layer, k_buffer in enumerate(k_buffers):
            keys = F.normalize(k_buffer[slots].float(), dim=-1)
            sums = [
                _similarity_sums(keys[i : i + compared], positions[r, layer, :, i : min(i + compared, n)], threshold)
                for i in range(0, n, compared)
            ]
            out[r, layer, :, :n] = (torch.cat(sums, dim=-1) / (tau * compared)).softmax(dim=-1)
    return out
