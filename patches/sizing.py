"""What `python -m zipage_sglang plan` knows of a model and of flags, asked of SGLang itself, without a GPU or weights."""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path
from unittest import mock

import torch

from zipage_patches import refusals
from zipage_patches.compat import arguments
from zipage_patches.memory import largest_graph_batch, local_shape
from zipage_sglang.sizing.planner import Setting
from zipage_sglang.sizing.speed import Weights

# Bits of a linear layer's weight by `quantization_config.quant_method`; those not here need --weights.
QUANTISED_BITS = {"fp8": 8, "awq": 4, "gptq": 4, "modelopt": 8, "mxfp4": 4}


@contextlib.contextmanager
def folder_of(model: str):
    """A local folder with the config.json of a folder, a file or a hub name.  Raises ValueError."""
    path = Path(model)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"--model-path {model}: there is no config.json in it")
        yield path
    elif path.is_file():
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_bytes(path.read_bytes())
            yield Path(folder)
    else:
        from huggingface_hub import hf_hub_download

        try:
            file = hf_hub_download(model, "config.json")
        except Exception as error:  # offline, no such name, no access: one line each, by many classes
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            raise ValueError(f"--model-path {model}: not a folder or file here, and the hub says: {reason}. "
                             "Give the path of its config.json") from None
        yield Path(file).parent


def setting_of(model: str, memory_gib: float, flags: list[str], weights_gib: float | None = None) -> Setting:
    """What a server with these flags would size itself by.  memory_gib: of one GPU.  weights_gib: of all GPUs, None to count.

    Raises ValueError (refusals.Unsupported, a bad flag's one line, or SGLang's own) or SystemExit from the command line's parser.
    """
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    own = [] if "--device" in flags else ["--device", "cuda"]
    if not any(flag.startswith("--attention-backend") for flag in flags) and own:
        own += ["--attention-backend", "flashinfer"]  # chosen by the GPU that is there otherwise
    with folder_of(model) as folder, mock.patch(arguments.MEMORY_CAPACITY, return_value=memory_gib * 1024):
        # First, because SGLang's own checks of hybrid models want to see a GPU.
        refusals.check_model(ModelConfig(str(folder), trust_remote_code="--trust-remote-code" in flags))
        args = prepare_server_args(["--model-path", str(folder), *own, "--enable-zipage", *flags])
        args.check_server_args()
        model_config, view = arguments.model_config(args), arguments.resolved(args)
        check_layers(model_config.hf_text_config, (model_config.hf_config.architectures or ["this model"])[0])
        weights = count_weights(model_config) if weights_gib is None else Weights(0, 0, int(weights_gib * 2**30))
    return Setting(
        name=(model_config.hf_config.architectures or [type(model_config.hf_config).__name__])[0],
        dtype=str(model_config.dtype).removeprefix("torch."),
        shape=local_shape(model_config, view.tp_size, model_config.num_hidden_layers),
        v_head_dim=model_config.v_head_dim,
        context_len=model_config.context_len,
        weights=weights,
        memory=int(memory_gib * 2**30),
        fraction=view.mem_fraction_static,
        tp=view.tp_size,
        page=view.page_size,
        itemsize=model_config.dtype.itemsize,
        kv_itemsize=model_config.dtype.itemsize if view.kv_cache_dtype == "auto" else 2,
        config=args.zipage_config(),
        max_tokens=view.max_total_tokens,
        max_running=view.max_running_requests,
        graph_batch=largest_graph_batch(view),
    )


def check_layers(config, name: str):
    """What the server sees in the loaded layers (`refusals.check_attention_layers`), where the config says it too."""
    if getattr(config, "attn_logit_softcapping", None):
        refusals.refuse(name, "layer 0 is not plain causal attention", "Serve it without the plugin.")
    kinds = getattr(config, "layer_types", None) or []
    if "sliding_attention" in kinds:
        refusals.refuse(name, f"layer {kinds.index('sliding_attention')} has a sliding window", "Serve it without the plugin.")


def count_weights(model_config) -> Weights:
    """From the model as transformers builds it, without memory.  Raises ValueError naming --weights where that cannot be done."""
    from transformers import AutoModelForCausalLM

    config, itemsize = model_config.hf_text_config, model_config.dtype.itemsize
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception as error:  # code of the model's own, an unknown type
        raise ValueError(f"--weights: {type(config).__name__} cannot be counted ({str(error).splitlines()[0]}); "
                         "give the weights' GiB") from None
    width = _quantised_itemsize(config, itemsize)
    head = model.get_output_embeddings()
    tied = getattr(config, "tie_word_embeddings", False)
    sizes = {"embedding": 0.0, "experts": 0.0, "rest": 0.0}
    kept = {id(p) for m in (head, model.get_input_embeddings()) if m is not None for p in m.parameters()}
    for name, p in model.named_parameters():
        kind = "experts" if ".experts." in name else "rest"
        if p is model.get_input_embeddings().weight and not tied:
            kind = "embedding"
        sizes[kind] += p.numel() * (width if p.dim() > 1 and id(p) not in kept else itemsize)
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 0
    chosen = getattr(config, "num_experts_per_tok", 0) if sizes["experts"] else 0
    return Weights(**{k: int(v) for k, v in sizes.items()}, chosen=chosen, of=experts if sizes["experts"] else 0)


def _quantised_itemsize(config, itemsize: int) -> float:
    quantised = getattr(config, "quantization_config", None)
    if quantised is None:
        return itemsize
    if not isinstance(quantised, dict):
        quantised = quantised.to_dict()
    method = quantised.get("quant_method")
    if method not in QUANTISED_BITS:
        raise ValueError(f"--weights: the size of {method} weights is not known; give the weights' GiB")
    return (quantised.get("bits") or quantised.get("w_bit") or QUANTISED_BITS[method]) / 8
