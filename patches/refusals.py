"""What the plugin does not support: one line each, raised at start, naming the flag and the remedy."""

from __future__ import annotations

import os

BACKENDS = ("flashinfer", "triton", "torch_native")
BACKEND_FIELDS = ("attention_backend", "prefill_attention_backend", "decode_attention_backend")

# (ServerArgs field, accepted values, why).  A field that an SGLang release does not have cannot be set there: LATER_FLAGS are
# those that 0.5.17 does not have.
FLAGS = (
    ("speculative_algorithm", (None,), "speculative decoding verifies against KV that may have been evicted"),
    ("disaggregation_mode", ("null",), "prefill/decode disaggregation ships whole rows"),
    ("enable_hierarchical_cache", (False,), "the hierarchical cache backs up rows by token"),
    ("enable_lmcache", (False,), "LMCache stores rows by token"),
    ("enable_flexkv", (False,), "FlexKV stores rows by token"),
    ("enable_hisparse", (False,), "HiSparse manages the row itself"),
    ("enable_unified_memory", (False,), "the unified memory pool has another allocator"),
    ("enable_page_major_kv_layout", (False,), "the page-major KV layout is not the one the kernels move"),
    ("radix_cache_backend", (None,), "an external radix cache may own slots differently"),
    ("enable_session_radix_cache", (False,), "session radix caches hold rows between requests"),
    ("enable_streaming_session", (False,), "streaming sessions hold rows between requests"),
    ("dllm_algorithm", (None,), "diffusion language models do not decode token by token"),
    ("enable_dp_attention", (False,), "DP attention pads lengths on the way; use plain --dp-size"),
    ("attn_cp_size", (1,), "context parallelism splits rows"),
    ("dcp_size", (1,), "decode context parallelism splits rows"),
    ("pp_size", (1,), "pipeline parallelism keeps several running batches; use --tp-size"),
    ("enable_pdmux", (False,), "PD multiplexing runs prefill and decode on streams of its own"),
    ("enable_two_batch_overlap", (False,), "two-batch overlap splits the batch"),
    ("enable_mixed_chunk", (False,), "mixed chunks compute decode positions from row lengths"),
    ("prefill_only_disable_kv_cache", (False,), "there is no KV cache to compress"),
    ("is_embedding", (False,), "embedding models do not decode"),
    ("enable_return_routed_experts", (False,), "routed experts are read by true token index"),
    ("enable_return_indexer_topk", (False,), "indexer output is read by true token index"),
    ("kv_canary", ("none", None), "the KV canary expects one token per slot in token order"),
    ("elastic_ep_backend", (None,), "elastic expert parallelism rebuilds the scheduler"),
    ("enable_mis", (False,), "multi-item scoring does not decode"),
    ("kv_cache_dtype", ("auto", "bfloat16", "bf16"), "scores are computed on 16- or 32-bit keys"),
)

LATER_FLAGS = (
    ("attn_dp_size", (1,), "attention data parallelism pads lengths on the way; use plain --dp-size"),
    ("enable_kv_cache_sharding", (False,), "pages of one row lie on several ranks"),
    ("enable_unified_cache_external_linker", (False,), "an external store keeps rows by token"),
    ("enable_nvidia_megakernel", (False,), "fused decode steps need not pass the attention backend, where queries are kept"),
    ("enable_amd_monokernel", (False,), "fused decode steps need not pass the attention backend, where queries are kept"),
)

ENVIRONMENT = (
    ("SGLANG_EXPERIMENTAL_CPP_RADIX_TREE", "the C++ radix tree has other node handles"),
    ("SGLANG_ENABLE_UNIFIED_RADIX_TREE", "the unified radix tree has other node handles"),
    ("SGLANG_USE_HND_KVCACHE", "the kernels move the NHD layout"),
    ("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", "the pool must have its final size when the tables are allocated"),
    ("SGLANG_RUST_SERVER", "the Rust server passes on neither meta_info nor aborts the way the plugin sends them"),
)


class Unsupported(ValueError):
    """A flag, environment variable, model or backend that cannot be combined with --enable-zipage."""


def refuse(what: str, why: str, remedy: str):
    raise Unsupported(f"--enable-zipage does not support {what}: {why}. {remedy}")


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")


def check_flags(args):
    """Flag-only checks, in the launching process.  `args`: resolved ServerArgs."""
    for field, accepted, why in FLAGS + LATER_FLAGS:
        value = getattr(args, field, accepted[0])
        if value not in accepted:
            shown = _flag(field) if value is True else f"{_flag(field)} {value}"
            refuse(shown, why, f"Drop {_flag(field)} or --enable-zipage.")
    for name, why in ENVIRONMENT:
        if os.environ.get(name, "").lower() in ("1", "true", "yes", "y"):
            refuse(f"{name}=1", why, f"Unset {name}.")
    for field in BACKEND_FIELDS:
        backend = getattr(args, field, None)
        if backend is not None and backend not in BACKENDS:
            refuse(f"{_flag(field)} {backend}", "it was not tested with rows in mixed token order",
                   f"Use one of {', '.join(BACKENDS)}.")
    prefill = getattr(getattr(args, "cuda_graph_config", None), "prefill", None)
    if getattr(prefill, "backend", None) == "full":
        refuse("full prefill CUDA graphs", "hooks would not run at replay", "Use --disable-prefill-cuda-graph.")


