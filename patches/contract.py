"""Every SGLang function this package touches, with its parameters in each supported release.  Checked before anything is
patched, so that a release that renamed or reshaped one of them is refused with the list of differences instead of half working.

The release is told by these signatures, never by its version string.  docs/porting.md says how to add one.
"""

from __future__ import annotations

import dataclasses
import inspect
import pkgutil

SRT = "sglang.srt."
RELEASES = ("0.5.23", "0.5.17")  # newest first


@dataclasses.dataclass(frozen=True)
class Target:
    """A dotted path under sglang.srt and all parameter names of it (None: only existence matters), or a dict of those per
    release; releases that are not in the dict do without it.

    kind: BEFORE, AFTER, AROUND, REPLACE (hooked) or CALL (used, not hooked).
    """

    path: str
    kind: str
    params: tuple[str, ...] | dict[str, tuple[str, ...] | None] | None

    @property
    def name(self) -> str:
        return SRT + self.path

    def used_in(self, release: str) -> bool:
        return not isinstance(self.params, dict) or release in self.params

    def expected(self, release: str) -> tuple[str, ...] | None:
        return self.params[release] if isinstance(self.params, dict) else self.params


def each(old: tuple[str, ...] | None, new: tuple[str, ...] | None) -> dict:
    """Parameters in 0.5.17 and in 0.5.23."""
    return {"0.5.17": old, "0.5.23": new}


STAGE1 = (
    Target("server_args.ServerArgs", "REPLACE", None),
    Target("entrypoints.engine.Engine.server_args_class", "REPLACE", None),
    Target("managers.scheduler.Scheduler.__init__", "AROUND", each(
        ("self", "server_args", "port_args", "gpu_id", "tp_rank", "moe_ep_rank", "pp_rank", "attn_cp_rank", "moe_dp_rank",
         "dp_rank"),
        ("self", "server_args", "port_args"))),
    Target("managers.tokenizer_manager.TokenizerManager._create_tokenized_object", "AFTER",
           ("self", "obj", "input_text", "input_ids", "input_embeds", "mm_inputs", "token_type_ids")),
)

# Only where there is no GPU: stock SGLang cannot start there without them.
_ROTARY = ("self", "head_size", "rotary_dim", "max_position_embeddings", "base", "is_neox_style", "dtype")
CPU = (
    Target("layers.rotary_embedding.base.RotaryEmbedding.__init__", "BEFORE", each(_ROTARY, (*_ROTARY, "position_start"))),
    Target("mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.alloc_extend", "REPLACE", {"0.5.17": (
        "self", "prefix_lens", "prefix_lens_cpu", "seq_lens", "seq_lens_cpu", "last_loc", "extend_num_tokens",
        "num_new_pages")}),
    Target("mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.alloc_decode", "REPLACE", {"0.5.17": (
        "self", "seq_lens", "seq_lens_cpu", "last_loc")}),
)

_INIT_NEW = ("cls", "batch", "model_runner", "capture_hidden_mode", "return_hidden_states_before_norm")
_ADDER = ("self", "page_size", "tree_cache", "token_to_kv_pool_allocator", "running_batch", "new_token_ratio",
          "rem_input_tokens", "rem_chunk_tokens", "num_mixed_decode_tokens", "priority_scheduling_preemption_threshold",
          "max_prefill_bs",
          "max_running_requests", "prefill_max_requests", "prefill_delayer_single_pass", "dllm_config", "waiting_queue_len")
