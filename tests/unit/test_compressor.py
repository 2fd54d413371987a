import copy
import dataclasses

import pytest
import torch
from kernel_cases import MIXED, Request, make_case
from test_pipeline import buffers_of

from zipage_sglang.compressor import MAX_TOGETHER, Compressor, Job
from zipage_sglang.config import POLICIES, ZipageConfig
from zipage_sglang.pipeline import compress, score
from zipage_sglang.policies import make_policy

REQUESTS = tuple(dataclasses.replace(request, keep=8) for request in MIXED)


def config_of(policy):
    return ZipageConfig(budget=8, block=5, window=3, policy=policy)


def jobs_of(case):
    """The case's requests as jobs, and the row table they refer to: rows in reverse order, garbage behind their ends."""
    size, width = case.batch.rows.shape
    table = torch.full((size + 1, width), 10**6, dtype=torch.int32)
    jobs = []
    for r, q in enumerate(case.requests):
        table[size - r, : q.kv_len] = case.batch.rows[r, : q.kv_len].int()
        query_rows = case.batch.query_rows[r].tolist()
        jobs.append(Job(size - r, q.kv_len, q.start, q.evicted, q.stored, q.keep, q.count, q.seen, q.windows, query_rows))
    return jobs, table


def assert_same_memory(case, expected, first_slot=0):
    for name in ("k_buffers", "v_buffers"):
        for new, old in zip(getattr(case, name), getattr(expected, name), strict=True):
            torch.testing.assert_close(new[first_slot:], old[first_slot:], rtol=0, atol=0, equal_nan=True)
    for name in ("positions", "importance", "seen"):
        new, old = getattr(case.tables, name), getattr(expected.tables, name)
        torch.testing.assert_close(new[:, first_slot:], old[:, first_slot:], rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("policy", POLICIES)
def test_jobs_become_the_batch_they_describe(policy):
    case = make_case(REQUESTS * 3, seed=4)
    assert len(case.requests) > MAX_TOGETHER
    expected, config = copy.deepcopy(case), config_of(policy)
    compress(expected.batch, buffers_of(expected), make_policy(config), config)
    jobs, table = jobs_of(case)
    compressor = Compressor(buffers_of(case), make_policy(config), config, table)
    compressor.run(jobs)
    assert_same_memory(case, expected)
    assert compressor.nan_scores == 0 and compressor.seconds > 0


def test_each_job_is_compressed_by_its_own_configuration():
    """One batch of four configurations leaves the memory that four batches leave."""
    configs = [config_of("zipage"), dataclasses.replace(config_of("zipage"), alpha=0.1, lam=0.9, recency=0.0),
               dataclasses.replace(config_of("recent"), budget=6), config_of("random")]
    requests = [dataclasses.replace(q, keep=configs[i % 4].budget) for i, q in enumerate(REQUESTS * 2)]
    case = make_case(requests, seed=5)
    expected = copy.deepcopy(case)
    jobs, table = jobs_of(case)
    for n, config in enumerate(configs):
        alone = Compressor(buffers_of(expected), make_policy(config), config, table)
        alone.run(jobs[n::4])
    compressor = Compressor(buffers_of(case), make_policy(configs[0]), configs[0], table)
    compressor.run([job._replace(config=configs[i % 4]) for i, job in enumerate(jobs)])
    assert_same_memory(case, expected)


@pytest.mark.parametrize("policy", POLICIES)
def test_rows_that_change_after_the_snapshot_are_compressed_as_they_were(policy):
    case = make_case(REQUESTS * 3, seed=4)
    expected, config = copy.deepcopy(case), config_of(policy)
    compress(expected.batch, buffers_of(expected), make_policy(config), config)
    jobs, table = jobs_of(case)
    compressor = Compressor(buffers_of(case), make_policy(config), config, table)
    snapshot = compressor.snapshot(jobs)
    table.copy_(table.flip(0, 1))
    compressor.run(jobs, snapshot)
    assert_same_memory(case, expected)


def test_groups_are_in_the_order_of_the_jobs_and_of_one_configuration():
    case = make_case([Request(kv_len=17, keep=8)])
    config, other = config_of("recent"), dataclasses.replace(config_of("recent"), recency=0.0)
    compressor = Compressor(buffers_of(case), make_policy(config), config, torch.zeros(1, 20, dtype=torch.int32))
    jobs = [Job(n, 13, 4, 0, 0, 8, 0, 0, 0, [1, 2, 3], (other, None, dataclasses.replace(config))[n % 3]) for n in range(6)]
    assert [[job.row for job in group] for group in compressor._groups(jobs, MAX_TOGETHER)] == [[0, 3], [1, 2, 4, 5]]


def test_nan_scores_are_counted():
    case = make_case([Request(kv_len=17, keep=8)])
    case.k_buffers[0][case.slots(0)[2], 1] = torch.nan
    jobs, table = jobs_of(case)
    config = config_of("attention")
    compressor = Compressor(buffers_of(case), make_policy(config), config, table)
    compressor.run(jobs)
    assert compressor.nan_scores == 17 - config.reserve


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("padding", [False, True])
def test_warm_up_and_padding_touch_the_padding_slot_only(policy, padding):
    case = make_case([Request(kv_len=17, keep=8)])
    before, config = copy.deepcopy(case), config_of(policy)
    compressor = Compressor(buffers_of(case), make_policy(config), config, torch.ones(2, 20, dtype=torch.int32))
    if padding:
        compressor.run([compressor._padding()] * 2)
    else:
        compressor.warm_up(graphs=True)
        assert compressor.seconds == 0, "compiling is not compressing"
    assert_same_memory(case, before, first_slot=1)
    assert compressor.nan_scores == 0


def test_long_rows_share_the_workspace_of_short_ones():
    case = make_case([Request(kv_len=17, keep=8)])
    config = config_of("recent")
    compressor = Compressor(buffers_of(case), make_policy(config), config, torch.zeros(1, 20, dtype=torch.int32))
    lengths = [13] * 11 + [40, 41, 13, 13, 300, 13]
    jobs = [Job(0, n + 4, 4, 0, 0, 8, 0, 0, 0, [1, 2, 3]) for n in lengths]
    groups = compressor._groups(jobs, MAX_TOGETHER)
    assert [job for group in groups for job in group] == jobs and len(groups[0]) == MAX_TOGETHER
    for group in groups:
        longest = max(job.kv_len - job.start for job in group)
        assert len(group) * longest <= MAX_TOGETHER * config.cap or len(group) == 1
    assert [len(group) for group in groups] == [4, 4, 3, 1, 1, 2, 1, 1]


def test_passes_only_score():
    """Rows, keys, values and scores of earlier compressions stay as they are."""
    case = make_case(REQUESTS * 3, seed=4)
    expected, config = copy.deepcopy(case), config_of("zipage")
    score(expected.batch, buffers_of(expected))
    jobs, table = jobs_of(case)
    compressor = Compressor(buffers_of(case), make_policy(config), config, table)
    compressor.score([job._replace(keep=0) for job in jobs])
    assert_same_memory(case, expected)
    assert compressor.seconds > 0 and compressor.nan_scores == 0
