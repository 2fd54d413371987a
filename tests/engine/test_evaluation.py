"""The evaluation of public benchmarks, against the real server while it compresses."""

import json
import subprocess
import sys

import pytest
from harness import ROOT, environment
from test_server import zipage

pytest.importorskip("math_verify")
pytestmark = pytest.mark.xdist_group("server")


def test_a_dataset_against_a_running_server(url, tmp_path):
    """Twice: the second time everything is there already."""
    data, out, before = tmp_path / "data.jsonl", tmp_path / "out", zipage(url)["compressions"]
    data.write_text("".join(json.dumps({"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"}) + "\n" for n in (2, 3)))
    command = [sys.executable, "-m", "benchmarks.accuracy", "--dataset", "gsm8k", "--data", str(data), "--url", url, "--n", "2",
               "--max-tokens", "200", "--out", str(out)]
    for _ in range(2):
        done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    (row,) = json.loads((out / "summary.json").read_text())["rows"]
    assert row["mode"].startswith("zipage:") and row["replies"] == 4 and row["refused"] == 0
    assert zipage(url)["compressions"] - before == row["compressions"] > 0
