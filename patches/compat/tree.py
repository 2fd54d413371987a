"""The prefix tree: RadixCache and ChunkCache in 0.5.17; UnifiedRadixCache, its core in Rust or Python, in 0.5.23."""

from __future__ import annotations

import torch

from sglang.srt.mem_cache.base_prefix_cache import BasePrefixCache, MatchPrefixParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from zipage_patches.compat import kv

_TREE_LOCKS = hasattr(BasePrefixCache, "lock")


def shares_prefixes(tree) -> bool:
    """Whether the tree owns prompts after their prefill (it does not with --disable-radix-cache)."""
    if _TREE_LOCKS:
        return tree.supports_prefix_sharing()
    return not tree.is_chunk_cache() and not getattr(tree, "disable", False)


def known(tree) -> bool:
    """Whether the plugin was tested with this tree."""
    if _TREE_LOCKS:
        from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

        return type(tree) is UnifiedRadixCache and tree._tree_core_backend in ("rust", "python")
    from sglang.srt.mem_cache.chunk_cache import ChunkCache
    from sglang.srt.mem_cache.radix_cache import RadixCache

    return type(tree) in (RadixCache, ChunkCache)


def slots(tree) -> torch.Tensor:
    """All slots that the tree owns, int64 on the host."""
    if not _TREE_LOCKS and not tree.root_node.children:
        return torch.empty(0, dtype=torch.int64)
    return tree.all_values_flatten().long().cpu()


def shorten_lock(tree, req, cut: int):
    """Lock only the prefix [0, cut) of the request in the tree (0: nothing); `cut` is a page boundary of its prompt.

    Returns the lock that it had until now, for `unlock`.  From then on the rest is cached for others, until the tree evicts it.
    """
    if _TREE_LOCKS:
        key = RadixKey(req.origin_input_ids[:cut], req.extra_key, cache_salt=req.cache_salt)
        match = tree.match_prefix(MatchPrefixParams(key=key))
        assert match.device_prefix_len == cut, (match.device_prefix_len, cut)
        before, req.lock = req.lock, tree.lock(match.last_device_node)
    else:
        match = tree.match_prefix(MatchPrefixParams(key=RadixKey(req.origin_input_ids[:cut], req.extra_key)))
        assert len(match.device_indices) == cut, (len(match.device_indices), cut)
        tree.inc_lock_ref(match.last_device_node)
        before = req.last_node
        req.prefix_indices = req.prefix_indices[:cut]
    req.last_node = match.last_device_node
    kv.set_protected(req, cut)
    return before


def unlock(tree, lock):
    """Let go of what `shorten_lock` returned."""
    tree.unlock(lock) if _TREE_LOCKS else tree.dec_lock_ref(lock)
