"""When a request is compressed, which rows it keeps and frees, and what it can still grow to: pure functions of integers.

Words: a request's row holds `kv_len` KV slots; its candidates are row indices [start, kv_len); `cap` = K + b candidates
trigger a compression to K; `decoded` = decode steps since the last (re)prefill; `page` = SGLang's page size.
Nothing here looks at a device, a clock or an object's identity, so every tensor-parallel rank decides alike.
"""

from __future__ import annotations

import dataclasses

NEVER = 1 << 60  # a trigger that no row reaches


def floor_page(tokens: int, page: int) -> int:
    return tokens // page * page


def ceil_page(tokens: int, page: int) -> int:
    return -(-tokens // page) * page


def trigger_len(start: int, cap: int, window: int, prefill_len: int) -> int:
    """kv_len at which the next compression is due (design: trigger).

    Normally start + cap; after a re-prefill that is longer than that, the w decoded tokens whose queries score the row
    come first.
    """
    return max(start + cap, prefill_len + window)


@dataclasses.dataclass(frozen=True)
class RowPlan:
    """What one compression does to a row.

    The first `start + K` rows stay; rows [cut, copied) are owned by the prefix tree and get private slots first (empty
    when cut == copied); rows [free_from, kv_len) go back to the allocator; rows [kept page boundary, free_from) belong to
    the tree and are only forgotten.
    """

    cut: int
    copied: int
    kept: int
    free_from: int
    kv_len: int

    @property
    def new_slots(self) -> int:
        return self.copied - self.cut

    @property
    def evicted(self) -> int:
        return self.kv_len - self.kept


def plan_row(start: int, budget: int, kv_len: int, protected: int, page: int) -> RowPlan:
    """Pages of one compression.

    `protected` = leading rows whose slots the prefix tree owns (a multiple of `page`).  Tree-owned slots are never written:
    if the kept region reaches below `protected`, its whole pages from the one holding `start` on are replaced by private
    ones.  Pages are freed from the next page boundary after the kept region, because `start` may lie inside a page.
    """
    kept = start + budget
    boundary = ceil_page(kept, page)
    cut = min(floor_page(start, page), protected)
    copied = max(cut, min(protected, boundary))
    return RowPlan(cut=cut, copied=copied, kept=kept, free_from=max(boundary, protected), kv_len=kv_len)


def copy_out_slots(start: int, budget: int, protected: int, page: int) -> int:
    """Private slots that the next compression needs before it can free any (0 when the tree owns nothing it writes)."""
    return plan_row(start, budget, protected, protected, page).new_slots


def fits_alone(prefill_len: int, remaining: int, start: int, budget: int, cap: int, window: int, tree: bool, page: int,
               pool: int) -> bool:
    """Whether a request of `prefill_len` tokens and `remaining` more could reach its bound in an otherwise empty pool.

    tree: a prefix tree would own the prefilled pages, so that the first compression copies some of them out.
    pool: KV slots in all.
    """
    grow = max(0, min(remaining, trigger_len(start, cap, window, prefill_len) - prefill_len))
    protected = floor_page(prefill_len, page) if tree else 0
    copied = copy_out_slots(start, budget, protected, page)
    return ceil_page(prefill_len, page) + ceil_page(grow, page) + copied + 2 * page < pool


def fits_whole(prefill_len: int, remaining: int, page: int, pool: int) -> bool:
    """The same for a request that is not compressed."""
    return ceil_page(prefill_len, page) + ceil_page(remaining, page) + 2 * page < pool