_CHECKER = "managers.scheduler_components.invariant_checker.SchedulerInvariantChecker."
_BUDGET = ("self", "prefix_len", "extend_input_len", "max_new_tokens", "retracted_stain", "mamba_gap_reserve")
STAGE2 = (
    Target("model_executor.forward_batch_info.ForwardBatch.init_new", "AFTER", each(
        _INIT_NEW, (*_INIT_NEW, "extend_position_info", "spec_mrope_positions", "kv_loc_plan", "write_cols"))),
    Target("layers.attention.base_attn_backend.AttentionBackend.forward", "AROUND",
           ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache", "kwargs")),
    Target("model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.load_batch", "AROUND",
           ("self", "forward_batch", "pp_proxy_tensors")),
    Target("managers.scheduler.Scheduler.get_new_batch_prefill", "AROUND", ("self", "running_batch")),
    Target("managers.scheduler.Scheduler._should_defer_prefill", "AFTER", {"0.5.23": ("self", "running_batch")}),
    Target("managers.scheduler.Scheduler.get_next_batch_to_run", "AROUND", ("self", "running_batch", "last_batch")),
    Target("managers.scheduler.Scheduler.is_fully_idle", "AFTER", each(
        ("self", "for_health_check"), ("self", "for_health_check", "ignore_waiting"))),
    Target("managers.scheduler.Scheduler.get_num_allocatable_reqs", "AROUND", each(
        ("self", "running_bs"), ("self", "running_bs", "beam_width", "running_batch", "num_held_rows"))),
    Target("managers.scheduler.Scheduler._can_schedule_lora_req", "AROUND", {"0.5.17": ("self", "req", "running_loras")}),
    Target("managers.scheduler.Scheduler.can_schedule_lora_req", "AROUND", {"0.5.23": ("self", "req", "running_loras")}),
    Target("managers.scheduler.Scheduler.abort_request", "AFTER", {"0.5.17": ("self", "recv_req")}),
    Target("managers.scheduler.Scheduler._abort_on_running_timeout", "AROUND", {"0.5.17": ("self", "running_batch")}),
    Target("managers.scheduler.Scheduler._collect_inflight_batches", "AFTER", {"0.5.23": ("self",)}),
    Target("managers.scheduler.Scheduler.pause_generation", "BEFORE", ("self", "recv_req")),
    Target(_CHECKER + "_get_total_uncached_sizes", "AFTER", ("self",)),
    Target(_CHECKER + "_requests_owning_rows", "AFTER", {"0.5.23": ("self",)}),
    Target("managers.schedule_policy.PrefillAdder.__init__", "AFTER", each(_ADDER, (*_ADDER, "prefill_tile_block_m"))),
    Target("managers.scheduler.Scheduler.init_req_max_new_tokens", "AROUND", ("self", "req")),
    Target("managers.scheduler.Scheduler.get_internal_state", "AFTER", ("self", "recv_req")),
    Target("managers.schedule_batch.Req.reset_for_retract", "AFTER", ("self",)),
    Target("managers.schedule_batch.ScheduleBatch.retract_decode", "AROUND", each(("self", "server_args"), ("self",))),
    Target("managers.schedule_batch.ScheduleBatch._get_decode_retraction_order", "AFTER", each(
        ("reqs", "server_args"), ("reqs",))),
    Target("managers.schedule_policy.PrefillAdder._get_running_request_total_token_offset", "AROUND", ("self", "req")),
    Target("managers.schedule_policy.PrefillAdder.add_one_req", "AROUND",
           ("self", "req", "has_chunked_req", "truncation_align_size")),
    Target("managers.schedule_policy.PrefillAdder.preempt_to_schedule", "AROUND", each(
        ("self", "req", "server_args"), ("self", "req"))),
    Target("managers.schedule_policy.PrefillAdder._update_prefill_budget", "AROUND", each(
        _BUDGET, (*_BUDGET, "request_slot_reserve", "is_chunked_continuation", "replay_len"))),
    Target("managers.scheduler_components.pool_stats_observer.PoolStats.get_decode_usage_msg_parts", "AFTER", ("self",)),
    Target("mem_cache.memory_pool.ReqToTokenPool.free", "BEFORE", ("self", "req")),
    Target("model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size", "AFTER",
           ("self", "kvc", "num_layers")),
    Target("model_executor.pool_configurator.DefaultPoolConfigurator.calculate_pool_sizes", "AROUND",
           ("self", "available_bytes", "page_size")),
    Target("model_executor.model_runner.ModelRunner._init_post_memory_pool_components", "AFTER", ("self",)),
    Target("beam_search.coordinator.BeamCoordinator.validate_and_init", "AROUND", {"0.5.23": ("self", "req", "recv_req")}),
)

_KEY = ("token_ids", "extra_key", "is_bigram", "limit")
CALLS = (
    Target("mem_cache.common.evict_from_tree_cache", "CALL", ("tree_cache", "num_tokens")),
    Target("mem_cache.radix_cache.RadixKey", "CALL", each(_KEY, (*_KEY, "cache_salt"))),
    Target("mem_cache.radix_cache.RadixCache.match_prefix", "CALL", {"0.5.17": ("self", "params")}),
    Target("mem_cache.radix_cache.RadixCache.inc_lock_ref", "CALL", {"0.5.17": ("self", "node")}),
    Target("mem_cache.radix_cache.RadixCache.dec_lock_ref", "CALL", {"0.5.17": ("self", "node", "params")}),
    Target("mem_cache.unified_radix_cache.UnifiedRadixCache.match_prefix", "CALL", {"0.5.23": ("self", "params")}),
    Target("mem_cache.unified_radix_cache.UnifiedRadixCache.lock", "CALL", {
        "0.5.23": ("self", "node_id", "skip_lock_components")}),
    Target("mem_cache.unified_radix_cache.UnifiedRadixCache.unlock", "CALL", {"0.5.23": ("self", "lock")}),
    Target("mem_cache.allocator.base.BaseTokenToKVPoolAllocator.free_segment", "CALL", ("self", "free_index", "start_pos")),
    Target("managers.schedule_batch.ScheduleBatch.release_req", "CALL", each(
        ("self", "idx", "remaing_req_count", "server_args"), ("self", "idx", "remaing_req_count", "offload_kv"))),
    Target("managers.schedule_batch.ScheduleBatch.filter_batch", "CALL", each(
        ("self", "chunked_req_to_exclude", "keep_indices"), ("self", "reqs_to_exclude", "keep_indices"))),
    Target("managers.schedule_batch.ScheduleBatch.merge_batch", "CALL", ("self", "other")),
    Target("managers.schedule_batch.FINISH_ABORT", "CALL", None),
    Target("managers.schedule_batch.ScheduleBatch.batch_is_full", "CALL", None),
    Target("managers.schedule_batch.NextBatchPlan", "CALL", ("batch_to_run", "running_batch")),
    Target("sampling.penaltylib.BatchedPenalizerOrchestrator.__init__", "CALL", ("self", "vocab_size", "batch", "penalizers")),
    Target("managers.scheduler.Scheduler._add_request_to_queue", "CALL", ("self", "req", "is_retracted")),
    Target("managers.scheduler.Scheduler.send_abort_output", "CALL", {"0.5.23": ("self", "abort_req", "req")}),
    Target("managers.schedule_policy.CLIP_MAX_NEW_TOKENS", "CALL", None),
    Target("managers.schedule_batch.Req.set_finish_with_abort", "CALL", each(
        ("self", "error_msg"), ("self", "error_msg", "status_code", "err_type"))),
    Target("sampling.sampling_params.SamplingParams.custom_params", "CALL", None),
    Target("configs.hybrid_arch.mambaish_config", "CALL", ("model_config",)),
    Target("layers.attention.flashinfer_backend.FlashInferAttnBackend.forward_decode", "CALL",
           ("self", "q", "k", "v", "layer", "forward_batch", "save_kv_cache")),
    Target("layers.attention.flashinfer_backend.FlashInferAttnBackend._get_wrapper_idx", "CALL", ("self", "layer")),
    Target("layers.attention.flashinfer_backend.DecodeMetadata", "CALL", ("decode_wrappers", "swa_out_cache_loc")),
    Target("runtime_context.get_parallel", "CALL", {"0.5.23": ()}),
    Target("arg_groups.model_override_base.resolving_view", "CALL", {"0.5.23": ("server_args",)}),
    Target("arg_groups.model_override_base.model_config_of", "CALL", {"0.5.23": ("server_args",)}),
    # Fields, for patches/compat.
    Target("managers.schedule_batch.ReqKvInfo.kv_allocated_len", "CALL", None),
    Target("managers.schedule_batch.ReqKvInfo.kv_committed_len", "CALL", {"0.5.23": None}),
    Target("managers.schedule_batch.ReqKvInfo.cache_protected_len", "CALL", {"0.5.23": None}),
    Target("managers.schedule_batch.ReqKvInfo.holds_kv", "CALL", {"0.5.23": None}),
    Target("mem_cache.base_prefix_cache.MatchResult.device_indices", "CALL", {"0.5.17": None}),
    Target("mem_cache.base_prefix_cache.MatchResult.device_prefix_len", "CALL", {"0.5.23": None}),
)


def parameters(obj) -> tuple[str, ...]:
    """Parameter names of a function, of the one inside a class or static method, or of a class; through hook wrappers."""
    return tuple(inspect.signature(inspect.unwrap(getattr(obj, "__func__", obj))).parameters)


def release() -> str:
    """The supported release whose signatures this SGLang has, or has most of (then `problems` lists the rest)."""
    everything = STAGE1 + CPU + STAGE2 + CALLS
    return min(RELEASES, key=lambda name: len(_differences(everything, name)))


def used(targets) -> tuple[Target, ...]:
    """Those of the targets that exist in this release."""
    name = release()
    return tuple(t for t in targets if t.used_in(name))


def problems(targets) -> list[str]:
    """One line per target that is missing or does not take the expected parameters; empty when all is well."""
    return _differences(targets, release())


def _differences(targets, name: str) -> list[str]:
    found = []
    for target in targets:
        if not target.used_in(name):
            continue
        owner, attribute = target.name.rsplit(".", 1)
        try:
            parent = pkgutil.resolve_name(owner)
            obj = inspect.getattr_static(parent, attribute)
        except (AttributeError, ImportError) as error:
            found.append(f"{target.name}: not found ({error})")
            continue
        expected = target.expected(name)
        if expected is not None and (have := parameters(obj)) != expected:
            found.append(f"{target.name}: expected ({', '.join(expected)}), as in {name}; it has ({', '.join(have)})")
    return found
