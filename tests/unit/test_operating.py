"""docs/operating.md says what the code does: series, limits, names of the file's arrays."""

import json
import re
from pathlib import Path

from trace_cases import random_trace

from zipage_sglang.trace.writer import Limits

TEXT = (Path(__file__).parents[2] / "docs" / "operating.md").read_text()


def test_the_metrics_table_is_what_is_registered():
    from zipage_patches.telemetry import SERIES

    rows = re.findall(r"^\| `(zipage:\w+)` \| (\w+) \| (.+) \|$", TEXT, re.MULTILINE)
    assert rows == [(s.name + ("_total" if s.kind == "counter" else ""), s.kind, s.help) for s in SERIES]
    known = {name for name, _, _ in rows}
    assert set(re.findall(r"zipage:\w+", TEXT)) <= known


def test_the_dashboard_shows_every_series_and_no_other():
    from zipage_patches.telemetry import SERIES

    panels = json.loads((Path(__file__).parents[2] / "docs" / "grafana.json").read_text())["panels"]
    queries = " ".join(target["expr"] for panel in panels for target in panel["targets"])
    shown = {re.sub("_(total|bucket)$", "", name) for name in re.findall(r'"zipage\[:_\](\w+)"', queries)}
    assert shown == {s.name.removeprefix("zipage:") for s in SERIES}


def test_limits_of_traces():
    limits = Limits()
    rows = dict(re.findall(r"^\| ([a-z ]+) \| ([0-9]+)", TEXT, re.MULTILINE))
    assert {name: int(value) for name, value in rows.items()} == {
        "requests traced at a time": limits.requests, "memory of one trace": limits.request_bytes / 2**20,
        "compressions that wait for the thread": limits.pending, "files in the folder": limits.files,
        "bytes in the folder": limits.folder_bytes / 2**30}


def test_arrays_of_the_file(tmp_path):
    import numpy as np

    random_trace()[0].save(tmp_path / "t.npz")
    with np.load(tmp_path / "t.npz") as data:
        assert all(f"`{name}`" in TEXT for name in data.files)
