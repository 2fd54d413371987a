"""Where a result file comes from: command line, versions, commit, machine kind."""

from __future__ import annotations

import importlib.metadata
import platform
import subprocess
import sys
import time

PACKAGES = ("zipage-sglang", "sglang", "torch", "triton", "transformers", "flashinfer-python")


def describe() -> dict:
    """JSON-able; git commit is None outside a checkout, with `-dirty` behind it if tracked files differ."""
    import torch  # seconds to import

    return dict(
        command=" ".join(["python -m benchmarks." + _module(), *sys.argv[1:]]),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        python=platform.python_version(),
        packages={name: _version(name) for name in PACKAGES},
        git_commit=commit(),
        device=torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU ({platform.machine()})",
    )


def _module() -> str:
    *_, folder, name = ["", *sys.argv[0].split("/")]
    return folder if name == "__main__.py" else name.removesuffix(".py")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """None outside a checkout."""
    try:
        run = subprocess.run(["git", "describe", "--always", "--abbrev=40", "--dirty"], capture_output=True, text=True,
                             check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return run.stdout.strip()
