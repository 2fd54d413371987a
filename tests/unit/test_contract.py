"""What the contract says of a release, and what `python -m zipage_patches.diff` finds between two."""

import importlib.util
import pathlib
import re
import shutil

import pytest
from zipage_patches import contract, diff

SITE = pathlib.Path(importlib.util.find_spec("sglang").origin).parents[1]
ALL = contract.STAGE1 + contract.CPU + contract.STAGE2 + contract.CALLS
RETRACT = "sglang.srt.managers.schedule_batch.ScheduleBatch.retract_decode"


@pytest.fixture
def changed(tmp_path):
    """A copy of the sources of one module, with one method reshaped and another one's code changed."""
    file = pathlib.Path("sglang/srt/managers/schedule_batch.py")
    (tmp_path / file).parent.mkdir(parents=True)
    shutil.copy(SITE / file, tmp_path / file)
    text = (tmp_path / file).read_text()
    for old, new in ((r"def retract_decode\(\s*self", "def retract_decode(self, tomorrow"),
                     (r"self.retraction_count \+= 1", "self.retraction_count += 2")):
        text, count = re.subn(old, new, text)
        assert count == 1
    (tmp_path / file).write_text(text)
    return tmp_path


def test_the_installed_release_fits_one_column():
    """Also the one that its version number names, which the contract itself never asks for."""
    import sglang

    assert contract.problems(ALL) == []
    assert contract.release() == sglang.__version__
    others = [name for name in contract.RELEASES if name != contract.release()]
    for name in others:
        assert len(contract._differences(ALL, name)) > 5, "another release's column must not fit as well"


def test_sources_and_imports_agree():
    """The parser finds what importing finds: every target, with the same parameters."""
    release = diff.Release(str(SITE))
    for target in contract.used(ALL):
        node = release.find(target.name)
        assert node is not None, target.name
        expected = target.expected(contract.release())
        if expected and hasattr(node, "args"):
            names = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            names += [a.arg for a in (node.args.vararg, node.args.kwarg) if a]
            assert sorted(names) == sorted(expected), target.name


def test_diff_of_a_release_with_itself_is_empty(capsys):
    assert diff.main([str(SITE), str(SITE), "--bodies"]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_diff_shows_parameters_and_code(changed, capsys):
    old, new = diff.Release(str(SITE)), diff.Release(str(changed))
    reset = "sglang.srt.managers.schedule_batch.Req.reset_for_retract"
    (block,) = diff.compare(old, new, [RETRACT, reset])
    assert block.startswith(RETRACT) and "old (self" in block and "new (self, tomorrow" in block
    blocks = diff.compare(old, new, [reset], bodies=True)
    assert len(blocks) == 1 and "-self.retraction_count += 1" in blocks[0] and "+self.retraction_count += 2" in blocks[0]
    assert diff.compare(old, new, ["sglang.srt.managers.schedule_batch.Req.finished"], bodies=True) == []
    assert diff.main([str(SITE), str(changed)]) == 1, "most modules are missing there"
    assert "sglang.srt.managers.scheduler.Scheduler.get_new_batch_prefill\n" in capsys.readouterr().out


def test_diff_wants_a_release(tmp_path):
    with pytest.raises(SystemExit, match="holds no sglang/srt"):
        diff.main([str(SITE), str(tmp_path)])
