"""Traces: what is recorded is what was kept, it survives the file, ranks join, and no folder fills up."""

import os
import threading
import types

import numpy as np
import pytest
import torch
from kernel_cases import make_case
from test_compressor import REQUESTS, config_of, jobs_of
from test_pipeline import buffers_of
from trace_cases import HEADS, KEEP, LAYERS, random_trace

from zipage_sglang.compressor import Compressor
from zipage_sglang.policies import make_policy
from zipage_sglang.trace.file import SUFFIX, TraceError, load, merge
from zipage_sglang.trace.recorder import ATTRIBUTE, Recorder
from zipage_sglang.trace.writer import Limits, Writer, file_name


@pytest.mark.parametrize("start, compressions", [(5, 4), (0, 1), (0, 9)])
def test_kept_positions_and_scores_come_back(tmp_path, start, compressions):
    trace, kept, importance = random_trace(start, compressions, seed=compressions)
    trace.save(tmp_path / "a.npz")
    trace = load(tmp_path / "a.npz")
    assert trace.compressions == compressions and trace.info["rid"] == "known" and trace.token_ids[1] == 101
    for n, (positions, values) in enumerate(zip(kept, importance), start=1):
        for layer in range(LAYERS):
            for head in range(HEADS):
                assert trace.kept(n, layer, head).tolist() == positions[layer][head]
        share, scores = trace.share(n), trace.scores[n - 1].astype(float)
        for j in range(len(share)):
            holders = [v for (_, _, p), v in values.items() if p == start + j]
            assert share[j] == pytest.approx(len(holders) / (LAYERS * HEADS))
            assert np.isnan(scores[j]) if not holders else scores[j] == pytest.approx(np.mean(holders), rel=2e-3)
        assert np.isnan(scores[len(share) :]).all()


def test_a_policy_without_scores_leaves_none():
    assert random_trace(scored=False)[0].scores.size == 0


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 broken", None])
def test_what_is_no_trace_is_named(tmp_path, content):
    path = tmp_path / "x.npz"
    if content is None:
        np.savez(path, other=np.zeros(3))
    else:
        path.write_bytes(content)
    with pytest.raises(TraceError, match="x.npz: not a trace"):
        load(path)
    with pytest.raises(TraceError, match="none.npz"):
        load(tmp_path / "none.npz")


def split(trace, heads):
    """The part of a trace that a rank with these KV heads writes."""
    import dataclasses

    return dataclasses.replace(trace, evicted_at=trace.evicted_at[:, heads], info={**trace.info, "kv_heads": heads})


def test_ranks_join_by_global_head():
    trace = random_trace()[0]
    parts = [split(trace, [1]), split(trace, [0]), split(trace, [1])]
    joined = merge(parts)
    assert np.array_equal(joined.evicted_at, trace.evicted_at) and joined.info["kv_heads"] == [0, 1]
    np.testing.assert_allclose(joined.scores, trace.scores, rtol=1e-3)
    with pytest.raises(TraceError, match="known and other"):
        merge([trace, random_trace(rid="other")[0]])


@pytest.mark.parametrize("rid", ["../../etc/passwd", "a/b", "x" * 500, "", "a b", "\0", ".."])
def test_a_client_cannot_choose_where_its_trace_goes(tmp_path, rid):
    name = file_name(rid, 3)
    assert (tmp_path / name).resolve().parent == tmp_path.resolve() and len(name) < 130
    assert name.endswith("-rank3" + SUFFIX) and name != file_name(rid + "/", 3)


