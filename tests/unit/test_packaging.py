"""Wheel and source archive hold every module, the entry point, the licence and one version."""

import ast
import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

import zipage_sglang
from zipage_patches.contract import RELEASES

ROOT = Path(__file__).parents[2]
SOURCES = {"zipage_sglang": "zipage_sglang", "kernels": "zipage_kernels", "patches": "zipage_patches"}  # folder: import name


def modules() -> set[str]:
    """Every module of the repository's packages, as a path inside the wheel."""
    return {str(Path(name, path.relative_to(ROOT / folder))) for folder, name in SOURCES.items()
            for path in (ROOT / folder).rglob("*.py")}


def build(tree: Path, kind: str, out: Path) -> Path:
    """kind: wheel or sdist.  In this environment: nothing is downloaded."""
    code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(out)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def archives(tmp_path_factory):
    """(wheel, sdist, wheel built from the sdist) of a copy of what is needed to build them."""
    folder = tmp_path_factory.mktemp("packaging")
    tree = folder / "tree"
    for name in SOURCES:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    (folder / "unpacked").mkdir()
    sdist = build(tree, "sdist", folder)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (again,) = (folder / "unpacked").iterdir()
    (folder / "again").mkdir()
    return build(tree, "wheel", folder), sdist, build(again, "wheel", folder / "again")


def python_files(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}


def test_the_wheel_holds_every_module(archives):
    assert python_files(archives[0]) == modules()


def test_the_source_archive_builds_the_same_wheel(archives):
    wheel, _, again = map(zipfile.ZipFile, (archives[0], archives[0], archives[2]))
    assert sorted(wheel.namelist()) == sorted(again.namelist())
    assert all(wheel.read(n) == again.read(n) for n in wheel.namelist() if n.endswith(".py"))


def test_metadata(archives):
    wheel = zipfile.ZipFile(archives[0])
    info = f"zipage_sglang-{zipage_sglang.__version__}.dist-info"
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert (metadata["Name"], metadata["Version"]) == ("zipage-sglang", zipage_sglang.__version__)
    assert metadata["License-Expression"] == "Apache-2.0"
    assert wheel.read(f"{info}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    (needed,) = [r for r in metadata.get_all("Requires-Dist") if "extra ==" not in r]
    name, releases = re.match(r"(\w+)(.*)", needed).groups()
    accepted = [f"0.5.{n}" for n in range(40) if f"0.5.{n}" in SpecifierSet(releases)]
    assert (name, set(accepted)) == ("sglang", set(RELEASES))
    assert wheel.read(f"{info}/entry_points.txt").decode().split() == [
        "[sglang.srt.plugins]", "zipage", "=", "zipage_sglang.plugin:register"]
    top = {name.split("/")[0] for name in wheel.namelist()}
    assert top == {*SOURCES.values(), info}  # above all no `kernels`


def test_the_version_is_written_once():
    version = zipage_sglang.__version__
    assert re.fullmatch(r"\d+\.\d+\.\d+", version)
    (statement,) = [n for n in ast.parse((ROOT / "zipage_sglang/__init__.py").read_text()).body if isinstance(n, ast.Assign)]
    assert ast.literal_eval(statement.value) == version
    assert f'"{version}"' not in (ROOT / "pyproject.toml").read_text()
    assert f"## [{version}]" in (ROOT / "CHANGELOG.md").read_text()


def test_hooks_of_pre_commit_run_the_pinned_ruff():
    (pinned,) = re.findall(r"^ruff==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert f"rev: v{pinned}\n" in (ROOT / ".pre-commit-config.yaml").read_text()


SMOKE = """
import pathlib, sys
import zipage_kernels.ops, zipage_patches.contract, zipage_sglang
for module in (zipage_kernels.ops, zipage_patches.contract, zipage_sglang):
    assert pathlib.Path(module.__file__).is_relative_to(sys.prefix), module.__file__
"""


@pytest.mark.full
def test_an_installed_wheel_serves(archives, tmp_path):
    """In an environment of its own, over the packages of this one, far from the checkout."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", archives[0]], check=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    # Packages of this environment behind its own, without this one's .pth files: they would bring the editable install along.
    (site / "zz_base.pth").write_text("\n".join(p for p in sys.path if p.endswith("-packages")) + "\n")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}

    def run(*arguments, timeout=400):
        return subprocess.run([python, *map(str, arguments)], cwd=tmp_path, env=environment, timeout=timeout, capture_output=True,
                              text=True)

    done = run("-c", SMOKE)
    assert done.returncode == 0, done.stderr
    model = ROOT / "benchmarks" / "reasoner" / "model"
    done = run("-m", "zipage_sglang", "doctor", "--model-path", model)
    assert done.returncode == 0 and f"zipage-sglang      {zipage_sglang.__version__}" in done.stdout, done.stdout + done.stderr
    (tmp_path / "generate.py").write_text(
        "import sglang as sgl\n"
        "if __name__ == '__main__':\n"
        f"    engine = sgl.Engine(model_path={str(model)!r}, device='cpu', dtype='float32', disable_cuda_graph=True,\n"
        "        skip_tokenizer_init=True, max_total_tokens=2048, enable_zipage=True, zipage_budget=64, zipage_block=32)\n"
        "    engine.generate(input_ids=[[5, 6, 7]], sampling_params=dict(max_new_tokens=120, ignore_eos=True))\n"
        "    print('COMPRESSED', engine.get_server_info()['internal_states'][0]['zipage']['compressions'])\n"
        "    engine.shutdown()\n")
    done = run("generate.py")
    assert "COMPRESSED 1" in done.stdout, done.stdout[-2000:] + done.stderr[-4000:]
