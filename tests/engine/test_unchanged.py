"""With the flag off, and with a budget that is never reached, outputs are the same, token for token."""

import pytest
from harness import request, run_engine
from test_oracle import prompts


@pytest.mark.once
def test_nothing_changes_until_a_budget_is_reached(tmp_path):
    rounds = [[request(f"u{n}-{i}", p, 120) for i, p in enumerate(prompts())] for n in range(2)]
    off = run_engine(tmp_path / "off", rounds)
    unused = run_engine(tmp_path / "unused", rounds, enable_zipage=True)
    assert off.info is None
    assert unused.info["compressions"] == 0 and unused.info["config"]["budget"] == 2048
    assert off.ids(0) == unused.ids(0) and off.ids(1) == unused.ids(1)
    assert [o["cached"] for o in off.rounds[1]] == [o["cached"] for o in unused.rounds[1]]