def check_model(model_config):
    """Model checks from its config, in the launching process."""
    from sglang.srt.configs.hybrid_arch import mambaish_config

    name = type(model_config.hf_config).__name__
    arch = getattr(model_config.attention_arch, "name", str(model_config.attention_arch))
    if arch != "MHA":
        refuse(f"{name} ({arch} attention)", "only MHA and GQA keep one key per KV head", "Serve it without the plugin.")
    if mambaish_config(model_config) is not None:
        refuse(f"hybrid SSM models ({name})", "part of their state is not in the KV pool", "Serve it without the plugin.")
    for attribute, what in (
        ("is_encoder_decoder", "encoder-decoder models"),
        ("is_hybrid_swa", "hybrid sliding-window models"),
        ("model_is_mrope", "M-RoPE models"),
        ("attention_chunk_size", "chunked-attention models"),
        ("use_ngram_embedding", "n-gram models"),
        ("use_engram", "n-gram models"),
    ):
        if getattr(model_config, attribute, None):
            refuse(f"{what} ({name})", "token positions or rows have another meaning there",
                   "Serve it without the plugin.")
    if not getattr(model_config, "is_generation", True):
        refuse(f"{name}", "it does not generate", "Serve it without the plugin.")


def check_attention_layers(model_runner) -> list:
    """The model's attention layers in layer order; all must be plain causal decoder attention of one shape."""
    from sglang.srt.layers.radix_attention import AttentionType, RadixAttention

    layers = sorted((m for m in model_runner.model.modules() if isinstance(m, RadixAttention)), key=lambda m: m.layer_id)
    name = type(model_runner.model).__name__
    pool = model_runner.token_to_kv_pool
    if [m.layer_id - pool.start_layer for m in layers] != list(range(pool.layer_num)):
        refuse(name, "not every KV layer has exactly one attention layer", "Serve it without the plugin.")
    shapes = {(m.tp_q_head_num, m.tp_k_head_num, m.head_dim, float(m.scaling)) for m in layers}
    if len(shapes) != 1:
        refuse(name, f"its attention layers differ in shape ({sorted(shapes)})", "Serve it without the plugin.")
    for m in layers:
        if m.sliding_window_size not in (None, -1):
            refuse(name, f"layer {m.layer_id} has a sliding window", "Serve it without the plugin.")
        if m.logit_cap or m.is_cross_attention or m.attn_type != AttentionType.DECODER:
            refuse(name, f"layer {m.layer_id} is not plain causal attention", "Serve it without the plugin.")
    return layers


def check_kv_pool(pool):
    """The KV pool must be the plain one: slots x heads x head_dim per layer."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    if type(pool) is not MHATokenToKVPool or getattr(pool, "kv_cache_layout", "nhd") != "nhd":
        refuse(f"the KV pool {type(pool).__name__} ({getattr(pool, 'kv_cache_layout', '?')})",
               "only the plain MHA pool in NHD layout is known", "Drop the flag that selects it.")
    if pool.dtype.itemsize < 2:  # with --kv-cache-dtype auto a checkpoint may ask for that
        refuse(f"a KV pool of {pool.dtype}", "keys are scored as they lie there, in 16 or 32 bits",
               "Use --kv-cache-dtype bfloat16.")
    if getattr(pool, "post_capture_active", False):  # some models switch it on by themselves
        refuse("a KV pool that is sized after graphs are captured", "the tables need its final size",
               "Set SGLANG_ENABLE_POST_CAPTURE_KV_SIZING=0.")


def check_scheduler(scheduler):
    """What only the built scheduler shows: allocator, tree and backend classes."""
    from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator, TokenToKVPoolAllocator
    from zipage_patches.compat.tree import known

    allocator, tree = scheduler.token_to_kv_pool_allocator, scheduler.tree_cache
    if type(allocator) not in (TokenToKVPoolAllocator, PagedTokenToKVPoolAllocator):
        refuse(f"the KV allocator {type(allocator).__name__}", "pages are freed another way there",
               "Drop the flag that selects it.")
    if not known(tree):
        refuse(f"the prefix cache {type(tree).__name__}", "it may own slots differently", "Drop the flag that selects it.")
    if scheduler.is_hybrid_swa or scheduler.is_hybrid_ssm:
        refuse("hybrid SWA or SSM models", "part of their state is not in the KV pool", "Serve it without the plugin.")
