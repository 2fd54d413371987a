"""GPUs: memory as `nvidia-smi` reports it, bandwidth by the vendor's datasheet."""

from __future__ import annotations

from typing import NamedTuple


class GPU(NamedTuple):
    """memory: GiB.  bandwidth: GB/s (10^9 bytes), the peak that the datasheet names; no program reaches it."""

    memory: float
    bandwidth: float


GPUS = {
    # NVIDIA A100 datasheet (June 2021): 40 GB 1,555 GB/s; 80 GB PCIe 1,935 GB/s, SXM 2,039 GB/s.
    "A100-40GB": GPU(40.0, 1555),
    "A100-80GB-PCIE": GPU(80.0, 1935),
    "A100-80GB": GPU(80.0, 2039),
    # NVIDIA H100 datasheet: PCIe 2 TB/s, SXM 3.35 TB/s, NVL (94 GB) 3.9 TB/s.
    "H100-PCIE": GPU(79.6, 2000),
    "H100": GPU(79.6, 3350),
    "H100-NVL": GPU(93.6, 3900),
    # NVIDIA H200 datasheet: 141 GB, 4.8 TB/s.  143,771 MiB by nvidia-smi.
    "H200": GPU(140.4, 4800),
    # NVIDIA DGX B200 datasheet: 1,440 GB and 64 TB/s in eight GPUs.
    "B200": GPU(179.1, 8000),
    # NVIDIA L4 datasheet: 24 GB, 300 GB/s; L40S datasheet: 48 GB, 864 GB/s; A10 datasheet: 24 GB, 600 GB/s.
    "L4": GPU(22.5, 300),
    "L40S": GPU(45.0, 864),
    "A10": GPU(22.5, 600),
    # NVIDIA Ada (AD102) whitepaper: 24 GB, 1,008 GB/s; RTX Blackwell whitepaper: 32 GB, 1,792 GB/s.
    "RTX4090": GPU(24.0, 1008),
    "RTX5090": GPU(31.8, 1792),
}


def find(name: str) -> GPU:
    """The GPU of that name, whatever its case.  Raises ValueError with the names there are."""
    for known, gpu in GPUS.items():
        if known.lower() == name.lower():
            return gpu
    raise ValueError(f"--gpu: {name!r} is not one of {', '.join(GPUS)}; give --gpu-memory and --bandwidth instead")


def by_memory(gib: float) -> str | None:
    """Name of the only known GPU with about that much memory, None if there are none or several."""
    names = [name for name, gpu in GPUS.items() if abs(gpu.memory - gib) <= 0.02 * gpu.memory]
    return names[0] if len(names) == 1 else None
