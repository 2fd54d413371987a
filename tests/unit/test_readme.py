"""The README's flags table says what the code does."""

import dataclasses
import re
from pathlib import Path

from zipage_sglang.config import PRESETS, ZipageConfig

README = (Path(__file__).parents[2] / "README.md").read_text()
ROWS = dict(re.findall(r"^\| `--zipage-([a-z-]+)`[^|]*\| ([^|]+?) \|", README, re.MULTILINE))


def test_every_knob_is_there_with_its_default():
    defaults = {f.name.replace("lam", "lambda").replace("_", "-"): f.default for f in dataclasses.fields(ZipageConfig)}
    assert ROWS["preset"] == "none"
    written = {name: text.strip("`") for name, text in ROWS.items() if name != "preset"}
    assert written == {name: str(value) for name, value in defaults.items()}


def test_presets_are_named():
    assert all(f"`{name}`" in README for name in PRESETS)


def test_commands_exist():
    """Modules that the README runs with `python -m`, and the files that it names, are there."""
    root = Path(__file__).parents[2]
    ours = [m for m in re.findall(r"python -m ([a-z_.]+)", README) if m.split(".")[0] in ("zipage_sglang", "benchmarks")]
    assert len(ours) >= 3
    for module in ours:
        path = root / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for target in re.findall(r"make (demo|test-full|test|venv)", README):
        assert re.search(rf"^{target}:", (root / "Makefile").read_text(), re.MULTILINE), target
