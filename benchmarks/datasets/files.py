"""Rows of a dataset as dicts: from a local file, or by name from the Hugging Face hub (the extra `eval`)."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.datasets.problem import DataError

EXTRA = "pip install -e .[eval]"


def read_rows(path: Path) -> list[dict]:
    """Rows of a .jsonl, .json (a list of objects) or .parquet file.  Raises DataError."""
    path = Path(path)
    readers = {".jsonl": _jsonl, ".json": _json, ".parquet": _parquet}
    if path.suffix not in readers:
        raise DataError(f"{path}: must end in .jsonl, .json or .parquet")
    try:
        rows = readers[path.suffix](path)
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from None
    except ValueError as error:  # json.JSONDecodeError and pyarrow.ArrowInvalid are both
        raise DataError(f"{path}: {error}".splitlines()[0]) from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path}: must be a non-empty list of objects")
    return rows


def _jsonl(path: Path) -> list[dict]:
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines if line.strip()]


def _json(path: Path) -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))


def _parquet(path: Path) -> list[dict]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"parquet needs pyarrow: {EXTRA}, or give --data a .jsonl file") from None
    return pyarrow.parquet.read_table(path).to_pylist()


def hub_rows(name: str, split: str) -> list[dict]:
    """Rows of a hub dataset; `owner/name:config` names a configuration.  Raises DataError."""
    try:
        from datasets import load_dataset
    except ImportError:
        raise DataError(f"{name}: the hub needs the package `datasets`: {EXTRA}, or give --data FILE") from None
    repo, _, config = name.partition(":")
    try:
        return [dict(row) for row in load_dataset(repo, config or None, split=split)]
    except Exception as error:  # of datasets, huggingface_hub, fsspec or httpx, by cause
        raise DataError(_offline(name, error)) from None


def hub_file(name: str, file: str) -> Path:
    """A file of a hub dataset, in the hub's cache.  Raises DataError."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise DataError(f"{name}: the hub needs the package `huggingface_hub`: {EXTRA}, or give --data FILE") from None
    try:
        return Path(hf_hub_download(name, file, repo_type="dataset"))
    except Exception as error:  # as above
        raise DataError(_offline(f"{name}/{file}", error)) from None


def _offline(what: str, error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0][:120]
    return f"{what}: not to be had from the hub ({type(error).__name__}: {reason}); give --data FILE, or another --hub NAME"
