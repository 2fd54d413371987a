"""How SGLang is started here: on a CUDA GPU if there is one, on the CPU otherwise."""

from __future__ import annotations

# Torch attention, no graphs, float32 (bfloat16 is emulated, three times slower, on CPUs without AMX or AVX512-BF16).
CPU = dict(device="cpu", attention_backend="torch_native", disable_cuda_graph=True, dtype="float32")


def engine_options() -> dict:
    """Keyword arguments for sgl.Engine that fit this machine."""
    import torch  # seconds to import; --help must not wait for it

    if torch.cuda.is_available():
        return dict(attention_backend="flashinfer", dtype="bfloat16")
    return dict(CPU)


def as_flags(options: dict) -> list[str]:
    """The same options as launch_server flags: `{"disable_cuda_graph": True, "dtype": "float32"}` -> `--disable-cuda-graph
    --dtype float32`.  False and None are left out."""
    flags = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        flags.append("--" + name.replace("_", "-"))
        if value is not True:
            flags.append(str(value))
    return flags
