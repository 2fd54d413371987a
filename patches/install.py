"""Two-stage installation through SGLang's plugin framework, and the check that nothing is half installed.

Stage 1, whenever plugins load: the server arguments, Scheduler.__init__ and the check of each request's settings; harmless while
--enable-zipage is off.
Stage 2, inside Scheduler.__init__ of a server with --enable-zipage, before the model is loaded: everything else.
"""

from __future__ import annotations

import importlib

import torch

from sglang.srt.plugins.hook_registry import HookRegistry, HookSource, HookType
from zipage_patches import contract

SOURCE = HookSource("zipage", "zipage-sglang")

# target path (see contract.py) -> (module of this package, hook)
HOOKS = {
    "managers.scheduler.Scheduler.__init__": ("scheduler", "scheduler_init"),
    "managers.tokenizer_manager.TokenizerManager._create_tokenized_object": ("tokenizer", "check_settings"),
    "layers.rotary_embedding.base.RotaryEmbedding.__init__": ("cpu", "rotary_init"),
    "mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.alloc_extend": ("cpu", "alloc_extend"),
    "mem_cache.allocator.paged.PagedTokenToKVPoolAllocator.alloc_decode": ("cpu", "alloc_decode"),
    "model_executor.forward_batch_info.ForwardBatch.init_new": ("forward", "init_new"),
    "layers.attention.base_attn_backend.AttentionBackend.forward": ("forward", "attention_forward"),
    "model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.load_batch": ("forward", "load_batch"),
    "managers.scheduler.Scheduler.get_new_batch_prefill": ("scheduler", "get_new_batch_prefill"),
    "managers.scheduler.Scheduler._should_defer_prefill": ("scheduler", "should_defer_prefill"),
    "managers.scheduler.Scheduler.get_next_batch_to_run": ("parking", "get_next_batch_to_run"),
    "managers.scheduler.Scheduler.is_fully_idle": ("parking", "is_fully_idle"),
    "managers.scheduler.Scheduler.get_num_allocatable_reqs": ("parking", "num_allocatable"),
    "managers.scheduler.Scheduler._can_schedule_lora_req": ("parking", "can_schedule_lora"),
    "managers.scheduler.Scheduler.can_schedule_lora_req": ("parking", "can_schedule_lora"),
    "managers.scheduler.Scheduler.abort_request": ("parking", "abort_request"),
    "managers.scheduler.Scheduler._abort_on_running_timeout": ("parking", "running_timeout"),
    "managers.scheduler.Scheduler._collect_inflight_batches": ("parking", "inflight_batches"),
    "managers.scheduler.Scheduler.pause_generation": ("parking", "pause_generation"),
    "managers.scheduler_components.invariant_checker.SchedulerInvariantChecker._get_total_uncached_sizes":
        ("parking", "uncached_sizes"),
    "managers.scheduler_components.invariant_checker.SchedulerInvariantChecker._requests_owning_rows": ("parking", "owners"),
    "managers.schedule_policy.PrefillAdder.__init__": ("parking", "adder_init"),
    "managers.scheduler.Scheduler.init_req_max_new_tokens": ("admission", "init_req_max_new_tokens"),
    "managers.scheduler.Scheduler.get_internal_state": ("scheduler", "get_internal_state"),
    "managers.schedule_batch.Req.reset_for_retract": ("lifecycle", "reset_for_retract"),
    "managers.schedule_batch.ScheduleBatch.retract_decode": ("lifecycle", "retract_decode"),
    "managers.schedule_batch.ScheduleBatch._get_decode_retraction_order": ("lifecycle", "retraction_order"),
    "managers.schedule_policy.PrefillAdder._get_running_request_total_token_offset": ("admission", "running_offset"),
    "managers.schedule_policy.PrefillAdder.add_one_req": ("admission", "add_one_req"),
    "managers.schedule_policy.PrefillAdder.preempt_to_schedule": ("admission", "preempt_to_schedule"),
    "managers.schedule_policy.PrefillAdder._update_prefill_budget": ("admission", "update_prefill_budget"),
    "managers.scheduler_components.pool_stats_observer.PoolStats.get_decode_usage_msg_parts": ("telemetry", "decode_usage"),
    "mem_cache.memory_pool.ReqToTokenPool.free": ("lifecycle", "row_free"),
    "model_executor.pool_configurator.DefaultPoolConfigurator._compute_cell_size": ("memory", "cell_size"),
    "model_executor.pool_configurator.DefaultPoolConfigurator.calculate_pool_sizes": ("memory", "pool_sizes"),
    "model_executor.model_runner.ModelRunner._init_post_memory_pool_components": ("memory", "post_memory_pool"),
    "beam_search.coordinator.BeamCoordinator.validate_and_init": ("lifecycle", "refuse_beams"),
}


class ContractError(RuntimeError):
    """This SGLang is not the one the hooks were written for, or a hook is not in place."""


def stage1_targets():
    return contract.used(contract.STAGE1 + (() if torch.cuda.is_available() else contract.CPU))


def _refuse(found: list[str]):
    import sglang

    lines = "\n  ".join(found)
    raise ContractError(
        f"zipage-sglang cannot run on SGLang {getattr(sglang, '__version__', '?')}:\n  {lines}\n"
        f"It runs on {' and '.join(contract.RELEASES)}: install one (pip install 'sglang=={contract.RELEASES[0]}') or start "
        "without --enable-zipage."
    )


def _hook(target: contract.Target):
    if target.path in HOOKS:
        module, name = HOOKS[target.path]
        return getattr(importlib.import_module(f"zipage_patches.{module}"), name)
    from zipage_patches.server_args import ZipageServerArgs

    return ZipageServerArgs


def _register(targets):
    for target in targets:
        if target.name not in HookRegistry._hooks:
            HookRegistry.register(target.name, _hook(target), HookType[target.kind], source=SOURCE)


def register_stage1():
    """Registers (the plugin loader applies).  Idempotent."""
    _register(stage1_targets())


def missing(targets) -> list[str]:
    """One line per hooked target that is not in place in this process."""
    return [f"{t.name}: hook not applied" for t in targets if t.kind != "CALL" and t.name not in HookRegistry._patched]


def verify_stage1():
    """Raises ContractError unless the whole contract holds and stage 1 is in place in this process."""
    found = contract.problems(stage1_targets() + contract.STAGE2 + contract.CALLS) + missing(stage1_targets())
    if found:
        _refuse(found)


def install_runtime_hooks():
    """Stage 2.  Raises ContractError, so that the scheduler never starts half patched."""
    verify_stage1()
    targets = contract.used(contract.STAGE2)
    _register(targets)
    HookRegistry.apply_hooks()
    found = missing(targets)
    if found:
        _refuse(found)
    from sglang.srt.managers import schedule_policy

    # SGLang clips each reservation at this many tokens; ours are exact already and may be larger (budgets above 4096).
    schedule_policy.CLIP_MAX_NEW_TOKENS = 1 << 30
