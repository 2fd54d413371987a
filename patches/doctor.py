"""The checks behind `python -m zipage_sglang doctor`: what a start would run into, without starting anything."""

from __future__ import annotations

import importlib.metadata
import os
import platform

import torch

from zipage_patches import contract, install

GROUP = "sglang.srt.plugins"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _entry_point() -> list[str]:
    names = [e.name for e in importlib.metadata.entry_points(group=GROUP)]
    if "zipage" not in names:
        return ["the plugin's entry point is not installed: pip install zipage-sglang"]
    allowed = [n.strip() for n in os.environ.get("SGLANG_PLUGINS", "").split(",") if n.strip()]
    if allowed and "zipage" not in allowed:
        return [f"SGLANG_PLUGINS={os.environ['SGLANG_PLUGINS']} leaves the plugin out: add zipage to it"]
    return []


def _model(model_path: str, flags: list[str]) -> list[str]:
    """What a server start with this model and these flags would refuse."""
    from sglang.srt.server_args import prepare_server_args

    device = [] if torch.cuda.is_available() or "--device" in flags else ["--device", "cpu"]
    try:
        args = prepare_server_args(["--model-path", model_path, *device, "--enable-zipage", *flags])
        args.check_server_args()
    except SystemExit as stop:
        return [str(stop.code)]
    except Exception as error:  # whatever stops the server is what the user wants to know
        return [f"{type(error).__name__}: {error}"]
    return []


def run(model_path: str | None, flags: list[str]) -> int:
    """Prints a report; returns 0 when a start would get past every check, else 1."""
    for package in ("zipage-sglang", "sglang", "torch", "triton", "flashinfer-python"):
        print(f"{package:18s} {_version(package)}")
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none (CPU: for development only)"
    print(f"{'python':18s} {platform.python_version()}\n{'GPU':18s} {gpu}")

    found = _entry_point()
    targets = contract.used(install.stage1_targets() + contract.STAGE2 + contract.CALLS)
    broken = contract.problems(targets)
    print(f"{'SGLang functions':18s} {len(targets) - len(broken)} of {len(targets)} as in {contract.release()}")
    found += broken
    if not found:
        from sglang.srt.plugins import load_plugins

        load_plugins()
        found += install.missing(install.stage1_targets())
    if not found and model_path:
        found += _model(model_path, flags)
        print(f"{'model':18s} {model_path}: {'refused' if found else 'accepted'}")
    for line in found:
        print(f"PROBLEM: {line}")
    print("not able to serve with --enable-zipage" if found else "ready: add --enable-zipage to the server's command")
    return 1 if found else 0
