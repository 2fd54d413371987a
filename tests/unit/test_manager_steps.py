"""What the manager does in one step: which requests it looks at, what it compresses together, what it does when that fails."""

import dataclasses

import pytest
import torch
from integer_engine import CONFIG, ManagerMachine, PassesMachine, Request

from zipage_sglang import pipeline
from zipage_sglang.config import ZipageConfig


def test_pipeline_runs_once_per_step_and_configuration_however_many_are_due(monkeypatch):
    machine = ManagerMachine()
    calls = []
    compress = pipeline.compress
    monkeypatch.setattr(pipeline, "compress", lambda batch, *rest: calls.append(batch.size) or compress(batch, *rest))
    for _ in range(3):
        machine.batch.reqs.append(Request(5, 0))
    machine.decode(CONFIG.cap + 1)
    assert calls == [3]
    other, longer = dataclasses.replace(CONFIG, recency=0.25), Request(5, 0)
    machine.batch.reqs = [Request(5, 0, other), longer, Request(5, 0, other), Request(5, 0, None)]
    machine.decode(CONFIG.cap + 1)
    assert calls == [3, 2, 1] and machine.batch.reqs[3].kv == 5 + CONFIG.cap + 1


def test_the_manager_looks_at_requests_that_are_due_only():
    """Whatever the size of the batch: a step without an event costs no look."""
    machine = ManagerMachine()
    machine.batch.reqs += [Request(5 + n % 3, 0) for n in range(3)]
    looks = []
    kv_len = machine.engine.kv_len
    machine.engine.kv_len = lambda req: looks.append(req) or kv_len(req)
    machine.manager.step(machine.batch)
    assert len(looks) == 3
    for _ in range(CONFIG.cap - CONFIG.window - 1):
        for req in machine.batch.reqs:
            req.kv, req.true_len = req.kv + 1, req.true_len + 1
        machine.manager.step(machine.batch)
    assert len(looks) == 3


def test_a_request_that_is_not_to_be_compressed_is_never_looked_at_again_nor_remembered():
    machine = ManagerMachine()
    machine.batch.reqs += [Request(5, 0, None), Request(6, 0, None)]
    looks = []
    machine.engine.kv_len = lambda req: looks.append(req) or req.kv
    machine.decode(3 * CONFIG.cap)
    machine.batch.reqs.append(Request(7, 0, None))  # another batch
    machine.decode(1)
    assert not looks and not machine.manager.watch._booked


def test_a_request_that_comes_back_at_once_is_seen_again():
    machine = ManagerMachine()
    machine.batch.reqs.append(Request(5, 0))
    machine.decode(1)
    machine.engine.leave(machine.batch, [], [0])
    machine.prefill_again()
    machine.decode(CONFIG.cap + CONFIG.window)
    assert machine.batch.reqs[0].zipage.compressed


def test_a_state_that_somebody_else_made_is_booked_all_the_same():
    machine = ManagerMachine()
    machine.batch.reqs.append(Request(5, 0))
    machine.engine.new_state(machine.batch.reqs[0])
    machine.decode(CONFIG.cap + 1)
    assert machine.batch.reqs[0].zipage.compressed


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_failed_compression_is_recovered_from_by_a_single_rank_only(ranks, monkeypatch):
    """Ranks decide alike only by what they all know; a failure of one is not among it."""
    machine = ManagerMachine()
    machine.engine.tp_size = ranks
    machine.batch.reqs.append(Request(5, 0))
    machine.decode(CONFIG.cap)

    def fail(*args):
        raise torch.OutOfMemoryError("no workspace")

    monkeypatch.setattr(pipeline, "compress", fail)
    if ranks > 1:
        with pytest.raises(torch.OutOfMemoryError):
            machine.decode(1)
        return
    machine.decode(1)
    assert len(machine.engine.retracted) == 1 and not machine.batch.reqs and machine.manager.stats.failures == 1


def test_a_pass_that_fails_forgets_the_windows_before_it():
    """It may have added to some of them already."""
    machine = PassesMachine()
    config, compressor, jobs = machine.config, machine.manager.compressor, []
    machine.batch.reqs = [Request(5, 0, dataclasses.replace(config, spread=1)) for _ in range(2)]
    score, run = compressor.score, compressor.run

    def failing(scored, rows):
        jobs.append([(job.seen, job.windows) for job in scored])
        if len(jobs) == 2:
            raise RuntimeError("no memory")
        score(scored, rows)

    compressor.score = failing
    compressor._enqueue = machine.enqueue  # its check wants all windows
    compressor.run = lambda due, rows: jobs.append([(job.seen, job.windows) for job in due]) or run(due, rows)
    machine.decode(config.cap + 2)
    first = config.cap - 2 * config.window
    assert jobs == [[(0, 0)] * 2, [(first, 1)] * 2, [(0, 0)] * 2]
    assert machine.manager.stats.failures == 2 and machine.manager.stats.passes == 2 and not machine.engine.retracted


def test_requests_that_start_together_do_not_score_together():
    config = ZipageConfig(budget=64, block=64, window=8)

    class Machine(ManagerMachine):
        slots = 16

    Machine.config = config
    machine = Machine()
    machine.batch.reqs = [Request(5, 0, config) for _ in range(16)]
    scored = []
    machine.manager.compressor._enqueue = lambda jobs, snapshot, scoring: scored.append((scoring, len(jobs)))
    machine.decode(config.cap + 3 * config.block)
    passes, compressions = ([n for scoring, n in scored if scoring is what] for what in (True, False))
    assert max(compressions) == 1 and max(passes) == 2, "16 requests, 16 steps, windows of 8"
    assert sum(compressions) == machine.manager.stats.compressions >= 3 * 16
    assert sum(passes) == 7 * sum(compressions) + sum(r.zipage.windows for r in machine.batch.reqs)
