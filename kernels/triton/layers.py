"""How the kernels see SGLang's per-layer KV buffers and write bf16 tables, and the shapes that follow from a head's size."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634
CHUNK = 1024  # candidates that one program looks at together


class Layers(NamedTuple):
    """The buffers of all layers as kernel arguments, so that one launch reaches every layer.

    first: the first layer's buffer [S, H, D].  offsets: int64 [L] on the device, each buffer's distance from the first in
    elements.  align: a power of two that divides every offset (the kernels' loads are that many elements wide, 16 bytes
    at most).
    """

    first: torch.Tensor
    offsets: torch.Tensor
    align: int

    @property
    def slot_stride(self) -> int:
        return self.first.stride(0)

    @property
    def head_stride(self) -> int:
        return self.first.stride(1)


_tables: dict[tuple, Layers] = {}


def layer_table(buffers: list[torch.Tensor]) -> Layers:
    """Layers of a list of [S, H, D] buffers, cached by what is in the list (its addresses and its layout).

    Building one copies the offsets to the device and waits for it; that happens once for a KV pool.
    Raises ValueError unless the buffers have one layout, with contiguous heads.
    """
    first = buffers[0]
    addresses = tuple(buffer.data_ptr() for buffer in buffers)
    key = (addresses, first.dtype, first.shape, first.stride(), first.device)
    table = _tables.get(key)
    if table is None:
        for buffer in buffers:
            if (buffer.dtype, buffer.shape, buffer.stride()) != (first.dtype, first.shape, first.stride()):
                raise ValueError("the KV buffers of all layers must have the same dtype, shape and strides")
        if first.stride(2) != 1:
            raise ValueError(f"a KV head must be contiguous, got strides {first.stride()}")
        itemsize = first.element_size()
        offsets = [(address - addresses[0]) // itemsize for address in addresses]
        align = math.gcd(16 // itemsize, *offsets)
        if len(_tables) >= 64:  # a process has one or two pools; only tests make many
            _tables.clear()
        table = _tables[key] = Layers(first, torch.tensor(offsets, dtype=torch.int64, device=first.device), align)
    return table


def padded(size: int, least: int = 1) -> int:
    """The next power of two, which tile sizes must be; `least` is a power of two."""
    return max(least, triton.next_power_of_2(size))


def upcast(*dtypes: torch.dtype) -> bool:
    """Whether the operands of a matrix product must be widened to fp32 first.

    Different types have no common product, and Triton's interpreter multiplies the bit patterns of bf16.
    """
    return len(set(dtypes)) > 1 or (triton.knobs.runtime.interpret and torch.bfloat16 in dtypes)


def tile_rows(head_dim: int, dtype: torch.dtype) -> int:
    """Keys in one tile: 32 KiB of shared memory on the tensor cores, less for fp32, whose exact products run on the cores
    that hold everything in registers."""
    if dtype == torch.float32:
        return 32
    return 128 if padded(head_dim) * dtype.itemsize <= 256 else 64


def chunks(candidates: int) -> int:
    """Chunks of candidates that a program may hold at a time; 0 where that does not hold all.  Few values, because every one is
    a kernel of its own."""
    return 4 if candidates <= 4 * CHUNK else 0


@triton.jit
def bf16_bits(value):
    """The bits of the nearest bf16, ties to even, as int16: what the hardware's conversion gives, and the interpreter's
    does not."""
    bits = value.to(tl.int32, bitcast=True)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return tl.where(value != value, 0x7FC0, rounded).to(tl.int16)


@triton.jit
def bf16_value(bits):
    """The fp32 value of a bf16's bits, its upper half."""
    return (bits.to(tl.int32) << 16).to(tl.float32, bitcast=True)
