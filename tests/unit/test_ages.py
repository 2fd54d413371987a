"""The ages of evicted tokens, counted one by one here."""

import bisect
import contextlib

import pytest
import torch
from kernel_cases import make_case
from test_compressor import REQUESTS, config_of, jobs_of
from test_pipeline import buffers_of

from zipage_kernels import ops
from zipage_sglang.ages import EDGES, MOST_LAYERS, EvictedAges
from zipage_sglang.compressor import Compressor
from zipage_sglang.policies import make_policy


def counted(case, config, layers):
    """Ages of all that the case's requests lose, by the tables before and after; layers: those that are looked at."""
    buffers, ages = buffers_of(case), []
    before = ops.gather_positions(buffers.positions, case.batch)
    jobs, table = jobs_of(case)
    ages_of = EvictedAges(len(case.k_buffers), torch.device("cpu"))
    compressor = Compressor(buffers, make_policy(config), config, table, ages_of)
    compressor.run(jobs)
    for r, q in enumerate(case.requests):
        kept = buffers.positions[:, case.slots(r)[: q.keep]]
        for layer in layers:
            for head in range(kept.shape[2]):
                had = set(before[r, layer, head, : q.kv_len - q.start].tolist())
                gone = had - set(kept[layer, :, head].tolist())
                assert len(gone) == q.kv_len - q.start - q.keep
                ages += [q.kv_len + q.evicted - 1 - position for position in gone]
    return ages, compressor


@pytest.mark.parametrize("layers, looked_at", [(2, [0, 1]), (4, [0, 1, 2, 3]), (7, [0, 2, 4, 6]), (9, [0, 3, 6])])
def test_every_evicted_token_is_counted_at_its_age(layers, looked_at):
    assert len(looked_at) <= MOST_LAYERS
    case = make_case(REQUESTS, seed=2, layers=layers)
    ages, compressor = counted(case, config_of("zipage"), looked_at)
    totals = compressor.ages.read(contextlib.nullcontext())
    assert totals[:-2] == [bisect.bisect_right(sorted(ages), edge) for edge in EDGES]
    assert totals[-2:] == [len(ages), sum(ages)] and ages


def test_warm_up_and_padding_count_nothing():
    case = make_case(REQUESTS)
    config = config_of("recent")
    compressor = Compressor(buffers_of(case), make_policy(config), config, torch.ones(2, 20, dtype=torch.int32),
                            EvictedAges(2, torch.device("cpu")))
    compressor.warm_up(graphs=False)
    compressor.run([compressor._padding()] * 2)
    assert not compressor.ages.totals.any()
