"""Compressions that begin long after they were planned, as on a GPU whose steps take longer than their planning."""

import pytest
from harness import request, run_engine
from test_oracle import check_tokens, oracle_model, prompts  # noqa: F401 (fixture)

METHOD = dict(budget=64, block=32, window=8, policy="zipage", prefix="compress", passes=3)


@pytest.mark.once
def test_the_next_step_is_planned_before_a_compression_begins(oracle_model, tmp_path):  # noqa: F811
    """Without the probe that reads back what was kept: it would look at what has not happened yet."""
    ids = prompts()
    rounds = [[request(f"r{n}-{i}", ids[i % 4], 150 + 7 * i) for i in range(8)] for n in range(2)]
    run = run_engine(tmp_path, rounds, env=dict(ZIPAGE_LAG=1, ZIPAGE_PROBE_DIR=""), enable_zipage=True,
                     max_total_tokens=1200, **{f"zipage_{k}": v for k, v in METHOD.items()})
    check_tokens(oracle_model, run, sum(rounds, []), METHOD)
    assert run.info["compressions"] > 40 and run.info["passes"] > 40 and run.info["copied_out_slots"] > 0 and run.info["retractions"] == 0 and run.flushed


@pytest.mark.full
def test_rows_that_are_read_late_are_noticed(oracle_model, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("ZIPAGE_MUTATION", "late_rows")
    with pytest.raises(AssertionError, match="r0-"):
        test_the_next_step_is_planned_before_a_compression_begins(oracle_model, tmp_path)
