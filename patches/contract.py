"""Every SGLang function this package touches, with the parameters it expects.  Checked before anything is patched, so that
a release that renamed or reshaped one of them is refused with the list of differences instead of half working."""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil

SRT = "sglang.srt."


@dataclasses.dataclass(frozen=True)
class Target:
    """A dotted path under sglang.srt and the parameter names that its hook relies on (None: only existence matters).

    kind: BEFORE, AFTER, AROUND, REPLACE (hooked) or CALL (used, not hooked).
    """

    path: str
    kind: str
    params: tuple[str, ...] | None

    @property
    def name(self) -> str:
        return SRT + self.path


STAGE1 = (
    Target("server_args.ServerArgs", "REPLACE", None),
    Target("entrypoints.engine.Engine.server_args_class", "REPLACE", None),
    Target("managers.scheduler.Scheduler.__init__", "AROUND", ("self", "server_args", "port_args")),
    Target("managers.tokenizer_manager.TokenizerManager._create_tokenized_object", "AFTER",
           ("self", "obj", "input_text", "input_ids")),
)

# Only where there is no GPU: stock SGLang cannot start there without them.
CPU = (
    Target("layers.rotary_embedding.base.RotaryEmbedding.__init__", "BEFORE", ("self",)),
    Target("mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.alloc_extend", "REPLACE",
           ("self", "prefix_lens", "prefix_lens_cpu", "seq_lens", "seq_lens_cpu", "last_loc", "extend_num_tokens",
            "num_new_pages")),
    Target("mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.alloc_decode", "REPLACE",
           ("self", "seq_lens", "seq_lens_cpu", "last_loc")),
)

STAGE2 = (
    Target("model_executor.forward_batch_info.ForwardBatch.init_new", "AFTER", ("cls", "batch", "model_runner")),
    Target("layers.attention.base_attn_backend.AttentionBackend.forward", "AROUND",
           ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache")),
    Target("managers.scheduler.Scheduler.get_new_batch_prefill", "AROUND", ("self", "running_batch")),
    Target("managers.scheduler.Scheduler.get_next_batch_to_run", "AROUND", ("self", "running_batch", "last_batch")),
    Target("managers.scheduler.Scheduler.is_fully_idle", "AFTER", ("self", "for_health_check")),
    Target("managers.scheduler.Scheduler.get_num_allocatable_reqs", "AROUND", ("self", "running_bs")),
    Target("managers.scheduler.Scheduler.abort_request", "AFTER", ("self", "recv_req")),
    Target("managers.scheduler.Scheduler._abort_on_running_timeout", "AROUND", ("self", "running_batch")),
    Target("managers.scheduler.Scheduler.pause_generation", "BEFORE", ("self", "recv_req")),
    Target("managers.scheduler_components.invariant_checker.SchedulerInvariantChecker._get_total_uncached_sizes", "AFTER",
           ("self",)),
    Target("managers.schedule_policy.PrefillAdder.__init__", "AFTER", ("self", "page_size", "running_batch")),
    Target("managers.scheduler.Scheduler.init_req_max_new_tokens", "AROUND", ("self", "req")),
    Target("managers.scheduler.Scheduler.get_internal_state", "AFTER", ("self", "recv_req")),
    Target("managers.schedule_batch.Req.reset_for_retract", "AFTER", ("self",)),
    Target("managers.schedule_batch.ScheduleBatch.retract_decode", "AROUND", ("self", "server_args")),
    Target("managers.schedule_batch.ScheduleBatch._get_decode_retraction_order", "AFTER", ("reqs", "server_args")),
    Target("managers.schedule_policy.PrefillAdder._get_running_request_total_token_offset", "AROUND", ("self", "req")),
    Target("managers.schedule_policy.PrefillAdder.add_one_req", "AROUND",
           ("self", "req", "has_chunked_req", "truncation_align_size")),
    Target("managers.schedule_policy.PrefillAdder._update_prefill_budget", "AROUND",
           ("self", "prefix_len", "extend_input_len", "max_new_tokens")),
    Target("managers.scheduler_components.pool_stats_observer.PoolStats.get_decode_usage_msg_parts", "AFTER", ("self",)),
    Target("mem_cache.memory_pool.ReqToTokenPool.free", "BEFORE", ("self", "req")),
    Target("model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size", "AFTER",
           ("self", "kvc", "num_layers")),
    Target("model_executor.pool_configurator.DefaultPoolConfigurator.calculate_pool_sizes", "AROUND",
           ("self", "available_bytes", "page_size")),
    Target("model_executor.model_runner.ModelRunner._init_post_memory_pool_components", "AFTER", ("self",)),
)

CALLS = (
    Target("mem_cache.common.evict_from_tree_cache", "CALL", ("tree_cache", "num_tokens")),
    Target("mem_cache.radix_cache.RadixCache.match_prefix", "CALL", ("self", "params")),
    Target("mem_cache.radix_cache.RadixCache.inc_lock_ref", "CALL", ("self", "node")),
    Target("mem_cache.radix_cache.RadixCache.dec_lock_ref", "CALL", ("self", "node")),
    Target("mem_cache.allocator.base.BaseTokenToKVPoolAllocator.free_segment", "CALL", ("self", "free_index", "start_pos")),
    Target("managers.schedule_batch.ScheduleBatch.release_req", "CALL", ("self", "idx", "remaing_req_count", "server_args")),
    Target("managers.schedule_batch.ScheduleBatch.filter_batch", "CALL", ("self", "keep_indices")),
    Target("managers.schedule_batch.ScheduleBatch.merge_batch", "CALL", ("self", "other")),
    Target("managers.schedule_batch.FINISH_ABORT", "CALL", None),
    Target("sampling.penaltylib.BatchedPenalizerOrchestrator.__init__", "CALL", ("self", "vocab_size", "batch", "penalizers")),
    Target("managers.scheduler.Scheduler._add_request_to_queue", "CALL", ("self", "req", "is_retracted")),
    Target("managers.schedule_policy.CLIP_MAX_NEW_TOKENS", "CALL", None),
    Target("managers.schedule_batch.Req.set_finish_with_abort", "CALL", ("self", "error_msg")),
    Target("sampling.sampling_params.SamplingParams.custom_params", "CALL", None),
    Target("configs.hybrid_arch.mambaish_config", "CALL", ("model_config",)),
)


def parameters(obj) -> tuple[str, ...]:
    """Parameter names of a function; of the function inside a class or static method; through hook wrappers."""
    return tuple(inspect.signature(inspect.unwrap(getattr(obj, "__func__", obj))).parameters)


def problems(targets) -> list[str]:
    """One line per target that is missing or does not take the expected parameters; empty when all is well."""
    found = []
    for target in targets:
        owner, attribute = target.name.rsplit(".", 1)
        try:
            parent = pkgutil.resolve_name(owner)
            obj = inspect.getattr_static(parent, attribute)
        except (AttributeError, ImportError) as error:
            found.append(f"{target.name}: not found ({error})")
            continue
        if target.params is None:
            continue
        have = parameters(obj)
        missing = [p for p in target.params if p not in have]
        if missing:
            found.append(f"{target.name}: expected parameters {', '.join(missing)}; it has ({', '.join(have)})")
    return found
