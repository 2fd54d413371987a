"""The invariants of a running server, checked at every scheduler step when ZIPAGE_CHECK_INVARIANTS=1.

For tests and for chasing a suspected bug: it reads the whole pool each step and is far too slow for production.
Any violation raises AssertionError, which ends the scheduler.
"""

from __future__ import annotations

import hashlib
import os

import torch

from zipage_sglang.plan import ceil_page

ENVIRONMENT = "ZIPAGE_CHECK_INVARIANTS"


def from_environment(manager) -> InvariantChecker | None:
    """The checker if the environment asks for it."""
    return InvariantChecker(manager) if os.environ.get(ENVIRONMENT, "0") == "1" else None


class InvariantChecker:
    """Pool: every slot has exactly one owner (free list, prefix tree, or one request's private rows), and tree-owned slots
    never change.  Requests: the five copies of kv_len agree, positions are true, rows stay within their bound.  Tensor-parallel
    ranks: equal in all of it (the one check that communicates)."""

    def __init__(self, manager):
        self.manager = manager
        self.engine = manager.engine
        self.tree_sums: dict[int, tuple] = {}
        # Since the tree was looked at last: such slots may be there again, with something else in them.
        self.freed: list[torch.Tensor] = []
        for name in ("free", "free_segment"):
            self._note_freed(name)
        self.steps = 0
        self.decisions = 0  # hash of all that this rank has decided so far

    def scheduler(self, scheduler, running_batch):
        """Before and after the manager's step; all KV holders are in the running batch, parked, or the chunked request."""
        self.steps += 1
        engine, page = self.engine, self.engine.page_size
        owners = torch.zeros(engine.pool_size + page, dtype=torch.int64)
        free = engine.allocator.free_pages.cpu()
        free_slots = (free[:, None] * page + torch.arange(page)).flatten() if page > 1 else free
        owners.index_add_(0, free_slots, torch.ones_like(free_slots))
        tree = self._tree_slots()
        owners.index_add_(0, tree, torch.ones_like(tree))
        for slots, _ in self.manager.flights.segments:  # a compression still reads or writes them
            held = ((slots.cpu()[::page] // page * page)[:, None] + torch.arange(page)).flatten()
            owners.index_add_(0, held, torch.ones_like(held))
        in_tree = torch.zeros(len(owners), dtype=torch.bool)
        in_tree[tree] = True

        parked = [item.place.batch for item in self.manager.parked if engine.holds_kv(item.req)]
        self._check_lengths([running_batch, *parked])
        self._check_ranks(scheduler, running_batch)
        holders = [r for batch in (running_batch, *parked) for r in batch.reqs if engine.has_row(r)]
        if scheduler.chunked_req is not None and engine.has_row(scheduler.chunked_req):
            holders.append(scheduler.chunked_req)
        for req in holders:
            allocated = engine.allocated_len(req)
            protected, held = engine.protected_len(req), ceil_page(allocated, page)
            row = engine.row_pool.req_to_token[engine.row(req), :held].cpu()
            shared = row[:protected].long()
            assert in_tree[shared].all(), f"{req.rid}: a protected row is not in the tree"
            last = row[protected:allocated].long()
            private = (last[::page] // page * page)[:, None] + torch.arange(page)
            assert private.numel() == held - protected, f"{req.rid}: the tree owns {protected} of {held} rows"
            owners.index_add_(0, private.flatten(), torch.ones(private.numel(), dtype=torch.int64))
            filled = row[:allocated].long()
            index = torch.arange(len(filled))
            assert ((filled % page) == (index % page)).all(), f"{req.rid}: a slot lost its place in the page"
            assert len(torch.unique(filled)) == len(filled), f"{req.rid}: a slot stands twice in one row"
        wrong = torch.nonzero(owners[page:] != 1).flatten()
        assert len(wrong) == 0, (
            f"{len(wrong)} slots without exactly one owner, e.g. {[(int(s) + page, int(owners[s + page])) for s in wrong[:5]]}"
        )
        self._check_tree_unchanged(tree)

    def forward(self, forward_batch, batch):
        """At a decode step that has just been planned, with the slot of its new token allocated."""
        rows = self.engine.row_pool.req_to_token
        positions, true_lens = forward_batch.positions.tolist(), batch.orig_seq_lens.tolist()
        new_slots = batch.out_cache_loc.tolist()
        for i, req in enumerate(batch.reqs):
            state = self.engine.state(req)
            kv_len = int(batch.seq_lens_cpu[i])
            evicted = state.evicted if state is not None else 0
            position, true_len = positions[i], true_lens[i]
            where = (req.rid, position, true_len, kv_len, evicted)
            assert position == true_len - 1, ("position is not the true one", where)
            assert true_len == kv_len + evicted, ("true length, kv_len and evicted disagree", where)
            # Under overlap the token just sampled is not in output_ids yet.
            known = len(req.origin_input_ids) + len(req.output_ids)
            lag = 1 if self.engine.scheduler.enable_overlap else 0
            assert known <= true_len <= known + lag or req.finished(), ("true length is not the request's", where, known)
            assert int(rows[self.engine.row(req), kv_len - 1]) == new_slots[i], ("row misses the new slot", where)

    def _check_ranks(self, scheduler, batch):
        """Every tensor-parallel rank has the same requests with the same lengths and the same slots."""
        if self.engine.tp_size == 1:
            return
        words = [self.decisions, self.manager.slots.free, [(item.req.rid, item.state.slot) for item in self.manager.parked],
                 [flight.lands for flight in self.manager.flights.aloft], vars(self.manager.groups)]
        for req in batch.reqs:
            state, index = self.engine.state(req), self.engine.row(req)
            held = self.engine.allocated_len(req) if self.engine.has_row(req) else 0
            row = self.engine.row_pool.req_to_token[index, :held].tolist() if held else []
            words.append((req.rid, index, row, state and (state.count, state.evicted, state.slot, state.seen, state.windows,
                                                          state.early)))
        digest = hashlib.blake2b(repr(words).encode(), digest_size=7).digest()
        self.decisions = int.from_bytes(digest, "big")
        both = torch.tensor([self.decisions, -self.decisions])
        torch.distributed.all_reduce(both, torch.distributed.ReduceOp.MAX, group=scheduler.tp_cpu_group)
        assert both[0] == -both[1], f"the tensor-parallel ranks decided differently by step {self.steps}"

    def _check_lengths(self, batches):
        holders = [(b, i, r) for b in batches for i, r in enumerate(b.reqs) if self.engine.has_row(r)]
        for batch, i, req in holders:
            ours = (self.engine.kv_len(req), self.engine.allocated_len(req))
            copies = (int(batch.seq_lens[i]), int(batch.seq_lens_cpu[i]), *ours)
            assert len(set(copies)) == 1, f"{req.rid}: the copies of kv_len disagree: {copies}"
            state = self.engine.state(req)
            if state is None:
                continue
            if (own := state.config) is None:
                untouched = not state.compressed and not state.evicted and not state.over and state.slot < 0
                assert untouched, f"{req.rid}: compression is off for it, but {state}"
                continue
            assert 0 <= state.stored <= copies[0] - state.start, f"{req.rid}: {state.stored} scores of {copies[0]} rows"
            windows = 0 <= state.windows < own.windows and (state.windows > 0) == (0 < state.seen <= copies[0] - state.start)
            assert windows, f"{req.rid}: {state.windows} windows of {own.windows} have seen {state.seen} of {copies[0]} rows"
            if state.compressed and self.manager.config.when == "always":
                assert copies[0] <= state.start + own.cap, f"{req.rid}: {copies[0]} rows exceed {state.start} + {own.cap}"
        bare = [r.rid for _, _, r in holders if (s := self.engine.state(r)) is not None and s.over and s.slot < 0]
        assert not bare, f"rows beyond their trigger whose queries are not kept: {bare}"
        compressed = sum(1 for _, _, r in holders if (s := self.engine.state(r)) is not None and s.compressed)
        assert compressed <= self.manager.compressed, "a compressed row is not counted: its positions would be taken for exact"
        slots = [s.slot for _, _, r in holders if (s := self.engine.state(r)) is not None and s.slot >= 0]
        assert len(set(slots)) == len(slots), "a query slot has two owners"
        assert not set(slots) & set(self.manager.slots.free), "a query slot is both used and free"
        held = self.manager.flights.query_slots
        assert not set(held) & {*slots, *self.manager.slots.free}, "a query slot that a compression reads is given out"
        assert len(slots) + len(held) + len(self.manager.slots.free) == self.manager.runtime.slots, "a query slot leaked"

    def _note_freed(self, name: str):
        free = getattr(self.engine.allocator, name)

        def noting(slots, *args, **kwargs):
            self.freed.append(slots)
            return free(slots, *args, **kwargs)

        setattr(self.engine.allocator, name, noting)

    def _tree_slots(self) -> torch.Tensor:
        return self.engine.tree_slots() if self.engine.has_tree else torch.empty(0, dtype=torch.int64)

    def _check_tree_unchanged(self, tree: torch.Tensor):
        """A tree-owned slot's content is fixed from the first time it is seen until it leaves the tree."""
        page = self.engine.page_size
        for slot in {int(s) // page for slots in self.freed for s in slots.tolist()}:
            for n in range(page):
                self.tree_sums.pop(slot * page + n, None)
        self.freed.clear()
        b = self.manager.runtime.buffers
        device = b.k_buffers[0].device
        slots = tree.to(device)
        sums = torch.zeros(len(tree), dtype=torch.float64, device=device)
        for n, buffer in enumerate((*b.k_buffers, *b.v_buffers)):
            values = buffer[slots].flatten(1).double()
            weight = torch.arange(1, values.shape[1] + 1, dtype=torch.float64, device=device)
            sums += (n + 1) * (values @ weight)
        now = dict(zip(tree.tolist(), sums.tolist()))
        for slot, value in now.items():
            before = self.tree_sums.get(slot)
            assert before is None or before == value, f"tree-owned slot {slot} was overwritten"
        self.tree_sums = now
