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
        buffers = KVBuffers(ours.k_buffers, ours.v_buffers, ours.query_cache, ours.tables.positions, ours.tables.importance, SCALE)
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
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
