"""Memory: charge the method's buffers to the KV pool's budget, and allocate them beside the pool."""

from __future__ import annotations

from zipage_patches import active, log_sums, refusals
from zipage_patches.compat import arguments, ranks
from zipage_sglang.ages import EvictedAges
from zipage_sglang.compressor import Compressor
from zipage_sglang.policies import make_policy
from zipage_sglang.runtime import ModelShape, Runtime, default_query_slots
from zipage_sglang.sizing.memory import fixed, overhead_per_token, pool_tokens, workspace


def cell_size(result, configurator, kvc, num_layers):
    """AFTER DefaultPoolConfigurator._compute_cell_size: bytes per KV slot, tables and query slots included."""
    config, model = active.config, kvc.model_config
    shape = local_shape(model, kvc.server_args.tp_size, num_layers)
    active.workspace_bytes = workspace(config, shape, model.context_len)
    itemsize, max_running = kvc.model_dtype.itemsize, kvc.server_args.max_running_requests
    active.fixed_bytes = fixed(config, shape, model.context_len, itemsize, max_running)
    cell = result + overhead_per_token(config, shape, itemsize)
    # SGLang divides by the cell; with --max-running-requests more tokens may fit than that.
    active.pool_bytes = lambda room: cell * pool_tokens(room, result, config, shape, itemsize, max_running)
    return cell


def local_shape(model_config, tp_size: int, num_layers: int) -> ModelShape:
    """What one rank holds, as far as sizes go (not scale and first indices)."""
    q_heads = max(1, model_config.num_attention_heads // tp_size)
    return ModelShape(num_layers, q_heads, model_config.get_num_kv_heads(tp_size), model_config.head_dim, 1.0)


def pool_sizes(original, configurator, available_bytes, page_size):
    """AROUND DefaultPoolConfigurator.calculate_pool_sizes: leave room for what does not grow with the pool."""
    return original(configurator, active.pool_bytes(max(0, available_bytes - active.fixed_bytes)), page_size)


def post_memory_pool(result, model_runner):
    """AFTER ModelRunner._init_post_memory_pool_components: the pool exists, graphs are not captured yet."""
    if model_runner.is_draft_worker:
        return
    config = active.config
    layers = refusals.check_attention_layers(model_runner)
    refusals.check_kv_pool(model_runner.token_to_kv_pool)
    pool = model_runner.token_to_kv_pool
    parallel, local_kv_heads = ranks.tensor_parallel(model_runner), layers[0].tp_k_head_num
    total_kv_heads = model_runner.model_config.get_total_num_kv_heads()
    # With fewer KV heads than ranks, heads are replicated: several ranks hold the same global head.
    replicas = max(1, parallel.tp_size * local_kv_heads // total_kv_heads)
    shape = ModelShape(
        layers=len(layers),
        q_heads=layers[0].tp_q_head_num,
        kv_heads=local_kv_heads,
        head_dim=layers[0].head_dim,
        scale=float(layers[0].scaling),
        first_layer=pool.start_layer,
        first_kv_head=parallel.tp_rank // replicas * local_kv_heads,
    )
    policy = make_policy(config)
    max_running = model_runner.req_to_token_pool.size
    active.runtime = Runtime(
        config, shape, list(pool.k_buffer), list(pool.v_buffer),
        dtype=model_runner.dtype,
        slots=default_query_slots(config, pool.size, max_running),
        max_batch=max(max_running, largest_graph_batch(arguments.resolved(model_runner.server_args))),
        log_sums=log_sums.given_by(model_runner.server_args, layers),
    )
    active.runtime.warm_up()
    ages = EvictedAges(shape.layers, active.runtime.device) if model_runner.server_args.enable_metrics else None
    active.compressor = Compressor(active.runtime.buffers, policy, config, model_runner.req_to_token_pool.req_to_token, ages)
    graphs = not model_runner.server_args.disable_cuda_graph and decode_graphs(model_runner.server_args)
    with active.runtime.beside():  # that stream's workspace
        active.compressor.warm_up(graphs)


def decode_graphs(server_args) -> bool:
    """Unless `--cuda-graph-backend-decode disabled` says no."""
    decode = getattr(getattr(arguments.resolved(server_args), "cuda_graph_config", None), "decode", None)
    return getattr(decode, "backend", None) != "disabled"


def largest_graph_batch(server_args) -> int:
    """Largest batch size that decode graphs are captured for, 0 without graphs."""
    config = getattr(server_args, "cuda_graph_config", None)
    decode = getattr(config, "decode", None)
    sizes = getattr(decode, "bs", None) or []
    return max([getattr(decode, "max_bs", None) or 0, *sizes])
