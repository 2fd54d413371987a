"""Pages that repeat what only SGLang's argument classes and the plan command know."""

import re
import sys

import pytest
from harness import ROOT
from test_flags import plugins  # noqa: F401 (fixture)

from benchmarks.shapes import model_folder
from zipage_patches import contract
from zipage_sglang.cli import main

sys.path.insert(0, str(ROOT / "docs"))
import generate


def test_every_flag_is_there_with_its_help(plugins):  # noqa: F811
    assert generate.part("flags") == generate.flags(), "run python docs/generate.py"


@pytest.mark.skipif(contract.release() != "0.5.17", reason="the page shows a plan for 0.5.17; each release reserves memory its own way")
def test_the_plan_that_is_shown_is_what_the_command_prints(tmp_path, capsys):
    assert main(["plan", "--model-path", str(model_folder("qwen3-8b", tmp_path)), "--gpu", "H200", "--prompt-tokens", "512",
                 "--output-tokens", "8192"]) == 0
    (shown,) = re.findall(r"```text\n(.*?)```", (ROOT / "docs/sizing.md").read_text(), re.DOTALL)
    assert capsys.readouterr().out.endswith(shown)
