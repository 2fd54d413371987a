"""What turns runs into figures: intervals, log parsing, flags, tables."""

import pytest

from benchmarks import settings, stats, table
from benchmarks.cells import Cell, fill
from benchmarks.device import as_flags
from benchmarks.serverlog import read_log


@pytest.mark.parametrize("right, n, low, high", [
    (0, 10, 0.0, 0.2775),  # Newcombe 1998, table I (method 3), and the closed form at 0 and n right
    (10, 10, 0.7225, 1.0),
    (81, 263, 0.2553, 0.3662),
    (15, 148, 0.0624, 0.1605),
    (0, 20, 0.0, 0.1611),
    (1, 29, 0.0061, 0.1718),
])
def test_wilson(right, n, low, high):
    assert stats.wilson(right, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_ends():
    assert stats.wilson(0, 0) == (0.0, 1.0)
    assert stats.wilson(0, 7)[0] == 0.0 and stats.wilson(7, 7)[1] == 1.0
    with pytest.raises(ValueError):
        stats.wilson(3, 2)


LOG = """\
[2026-01-01 00:00:00] Prefill batch, #new-seq: 1, #new-token: 6, token usage: 0.00, #running-req: 9, #queue-req: 9
[2026-01-01 00:00:01] Decode batch, #running-req: 2, #token: 202, token usage: 0.03, gen throughput (token/s): 2.70, #queue-req: 14
[2026-01-01 00:00:02] Decode batch, #running-req: 5, #token: 300, token usage: 0.05, cuda graph: True, #queue-req: 11
[2026-01-01 00:00:02] KV cache pool is full. Retract requests. #retracted_reqs: 2, #new_tokens_gained: 100, #new_token_ratio: 0.7 -> 0.9
[2026-01-01 00:00:02] KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_tokens_gained: 10
[2026-01-01 00:00:03] Decode batch, #running-req: 3, #token: 250, token usage: 0.04, cuda graph: True, #queue-req: 13
"""


def test_read_log():
    log = read_log(LOG.splitlines())
    assert (log.peak_running, log.running_now, log.waiting_now, log.retractions) == (5, 3, 13, 3)
    assert (log.peak_pool_tokens, log.decode_steps, log.mean_running) == (300, 3, pytest.approx(10 / 3))
    assert read_log([]).mean_running == 0.0


def test_as_flags():
    options = dict(enable_zipage=True, zipage_budget=256, zipage_alpha=0.0, disable_radix_cache=False, port=None)
    assert as_flags(options) == ["--enable-zipage", "--zipage-budget", "256", "--zipage-alpha", "0.0"]


def test_settings_leave_the_plugins_defaults_alone():
    full, *others = settings.make_settings(["zipage", "recent"], [128, 256], block=64, window=None)
    assert full.options == {}
    assert [s.name for s in others] == ["zipage 128", "recent 128", "zipage 256", "recent 256"]
    assert others[0].options == dict(enable_zipage=True, zipage_policy="zipage", zipage_budget=128, zipage_block=64)
    assert settings.make_settings(["recent"], [1], full=False)[0].name == "recent 1"


def test_table_aligns():
    assert table.render(["x", "right"], [["long name", 1]]) == "x          right\n----------------\nlong name      1"


class FakeEngine:
    """Answers the gold text, or nonsense for odd problems; counts two compressions and 10 evicted tokens a request."""

    def __init__(self, gold):
        self.gold, self.requests = gold, 0

    def generate(self, input_ids, sampling_params):
        self.requests += len(input_ids)
        return [{"output_ids": self.gold[tuple(ids)]} for ids in input_ids]

    def get_server_info(self):
        return {"internal_states": [{"zipage": dict(compressions=2 * self.requests, evicted_tokens=10 * self.requests)}]}


def _cells():
    from benchmarks.reasoner.knobs import make_problems

    cells = [Cell(settings.Setting("x"), f, 150, make_problems(f, 150, 5)) for f in ("loop", "chain")]
    gold = {tuple(p.ids()[0]): p.ids()[1] if i % 2 == 0 else [7, 7] for c in cells for i, p in enumerate(c.problems)}
    return cells, FakeEngine(gold)


def test_cells_count_what_the_engine_did():
    cells, engine = _cells()
    fill(cells, engine, concurrency=2, temperature=0.0, deadline=float("inf"))
    for cell in cells:
        record = cell.record()
        assert record["outcomes"] == [True, False, True, False, True]
        assert (record["n"], record["right"], record["truncated"]) == (5, 3, 2)
        assert (record["compressions_per_request"], record["evicted_tokens_per_request"]) == (2, 10)
        assert record["wilson95"] == list(stats.wilson(3, 5))


def test_time_limit_keeps_cells_even(monkeypatch):
    cells, engine = _cells()
    clock = iter(range(1000))
    monkeypatch.setattr("benchmarks.cells.time.monotonic", lambda: next(clock))
    fill(cells, engine, concurrency=2, temperature=0.0, deadline=8)
    assert 0 < len(cells[0].outcomes) < 5
    assert len(cells[0].outcomes) - len(cells[1].outcomes) in (0, 2)
    assert cells[1].record()["n"] == len(cells[1].outcomes)
