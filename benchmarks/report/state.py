"""What was measured, in the output folder: one JSON file a unit, written when it is complete, so that a call can end
anywhere."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from pathlib import Path


class OtherOptions(RuntimeError):
    """The folder holds measurements made with other options; the message names them."""


class State:
    """folder/raw/NAME.json: a record a unit; NAME.*.csv: its rows.  Raises OtherOptions."""

    def __init__(self, folder: Path, chosen: dict):
        self.folder, self.raw = folder, folder / "raw"
        path, chosen = folder / "options.json", json.loads(json.dumps(chosen))
        if path.exists():
            before = json.loads(path.read_text())
            changed = [
                f"{k} was {before.get(k)}, is {chosen.get(k)}"
                for k in sorted({*before, *chosen})
                if before.get(k) != chosen.get(k)
            ]
            if changed:
                raise OtherOptions(
                    f"{folder} holds measurements made with other options ({'; '.join(changed)}): give the same, or "
                    "another --out"
                )
        else:
            self.raw.mkdir(parents=True, exist_ok=True)
            write_text(path, json.dumps(chosen, indent=1) + "\n")

    def records(self) -> dict[str, dict]:
        """{unit's name: record}, partial ones included."""
        return {path.stem: json.loads(path.read_text()) for path in sorted(self.raw.glob("*.json"))}

    def done(self, name: str) -> bool:
        path = self.raw / f"{name}.json"
        return path.exists() and not json.loads(path.read_text())["partial"]

    def write(self, name: str, record: dict, **tables: list[dict]):
        """Rows first, the record last: a record that is there is whole.  A partial one does not replace a complete one."""
        if record["partial"] and self.done(name):
            return
        for kind, rows in tables.items():
            write_bytes(self.raw / f"{name}.{kind}.csv.gz", gzip.compress(csv_text(rows).encode(), mtime=0))
        write_text(self.raw / f"{name}.json", json.dumps(record, indent=1) + "\n")

    def rows(self, name: str, kind: str) -> list[dict]:
        """Numbers as float, empty fields as None; [] if there are none."""
        path = self.raw / f"{name}.{kind}.csv.gz"
        if not path.exists():
            return []
        with gzip.open(path, "rt", newline="") as f:
            return [{k: float(v) if v else None for k, v in row.items()} for row in csv.DictReader(f)]

    def forget(self, name: str):
        for path in self.raw.glob(f"{name}.*"):
            if path.name in {f"{name}.json", *(f"{name}.{kind}.csv.gz" for kind in ("steps", "requests", "samples"))}:
                path.unlink()


def csv_text(rows: list[dict]) -> str:
    if not rows:
        return ""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def write_bytes(path: Path, data: bytes):
    """All or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(data)
    os.replace(temporary, path)


def write_text(path: Path, text: str):
    write_bytes(path, text.encode())
