"""Triton twins of the operations in `zipage_kernels.reference`, with the same signatures; for CUDA tensors."""

from zipage_kernels.triton.attention import attention_score
from zipage_kernels.triton.compact import compact
from zipage_kernels.triton.copy import copy_slots
from zipage_kernels.triton.gather import gather_importance, gather_positions, gather_rows
from zipage_kernels.triton.pool import max_pool
from zipage_kernels.triton.queries import store_log_sums, store_query
from zipage_kernels.triton.redundancy import redundancy
from zipage_kernels.triton.seen import add_attention
from zipage_kernels.triton.select import select, select_forced
from zipage_kernels.triton.zipage import zipage_score

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
