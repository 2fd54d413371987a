"""Torch twins of every kernel: the definition that the Triton kernels are tested against, and what runs without CUDA."""

from zipage_kernels.reference.attention import attention_score, store_log_sums, store_query
from zipage_kernels.reference.compact import compact, copy_slots
from zipage_kernels.reference.gather import gather_importance, gather_positions, gather_rows
from zipage_kernels.reference.pool import max_pool
from zipage_kernels.reference.redundancy import redundancy
from zipage_kernels.reference.seen import add_attention
from zipage_kernels.reference.select import select
from zipage_kernels.reference.select_forced import select_forced
from zipage_kernels.reference.zipage import zipage_score

__all__ = [
    "add_attention",
    "attention_score",
    "compact",
    "copy_slots",
    "gather_importance",
    "gather_positions",
    "gather_rows",
    "max_pool",
    "redundancy",
    "select",
    "select_forced",
    "store_log_sums",
    "store_query",
    "zipage_score",
]
