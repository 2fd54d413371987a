"""Cases for the Triton kernels: small enough for the interpreter, on the GPU where there is one."""

from __future__ import annotations

import copy
import dataclasses
import os

import torch
from kernel_cases import Case, Request, make_case

from zipage_kernels import reference
from zipage_kernels.batch import Tables

DEVICE = "cpu" if "TRITON_INTERPRET" in os.environ else "cuda"

# Never compressed; compressed often, with candidates in any order of position; longer than one tile of fp32 keys.
REQUESTS = (
    Request(kv_len=23, start=6, keep=11, seen=12, windows=3),
    Request(kv_len=21, start=0, evicted=31, stored=8, keep=8, count=7, seen=18, windows=1),
    Request(kv_len=47, start=1, keep=5),
)


def both(requests=REQUESTS, **options) -> tuple[Case, Case]:
    """The same case twice: on the CPU for the reference, and for the kernels."""
    case = make_case(requests, **options)
    return case, to_device(case)


def to_device(case: Case) -> Case:
    case = copy.deepcopy(case)
    if DEVICE == "cpu":
        return case
    batch = dataclasses.replace(case.batch, rows=case.batch.rows.to(DEVICE), query_rows=case.batch.query_rows.to(DEVICE))
    t = case.tables
    tables = Tables(*(None if table is None else table.to(DEVICE) for table in (t.positions, t.importance, t.seen)))
    return dataclasses.replace(
        case,
        batch=batch,
        k_buffers=[buffer.to(DEVICE) for buffer in case.k_buffers],
        v_buffers=[buffer.to(DEVICE) for buffer in case.v_buffers],
        query_cache=case.query_cache.to(DEVICE),
        tables=tables,
    )


def positions_of(case: Case) -> torch.Tensor:
    return reference.gather_positions(case.tables.positions, case.batch)


def memory(case: Case) -> list[torch.Tensor]:
    """Everything that a compression may write."""
    return [*case.k_buffers, *case.v_buffers, case.tables.positions, case.tables.importance]


def assert_same(actual, expected, **tolerance):
    """Equal, NaN too; bit by bit without a tolerance."""
    tolerance = tolerance or dict(rtol=0, atol=0)
    torch.testing.assert_close(actual.cpu(), expected, equal_nan=True, **tolerance)


def add_duplicates(case: Case):
    """Keys that are equal to others, opposite to them, or nothing: in every request and layer."""
    for r in range(len(case.requests)):
        slots = case.slots(r)
        for k_buffer in case.k_buffers:
            k_buffer[slots[1::3]] = k_buffer[slots[0]].clone()
            k_buffer[slots[2::5]] = -2.0 * k_buffer[slots[0]]
            k_buffer[slots[4]] = 0.0
