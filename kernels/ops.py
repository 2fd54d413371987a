"""The kernels as the rest of the package calls them.  Every device runs the torch twins."""

from zipage_kernels.reference import (
    attention_score,
    compact,
    copy_slots,
    gather_importance,
    gather_positions,
    max_pool,
    redundancy,
    select,
    store_query,
)

__all__ = [
    "attention_score",
    "compact",
    "copy_slots",
    "gather_importance",
    "gather_positions",
    "max_pool",
    "redundancy",
    "select",
    "store_query",
]
