"""What an operator sees through a real Prometheus: every series, the right numbers, and a dashboard whose queries all answer."""

import concurrent.futures
import json
import math
import re
from pathlib import Path

import pytest
from harness import MODEL
from prometheus import Prometheus, series
from test_telemetry import PROMPT, generate

pytestmark = pytest.mark.xdist_group("server")
DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
LENGTHS = (150, 161, 200, 260)
AGES = series("zipage:evicted_age_tokens_bucket")
BLOCK = 32  # of the server's flags


@pytest.fixture(scope="module")
def seen(url, tmp_path_factory):
    """(Prometheus, {series, and upper edge of ages: increase}, meta_info["zipage"] of the answers in between)."""
    from zipage_patches.telemetry import SERIES

    names = [s.name + suffix for s in SERIES for suffix in SUFFIXES[s.kind] if s.kind != "gauge"]

    def totals():
        prometheus.scrape()
        found = {name: sum(value for labels, value in prometheus.query(series(name)) if labels.get("le", "+Inf") == "+Inf") for name in names}
        return found | {float(labels["le"]): value for labels, value in prometheus.query(f"sum by (le) ({AGES})")}

    with Prometheus(url, tmp_path_factory.mktemp("prometheus")) as prometheus:
        before = totals()
        with concurrent.futures.ThreadPoolExecutor(len(LENGTHS)) as pool:
            replies = list(pool.map(lambda n: generate(url, n).json()["meta_info"]["zipage"][0], LENGTHS))
        after = totals()
        yield prometheus, {name: after[name] - before.get(name, 0) for name in after}, replies


def test_every_series_is_scraped(seen):
    from zipage_patches.telemetry import SERIES

    prometheus, _, _ = seen
    names = {"zipage:" + name[7:] for name in prometheus.get("label/__name__/values") if name.startswith(("zipage:", "zipage_"))}
    created = {name for name in names if name.endswith("_created")}  # prometheus_client's own, where it is not told otherwise
    assert names - created == {s.name + suffix for s in SERIES for suffix in SUFFIXES[s.kind]}


def test_increases_are_what_the_answers_say(seen):
    prometheus, grown, replies = seen
    compressions, evicted = (sum(r[key] for r in replies) for key in ("compressions", "evicted_tokens"))
    assert compressions == 0 + 1 + 2 + 4 and evicted == BLOCK * compressions
    assert grown["zipage:compressions_total"] == compressions and grown["zipage:evicted_tokens_total"] == evicted
    # Budget and block are whole pages of 16, but a prompt of 52 tokens is not: a compression frees from the next page on.
    freed = 52 + 160 - (52 + 128 + 12)
    assert grown["zipage:freed_slots_total"] == compressions * freed and grown["zipage:freed_pages_total"] == compressions * 2
    assert grown["zipage:resident_tokens_count"] == grown["zipage:true_tokens_count"] == len(LENGTHS)
    assert grown["zipage:resident_tokens_sum"] == sum(r["kv_len"] for r in replies)
    assert grown["zipage:true_tokens_sum"] == len(LENGTHS) * len(PROMPT) + sum(LENGTHS)
    assert 0 < grown["zipage:compression_seconds_total"] < grown["zipage:host_seconds_total"] + 1
    for name in ("retractions", "failures", "held_back_seconds", "parked", "parked_seconds", "copied_out_slots"):
        assert grown[f"zipage:{name}_total"] == 0, name


def test_ages_of_evicted_tokens(seen):
    """`recent` keeps the latest 128 of 160: each compression evicts ages 128 to 159, alike in all layers and heads."""
    prometheus, grown, replies = seen
    model = json.loads((MODEL / "config.json").read_text())
    layers = model["num_hidden_layers"]
    entries = sum(r["evicted_tokens"] for r in replies) * len(range(0, layers, -(-layers // 4))) * model["num_key_value_heads"]
    assert grown["zipage:evicted_age_tokens_count"] == entries
    assert grown["zipage:evicted_age_tokens_sum"] == entries * (128 + 159) / 2
    assert (grown[64], grown[128], grown[256]) == (0, entries / BLOCK, entries)  # other tests may have used the server before


def test_rates(seen):
    """rate() per second over the whole test, extrapolated by Prometheus, is about what was counted."""
    prometheus, grown, _ = seen
    assert prometheus.value(f"increase({series('zipage:compressions_total')}[5m])") >= grown["zipage:compressions_total"]
    seconds = prometheus.value(f"sum(rate({series('zipage:compression_seconds_total')}[5m]))")
    assert 0 < seconds < 1


def test_every_panel_answers(seen):
    prometheus, _, _ = seen
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for query in queries:
        values = prometheus.query(query.replace("$__rate_interval", "1m").replace("$instance", ".*"))
        assert len(values) == 1 and not math.isnan(values[0][1]), query
    (variable,) = (v["query"]["query"] for v in dashboard["templating"]["list"] if v["name"] == "instance")
    selector = re.fullmatch(r"label_values\((.*), instance\)", variable)[1]
    assert len(prometheus.get("label/instance/values", **{"match[]": selector})) == 1
