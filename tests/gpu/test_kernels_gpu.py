"""The Triton kernels, compiled, against the torch reference on the same GPU, at the sizes that serving has."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import pathlib
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "unit"))
from kernel_cases import Request, make_case
from test_compressor import jobs_of

from zipage_kernels import reference
from zipage_kernels.batch import CompressionBatch, Tables
from zipage_sglang.ages import EvictedAges
from zipage_sglang.compressor import Compressor
from zipage_sglang.config import ZipageConfig
from zipage_sglang.pipeline import KVBuffers, compress
from zipage_sglang.policies import make_policy

if not torch.cuda.is_available():
    pytest.skip("needs a CUDA GPU", allow_module_level=True)

from zipage_kernels import triton as twins

SCALE = 0.0883
# A first compression behind a prompt, one in the steady state, one after a re-prefill.
REQUESTS = (
    Request(kv_len=2304 + 301, start=301, keep=2048, seen=2200, windows=3),
    Request(kv_len=2304, start=0, evicted=1500, stored=2048, keep=2048, count=6, seen=2288, windows=15),
    Request(kv_len=3777, start=64, keep=2048),
)
SHAPES = {
    "bf16": dict(layers=3, heads=8, group=4, head_dim=128, window=16, dtype=torch.bfloat16),
    "odd": dict(layers=2, heads=2, group=7, head_dim=80, window=16, dtype=torch.float16, strided=True),
}


def cuda(case):
    """The case on the GPU, with the same strides, and with keys that resemble one another as real ones do."""
    case = copy.copy(case)
    common = torch.randn(case.k_buffers[0].shape[1:], generator=torch.Generator().manual_seed(1)).cuda()

    def move(buffer):
        base = buffer if buffer._base is None else buffer._base
        moved = base.cuda()
        return moved if buffer._base is None else moved[:, 1]

    case.k_buffers = [move(buffer).add_(1.1 * common) for buffer in case.k_buffers]
    case.v_buffers = [move(buffer) for buffer in case.v_buffers]
    case.query_cache = case.query_cache.cuda()
    case.tables = Tables(case.tables.positions.cuda(), case.tables.importance.cuda(), case.tables.seen.cuda())
    case.batch = dataclasses.replace(
        case.batch, rows=case.batch.rows.cuda(), query_rows=case.batch.query_rows.cuda()
    )
    return case


@pytest.fixture(scope="module", params=SHAPES)
def case(request):
    return cuda(make_case(REQUESTS, seed=3, **SHAPES[request.param]))


@pytest.fixture(scope="module")
def positions(case):
    return reference.gather_positions(case.tables.positions, case.batch)


def assert_nearly(actual, expected, share=1e-3, rtol=1e-3, atol=1e-7):
    """Close but for a share of the entries: a cosine within rounding of the threshold falls on either side."""
    assert torch.equal(actual.isfinite(), expected.isfinite())
    finite = expected.isfinite()
    actual, expected = actual[finite], expected[finite]
    far = (actual - expected).abs() > atol + rtol * expected.abs()
    assert far.float().mean() <= share, (far.sum().item(), (actual - expected).abs().max().item())
    torch.testing.assert_close(actual, expected, rtol=0.05, atol=1e-4)


def test_gather(case, positions):
    assert torch.equal(twins.gather_positions(case.tables.positions, case.batch), positions)
    expected = reference.gather_importance(case.tables.importance, case.batch)
    assert torch.equal(twins.gather_importance(case.tables.importance, case.batch), expected)


def test_attention(case):
    expected = reference.attention_score(case.k_buffers, case.query_cache, case.batch, SCALE)
    actual = twins.attention_score(case.k_buffers, case.query_cache, case.batch, SCALE)
    assert_nearly(actual, expected, share=0, rtol=1e-4)


def test_what_windows_see_is_added(case):
    ours, wanted = case.tables.seen.clone(), case.tables.seen.clone()
    twins.add_attention(case.k_buffers, case.query_cache, ours, case.batch, SCALE)
    reference.add_attention(case.k_buffers, case.query_cache, wanted, case.batch, SCALE)
    torch.testing.assert_close(ours.float(), wanted.float(), rtol=2**-7, atol=1e-7, equal_nan=True)
    assert not torch.equal(ours.nan_to_num(-1), case.tables.seen.nan_to_num(-1))


@pytest.mark.parametrize("mode", ["lightning", "flash"])
def test_redundancy(case, positions, mode):
    expected = reference.redundancy(case.k_buffers, case.batch, positions, 256, 0.4, mode)
    actual = twins.redundancy(case.k_buffers, case.batch, positions, 256, 0.4, mode)
    assert_nearly(actual, expected)
    torch.testing.assert_close(actual.sum(-1), torch.ones_like(actual.sum(-1)))


@pytest.mark.parametrize("block", [256, 200])
def test_zipage_score(case, positions, block):
    args = case.query_cache, case.tables, case.batch, positions, SCALE, 0.8, 0.2, 0.4, block, "lightning", "once"
    real = positions >= 0
    for actual, expected in zip(twins.zipage_score(case.k_buffers, *args), reference.zipage_score(case.k_buffers, *args)):
        assert_nearly(actual[real], expected[real])


def test_max_pool(case, positions):
    scores = torch.randn(positions.shape, device="cuda")
    assert torch.equal(twins.max_pool(scores, positions), reference.max_pool(scores, positions))


@pytest.mark.parametrize("digits", [0, 2, 9])
def test_select(case, positions, digits):
    """Scores rounded to `digits` places: hardly anything but ties, some, none."""
    scores = torch.randn(positions.shape, device="cuda").round(decimals=digits)
    scores[..., 5] = torch.nan
    expected = reference.select_forced(scores, positions, case.batch, 1024, 4)
    for actual, wanted in zip(twins.select_forced(scores, positions, case.batch, 1024, 4), expected):
        assert torch.equal(actual, wanted)
    assert torch.equal(twins.select(scores, positions, case.batch), reference.select(scores, positions, case.batch))


def test_select_among_more_than_fit_in_registers():
    batch = make_case([Request(kv_len=20011, keep=2048)], layers=1, heads=2, head_dim=1).batch
    batch = dataclasses.replace(batch, rows=batch.rows.cuda(), query_rows=batch.query_rows.cuda())
    positions = torch.arange(20011, dtype=torch.int32, device="cuda").expand(1, 1, 2, -1).contiguous()
    for digits in (1, 9):
        scores = torch.randn(positions.shape, device="cuda").round(decimals=digits)
        assert torch.equal(twins.select(scores, positions, batch), reference.select(scores, positions, batch))


def memory(case):
    return [*case.k_buffers, *case.v_buffers, case.tables.positions, case.tables.importance]


def test_compression_moves_exactly_what_it_kept(case, positions):
    """The whole pipeline; then the reference moves the same survivors in a copy of the memory."""
    config = ZipageConfig(recency=0.25)
    ours, wanted = copy.deepcopy(case), copy.deepcopy(case)
    t = ours.tables
    buffers = KVBuffers(ours.k_buffers, ours.v_buffers, ours.query_cache, t.positions, t.importance, SCALE, seen=t.seen)
    result = compress(ours.batch, buffers, make_policy(config), config)
    assert (result.keep.sum(-1) == 2048).all() and not result.nan_counts.any()
    args = case.query_cache, case.tables, case.batch, positions, SCALE, 0.8, 0.2, 0.4, 256, "lightning", "once"
    scores, importance = reference.zipage_score(case.k_buffers, *args)
    expected, _ = reference.select_forced(scores, positions, case.batch, config.reserve, config.forced_sinks)
    assert (result.keep != expected).float().mean() < 1e-3
    reference.compact(
        wanted.k_buffers, wanted.v_buffers, wanted.tables, wanted.batch, result.keep, positions, importance
    )
    for actual, moved in zip(memory(ours), memory(wanted), strict=True):
        tolerance = dict(rtol=2**-6, atol=1e-6) if actual is ours.tables.importance else dict(rtol=0, atol=0)
        torch.testing.assert_close(actual, moved, equal_nan=True, **tolerance)


def test_copy_slots(case):
    ours, wanted = copy.deepcopy(case), copy.deepcopy(case)
    src, dst = case.batch.rows[0, 100:1801].clone(), case.batch.rows[2, 7:1708].clone()
    twins.copy_slots(ours.k_buffers, ours.v_buffers, ours.tables, src, dst)
    reference.copy_slots(wanted.k_buffers, wanted.v_buffers, wanted.tables, src, dst)
    for actual, moved in zip(memory(ours), memory(wanted), strict=True):
        torch.testing.assert_close(actual, moved, rtol=0, atol=0, equal_nan=True)


def alone(batch: CompressionBatch, r: int) -> CompressionBatch:
    counts = {name: [getattr(batch, name)[r]] for name in ("kv_lens", "starts", "evicted", "stored", "keeps", "counts", "seen", "windows")}
    return CompressionBatch(rows=batch.rows[r : r + 1].clone(), query_rows=batch.query_rows[r : r + 1].clone(), **counts)


def test_scores_do_not_depend_on_the_batch(case, positions):
    """Bit by bit: what a request keeps must not depend on load."""
    args = SCALE, 0.8, 0.2, 0.4, 256, "lightning", "once"
    together, _ = twins.zipage_score(case.k_buffers, case.query_cache, case.tables, case.batch, positions, *args)
    for r, n in enumerate(case.batch.num_candidates):
        batch = alone(case.batch, r)
        own = positions[r : r + 1, ..., :n].contiguous()
        scores, _ = twins.zipage_score(case.k_buffers, case.query_cache, case.tables, batch, own, *args)
        assert torch.equal(scores[0], together[r, ..., :n])


def test_nothing_waits_for_the_device(case):
    config = ZipageConfig()
    ours = copy.deepcopy(case)
    t = ours.tables
    buffers = KVBuffers(ours.k_buffers, ours.v_buffers, ours.query_cache, t.positions, t.importance, SCALE, seen=t.seen)
    src = case.batch.rows[0, :9].clone()
    compress(ours.batch, buffers, make_policy(config), config)
    twins.copy_slots(ours.k_buffers, ours.v_buffers, t, src, src)
    try:
        torch.cuda.set_sync_debug_mode("error")
        compress(dataclasses.replace(ours.batch), buffers, make_policy(config), config)
        twins.copy_slots(ours.k_buffers, ours.v_buffers, t, src, src)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("policy", ["zipage", "random"])
def test_graphs_do_what_single_launches_do(policy):
    """Bit by bit, for full and padded batches, over several compressions with other rows in between."""
    steady = [
        Request(kv_len=2304 + 301, start=301, keep=2048),
        Request(kv_len=2304, start=0, evicted=1500, stored=2048, keep=2048, count=6),
        Request(kv_len=2204, start=11, evicted=700, stored=2048, keep=2048, count=2),
    ]
    case = cuda(make_case((*steady, *REQUESTS[2:], *steady), seed=5, **SHAPES["bf16"]))
    config = ZipageConfig(policy=policy, passes=3 if policy == "zipage" else 1)
    runs, counted = [], []
    for graphs in (True, False):
        ours = copy.deepcopy(case)
        jobs, table = jobs_of(ours)
        t = ours.tables
        buffers = KVBuffers(ours.k_buffers, ours.v_buffers, ours.query_cache, t.positions, t.importance, SCALE, seen=t.seen)
        ages = EvictedAges(len(ours.k_buffers), torch.device("cuda"))
        compressor = Compressor(buffers, make_policy(config), config, table.cuda(), ages)
        compressor.warm_up(graphs)
        assert ages.read(contextlib.nullcontext(), wait=True) == [0] * len(ages.totals)
        assert bool(compressor._graphs) == graphs
        compressor.run(jobs[:1])
        torch.cuda.set_sync_debug_mode("error")
        if policy == "zipage":
            compressor.score(jobs[3:])
            jobs = [*jobs[:3], *(job._replace(seen=job.kv_len - job.start, windows=1) for job in jobs[3:])]
        compressor.run(jobs[1:3])
        ages.read(contextlib.nullcontext())
        torch.cuda.set_sync_debug_mode("default")
        compressor.run(jobs[3:])  # its first row is too long for a graph
        compressor.run(jobs[4:])
        compressor.run([])
        torch.cuda.synchronize()
        compressor.run([])
        assert compressor.nan_scores == 0 and compressor.seconds > 0
        runs.append(ours)
        counted.append(ages.read(contextlib.nullcontext(), wait=True))
        done = [*jobs, *jobs[4:]]
        heads, layers = ours.k_buffers[0].shape[1], len(range(0, len(ours.k_buffers), ages.step))
        assert counted[-1][-2] == layers * heads * sum(job.kv_len - job.start - job.keep for job in done)
    assert counted[0] == counted[1]
    # All but slot 0, which padding may write.
    for actual, expected in zip(memory(runs[0]), memory(runs[1]), strict=True):
        is_table = actual is runs[0].tables.positions or actual is runs[0].tables.importance
        actual, expected = (t[:, 1:] if is_table else t[1:] for t in (actual, expected))
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_store_query_inside_a_cuda_graph():
    cache = torch.full((33, 8, 128), 7.0, dtype=torch.bfloat16, device="cuda")
    q = torch.zeros(16, 12, 128, dtype=torch.bfloat16, device="cuda")
    rows = torch.zeros(16, dtype=torch.int64, device="cuda")
    twins.store_query(q[:, :8], rows, cache)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        twins.store_query(q[:, :8], rows, cache)
    rows.copy_(torch.tensor([5, 0, 32, 1] + [0] * 12))
    q.copy_(torch.randn(16, 12, 128))
    graph.replay()
    for row, source in ((5, 0), (32, 2), (1, 3)):
        assert torch.equal(cache[row], q[source, :8])
    others = [row for row in range(1, 33) if row not in (5, 32, 1)]
    assert (cache[others] == 7.0).all()
