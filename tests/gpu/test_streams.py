"""What is planned for the next step while a compression waits behind the step in flight."""

import copy

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from test_kernels_gpu import SCALE, SHAPES, Request, cuda, jobs_of, make_case, memory

from zipage_sglang.compressor import Compressor
from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import KVBuffers
from zipage_sglang.policies import make_policy

STEADY = [Request(kv_len=2304 + 301, start=301, keep=2048), Request(kv_len=2304, start=0, evicted=1500, stored=2048, keep=2048, count=6)]


@pytest.mark.parametrize("graphs", [False, True])
def test_rows_change_while_a_compression_waits(graphs):
    case, config = cuda(make_case(STEADY, seed=5, **SHAPES["bf16"])), ZipageConfig()
    after = []
    for waits in (False, True):
        ours = copy.deepcopy(case)
        jobs, table = jobs_of(ours)
        table = table.cuda()
        buffers = KVBuffers(ours.k_buffers, ours.v_buffers, ours.query_cache, ours.tables.positions, ours.tables.importance, SCALE,
                            seen=ours.tables.seen)
        compressor = Compressor(buffers, make_policy(config), config, table)
        compressor.warm_up(graphs)
        planning, forward = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(planning):
            snapshot = compressor.snapshot(jobs)
        with torch.cuda.stream(forward):
            if waits:
                torch.cuda._sleep(200_000_000)  # the step in flight
            forward.wait_stream(planning)
            compressor.run(jobs, snapshot)
        if not waits:
            torch.cuda.synchronize()
        with torch.cuda.stream(planning):
            table.copy_(table.flip(0, 1))
        torch.cuda.synchronize()
        after.append(ours)
    for actual, expected in zip(memory(after[1]), memory(after[0]), strict=True):
        slots = actual.shape.index(len(case.k_buffers[0]))  # the axis of KV slots: the first of buffers, the second of tables
        # Warming up compresses slot 0, where padding goes, many times over: what is in it in the end is chance.
        actual, expected = (t.movedim(slots, 0)[1:] for t in (actual, expected))
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_a_compression_beside_other_work_changes_nothing_but_its_rows():
    """On a stream of its own, while the other stream multiplies and writes slots that are not the compression's."""
    case, config = cuda(make_case(STEADY, seed=6, **SHAPES["bf16"])), ZipageConfig(async_steps=2)
    mine = torch.cat([case.batch.rows[r, : request.kv_len] for r, request in enumerate(STEADY)])
    others = torch.ones(len(case.k_buffers[0]), dtype=torch.bool, device="cuda")
    others[mine], others[0] = False, False
    others = others.nonzero().flatten()
    after = []
    for beside in (False, True):
        ours = copy.deepcopy(case)
        jobs, table = jobs_of(ours)
        buffers = KVBuffers(ours.k_buffers, ours.v_buffers, ours.query_cache, ours.tables.positions, ours.tables.importance, SCALE)
        compressor = Compressor(buffers, make_policy(config), config, table.cuda())
        compressor.warm_up(True)
        own, work = torch.cuda.Stream(), torch.randn(4096, 4096, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(own):
            compressor.run(jobs, compressor.snapshot(jobs))
        for n in range(20 if beside else 0):
            work = (work @ work).clamp(-1, 1)
            for buffer in (*ours.k_buffers, *ours.v_buffers):
                buffer[others] = float(n)
        torch.cuda.synchronize()
        after.append([t.movedim(t.shape.index(len(case.k_buffers[0])), 0)[mine] for t in memory(ours)])
    for actual, expected in zip(after[1], after[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
