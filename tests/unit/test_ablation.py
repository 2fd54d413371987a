"""The ablation's table: pairs are of the same problem, and a variant that is there is not measured again."""

import json

import pytest

from benchmarks import ablation
from benchmarks.reasoner import tasks
from benchmarks.stats import mcnemar


def write(folder, name, right):
    cells = [{"family": family, "outcomes": right} for family in tasks.FAMILIES]
    (folder / f"{name}.json").write_text(json.dumps({"cells": cells, "options": {"budgets": [512], "levels": [2000], "knobs": "default", "n": 4}}))


def test_table(tmp_path, capsys):
    write(tmp_path, "default-default", [True, True, False, False])
    write(tmp_path, "tau-0.04", [True, True, True, False])
    write(tmp_path, "tau-4", [False, True, False, False])
    out = tmp_path / "out.json"
    assert ablation.main(["--knobs", "tau", "--n", "4", "--folder", str(tmp_path), "--out", str(out)]) == 0
    default, low, high = json.loads(out.read_text())["rows"]
    assert (default["mean"], low["mean"], high["mean"]) == (0.5, 0.75, 0.25)
    assert (low["better"], low["worse"], high["better"], high["worse"]) == (4, 0, 0, 4)
    assert low["p"] == high["p"] == pytest.approx(2 / 2**4)
    assert "tau 0.04" in capsys.readouterr().out


def test_a_folder_of_other_runs_is_refused(tmp_path):
    write(tmp_path, "default-default", [True] * 4)
    with pytest.raises(SystemExit, match="budgets"):
        ablation.main(["--knobs", "default", "--n", "4", "--budget", "1024", "--folder", str(tmp_path)])


def test_mcnemar():
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(1, 7) == pytest.approx(2 * (1 + 8) / 2**8)


def test_variants_are_runs_of_the_accuracy_benchmark():
    from benchmarks.accuracy import _arguments

    for knob, value in ablation.names(list(ablation.VARIANTS)):
        _arguments(ablation.VARIANTS[knob][value])