def traces_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_oldest_traces_go_first_and_nothing_else(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    trace = random_trace()[0]
    writer = Writer(tmp_path, Limits(files=3))
    for n in range(5):
        writer.write(f"{n}{SUFFIX}", trace)
        os.utime(tmp_path / f"{n}{SUFFIX}", (n, n))
    assert traces_in(tmp_path) == [f"2{SUFFIX}", f"3{SUFFIX}", f"4{SUFFIX}", "notes.txt"]
    size = (tmp_path / f"4{SUFFIX}").stat().st_size
    writer = Writer(tmp_path, Limits(folder_bytes=2 * size))
    writer.write(f"5{SUFFIX}", trace)
    assert traces_in(tmp_path) == [f"4{SUFFIX}", f"5{SUFFIX}", "notes.txt"]
    Writer(tmp_path, Limits(folder_bytes=size - 1)).write(f"6{SUFFIX}", trace)
    assert traces_in(tmp_path) == [f"4{SUFFIX}", f"5{SUFFIX}", "notes.txt"]


class Request(types.SimpleNamespace):
    """The fields of SGLang's request that the recorder reads."""


def traced(tmp_path, limits=Limits(), policy="zipage"):
    """A recorder beside a compressor on a random case, and a function that compresses and records request r."""
    case, config = make_case(REQUESTS, seed=3), config_of(policy)
    buffers = buffers_of(case)
    if not make_policy(config).stores_importance:
        buffers.importance = None
    jobs, table = jobs_of(case)
    compressor = Compressor(buffers, make_policy(config), config, table)
    recorder = Recorder(tmp_path, config, buffers, table, "model", 0, limits)

    def compress(r, req, first=True):
        job = jobs[r]
        compressor.run([job])
        slots = recorder.slots(job.row, job.start, job.start + job.keep)
        recorder.compressed(req, slots, job.start, job.kv_len + job.evicted, first)
        kept = buffers.positions[:, case.slots(r)[: job.keep]]  # [L, K, H]
        return [[sorted(kept[layer, :, head].tolist()) for head in range(kept.shape[2])] for layer in range(len(kept))]

    return recorder, jobs, compress


def request(rid, tokens):
    return Request(rid=rid, origin_input_ids=list(range(tokens)), output_ids=[7, 8], finished_reason=None)


@pytest.mark.parametrize("policy", ["zipage", "recent"])
def test_the_recorder_reads_what_the_compression_left(tmp_path, policy):
    recorder, jobs, compress = traced(tmp_path, policy=policy)
    req = request("r/1", jobs[0].kv_len)
    kept = compress(0, req)
    recorder.ended(req)
    recorder.writer.jobs.join()
    (path,) = tmp_path.iterdir()
    trace = load(path)
    assert [[trace.kept(1, l, h).tolist() for h in range(2)] for l in range(2)] == kept
    assert trace.token_ids.tolist() == [*range(jobs[0].kv_len), 7, 8] and trace.start == jobs[0].start
    assert trace.info["complete"] and (trace.scores.size > 0) == (policy == "zipage")
    assert not recorder.live and ATTRIBUTE not in req.__dict__


def test_a_request_of_its_own_policy_has_its_own_config_and_scores(tmp_path):
    """The table holds scores of others where a request's policy remembers none."""
    recorder, jobs, compress = traced(tmp_path)
    req = request("own", 40)
    req.zipage_config = config_of("recent")
    compress(0, req)
    recorder.ended(req)
    recorder.writer.jobs.join()
    trace = load(next(tmp_path.iterdir()))
    assert trace.info["config"]["policy"] == "recent" and trace.scores.size == 0


def test_few_requests_at_a_time_and_a_retracted_one_makes_room(tmp_path):
    recorder, jobs, compress = traced(tmp_path, Limits(requests=2))
    reqs = [request(f"r{n}", 40) for n in range(4)]
    for r in range(3):
        compress(r, reqs[r])
    assert [ATTRIBUTE in r.__dict__ for r in reqs] == [True, True, False, False]
    recorder.dropped(reqs[0])
    recorder.dropped(reqs[3])  # was never traced
    recorder.writer.jobs.join()
    compress(2, reqs[2], first=False)  # its first compression was not recorded
    assert ATTRIBUTE not in reqs[2].__dict__
    compress(3, reqs[3])
    for req in reqs:
        recorder.ended(req)
    recorder.writer.jobs.join()
    assert traces_in(tmp_path) == [file_name("r1", 0), file_name("r3", 0)] and not recorder.live


def test_a_slow_disk_ends_traces_and_holds_nobody_up(tmp_path):
    recorder, jobs, compress = traced(tmp_path, Limits(pending=2))
    gate, req = threading.Event(), request("slow", 40)
    recorder.writer.jobs.put(gate.wait)  # what the thread is busy with
    compress(3, req)
    for _ in range(6):
        slots = recorder.slots(jobs[3].row, jobs[3].start, jobs[3].start + KEEP)
        recorder.compressed(req, slots, jobs[3].start, jobs[3].kv_len, False)
    assert recorder.writer.jobs.qsize() <= 3 and not req.__dict__[ATTRIBUTE].complete
    gate.set()
    recorder.ended(req)
    recorder.writer.jobs.join()
    assert not load(next(tmp_path.iterdir())).info["complete"]


def test_large_traces_end_early(tmp_path):
    recorder, jobs, compress = traced(tmp_path, Limits(request_bytes=500))
    req = request("large", 40)
    compress(2, req)
    for n in (100, 101):
        recorder.compressed(req, recorder.slots(jobs[2].row, 0, KEEP), 0, n, False)
        recorder.writer.jobs.join()
    assert req.__dict__[ATTRIBUTE].true_lens == [43] and not req.__dict__[ATTRIBUTE].complete


def test_an_error_ends_the_trace_without_a_file(tmp_path, caplog):
    """A compression that is not recorded must not be mistaken for the next one."""
    recorder, jobs, compress = traced(tmp_path)
    req = request("wrong", 40)
    slots = recorder.slots(jobs[3].row, jobs[3].start, jobs[3].start + KEEP)
    recorder.compressed(req, slots, jobs[3].start, KEEP + 2, True)  # positions beyond the true length
    compress(3, req)
    recorder.ended(req)
    recorder.writer.jobs.join()
    assert not traces_in(tmp_path) and not recorder.live and "a trace is lost" in caplog.text


def test_a_folder_that_is_gone_costs_the_trace_only(tmp_path, caplog):
    folder = tmp_path / "gone"
    recorder, jobs, compress = traced(folder)
    req = request("lost", 40)
    compress(0, req)
    recorder.ended(req)
    recorder.writer.jobs.join()
    assert "a trace is lost" in caplog.text and not recorder.live and not folder.exists()


def test_a_copy_that_finds_no_memory_ends_the_trace_only(tmp_path, monkeypatch):
    recorder, jobs, compress = traced(tmp_path)
    req = request("r", 40)
    compress(0, req)
    monkeypatch.setattr(recorder, "_copy", lambda *args: (_ for _ in ()).throw(torch.OutOfMemoryError("none left")))
    slots = recorder.slots(jobs[0].row, jobs[0].start, jobs[0].start + KEEP)
    recorder.compressed(req, slots, jobs[0].start, jobs[0].kv_len + 5, False)
    recorder.ended(req)
    recorder.writer.jobs.join()
    trace = load(next(tmp_path.iterdir()))
    assert trace.compressions == 1 and not trace.info["complete"]
