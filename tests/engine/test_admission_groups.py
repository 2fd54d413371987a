"""A full pool whose room gathers before somebody is admitted: fewer prefills, the same tokens, and nobody waits for long."""

import json
import random

import pytest
from harness import request, run_engine

PROMPT, BUDGET, BLOCK, MOST, GROUP = 24, 48, 16, 40, 3
FIT = 9
POOL = FIT * (PROMPT + BUDGET + BLOCK + 1)
ENGINE = dict(enable_zipage=True, zipage_budget=BUDGET, zipage_block=BLOCK, zipage_window=8, zipage_admit_every=MOST,
              max_total_tokens=POOL)


def requests(count):
    rng = random.Random(3)
    found = [request(f"g{i}", [1, 4] + [rng.randrange(8, 320) for _ in range(PROMPT - 2)], rng.randint(80, 160)) for i in range(count)]
    found[0]["params"]["max_new_tokens"] = 240
    return found


def admissions(passes):
    """Requests of each prefill while a group of them waits, the first of an empty pool aside."""
    return [len(line["admitted"]) for line in passes if line["admitted"] and line["running"] and line["waiting"] >= GROUP]


def waits(passes):
    """(steps, whether the first that waits fits, whom SGLang admits) at the end of each row of held passes."""
    found, row = [], 0
    for line in passes:
        if row and not line["held"]:
            found.append((row, line["fits"], line["admitted"]))
        row = row + 1 if line["held"] else 0
    return found


@pytest.mark.parametrize("engine", [
    dict(),
    pytest.param(dict(disable_overlap_schedule=True, disable_radix_cache=True), marks=pytest.mark.full),
    pytest.param(dict(page_size=4, chunked_prefill_size=32), marks=pytest.mark.full),
    pytest.param(dict(zipage_async_steps=2), marks=pytest.mark.full),
    pytest.param(dict(max_running_requests=8), marks=pytest.mark.full),
    pytest.param(dict(enable_priority_scheduling=True), marks=pytest.mark.full),
], ids=lambda engine: "-".join(engine) or "default")
def test_a_full_pool_admits_in_groups(tmp_path, engine):
    everybody = requests(24)
    singly, alone = ([{**r, "rid": f"{how}-{r['rid']}"} for r in everybody] for how in ("single", "alone"))
    run = run_engine(tmp_path, [everybody, singly, *([r] for r in alone[-2:])], env=dict(ZIPAGE_GROUP=GROUP), **ENGINE | engine)
    passes = [json.loads(line) for line in (tmp_path / "passes.jsonl").read_text().splitlines()]
    assert [len(ids) for ids in run.ids()] == [r["params"]["max_new_tokens"] for r in everybody]
    assert run.ids(0) == run.ids(1) and run.ids(0)[-2:] == [run.output(r["rid"]) for r in alone[-2:]]
    assert run.info["retractions"] == 0 and run.flushed

    single, grouped = (admissions([line for line in passes if line["single"] == mode]) for mode in (True, False))
    print(f"admissions {single} -> {grouped}, waits {waits(passes)}")
    assert len(single) >= 8 and sum(single) >= 8
    if "chunked_prefill_size" in engine:  # a prefill takes one of them: nobody waits for company
        assert run.info["admissions_held"] == 0 and not waits(passes)
        return
    assert 1.5 * len(grouped) <= len(single) and 1.5 * sum(grouped) / len(grouped) >= GROUP - 1
    assert run.info["admissions_held"] == sum(line["held"] for line in passes)
    assert all(steps <= MOST and (admitted or not fits) for steps, fits, admitted in waits(passes))
    assert sum(fits for _, fits, _ in waits(passes)) >= 3


@pytest.mark.full
def test_groups_without_end_are_noticed(tmp_path, monkeypatch):
    monkeypatch.setenv("ZIPAGE_MUTATION", "endless_groups")
    with pytest.raises(AssertionError):
        test_a_full_pool_admits_in_groups(tmp_path, {})
