"""Lets stock SGLang run on a plain CPU (development, tests, the demo): a rotary kernel and the paged allocators in torch."""

from __future__ import annotations

import sys
import types

import torch


def rotary_embedding(positions, query, key, head_size, cos_sin_cache, is_neox):
    """Rotates query and key in place.  positions int [T]; query, key [T, heads * head_size]; cos_sin_cache
    [max_position, rotary_dim], cosines first.  Only the NeoX (half-split) layout over the whole head is implemented."""
    rotary_dim = cos_sin_cache.shape[-1]
    if not is_neox or rotary_dim != head_size:
        raise NotImplementedError("CPU runs support NeoX rotary embeddings over the whole head only; use a GPU")
    cos, sin = cos_sin_cache.index_select(0, positions.flatten()).chunk(2, dim=-1)
    for tensor in (query, key):
        x = tensor.view(positions.numel(), -1, head_size)
        c, s = (t.unsqueeze(1).to(x.dtype) for t in (cos, sin))
        first, second = x.chunk(2, dim=-1)
        x.copy_(torch.cat((first * c - second * s, second * c + first * s), dim=-1))


def rotary_init(self, *args, **kwargs):
    """BEFORE RotaryEmbedding.__init__: without CUDA it imports vLLM's kernel, so offer one under that name."""
    if torch.cuda.is_available() or "vllm._custom_ops" in sys.modules:
        return None
    ops = types.ModuleType("vllm._custom_ops")
    vars(ops)["rotary_embedding"] = rotary_embedding
    parent = sys.modules.setdefault("vllm", types.ModuleType("vllm"))
    vars(parent)["_custom_ops"] = sys.modules["vllm._custom_ops"] = ops
    return None


def alloc_extend(self, prefix_lens, prefix_lens_cpu, seq_lens, seq_lens_cpu, last_loc, extend_num_tokens,
                 num_new_pages=None):
    """REPLACE PagedTokenToKVPoolAllocator.alloc_extend: the last page of each row is filled first, then new pages."""
    page, out, used = self.page_size, [], 0
    for prefix, end, last in zip(prefix_lens_cpu.tolist(), seq_lens_cpu.tolist(), last_loc.tolist()):
        head = min(end - prefix, -prefix % page)
        rest = end - prefix - head
        pages = self.free_pages[used : used + -(-rest // page)]
        used += -(-rest // page)
        if used > len(self.free_pages):
            return None
        out.append(torch.arange(last + 1, last + 1 + head))
        out.append((pages[:, None] * page + torch.arange(page)).flatten()[:rest])
    self.free_pages = self.free_pages[used:]
    return torch.cat(out).to(torch.int64)


def alloc_decode(self, seq_lens, seq_lens_cpu, last_loc):
    """REPLACE PagedTokenToKVPoolAllocator.alloc_decode: a new page where the row ends on a page boundary."""
    page = self.page_size
    assert torch.all((last_loc + 2) % page == seq_lens % page), "a row's slots lost their place in the page"
    fresh = (seq_lens_cpu - 1) % page == 0
    count = int(fresh.sum())
    if count > len(self.free_pages):
        return None
    out = (last_loc + 1).to(torch.int64)
    out[fresh] = self.free_pages[:count] * page
    self.free_pages = self.free_pages[count:]
    return out
