"""The table of a soak, and of several together."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import stats, table

HEADER = ["setting", "s", "requests", "gone", "tokens", "compressions", "retracted", "compared", "right", "right, retracted", "wrong"]


def row(setting: str, runs: list[dict]) -> list[str]:
    """Sums over the runs of one setting.  right: share of the whole answers, with its 95 % interval in per cent."""
    total = lambda key: sum(run.get(key) or 0 for run in runs)

    def share(key: str) -> str:
        right, n = (sum(run.get(key, [0, 0])[i] for run in runs) for i in range(2))
        return f"{right}/{n} ({', '.join(f'{100 * x:.0f}' for x in stats.wilson(right, n))})" if n else "-"

    return [setting, f"{total('seconds'):.0f}", str(total("requests")), str(total("aborted") + total("left")), str(total("output_tokens")),
            str(_compressions(runs)), str(total("retracted")), str(total("compared")), share("steady"), share("recomputed"),
            str(sum(len(run["wrong"]) for run in runs))]  # fmt: skip


def _compressions(runs: list[dict]) -> int:
    return sum((run.get("zipage") or {}).get("compressions", 0) for run in runs)


def show(runs: list[dict]) -> int:
    """Prints a line per setting and one of all; returns how much was wrong."""
    settings: dict[str, list[dict]] = {}
    for run in runs:
        settings.setdefault(run["setting"], []).append(run)
    print(table.render(HEADER, [row(name, some) for name, some in settings.items()]))
    total = lambda key: sum(run.get(key) or 0 for run in runs)
    wrong = sum(len(run["wrong"]) for run in runs)
    cut = sum(bool(run.get("interrupted")) for run in runs)
    print(f"{total('requests')} requests in {total('seconds') / 60:.0f} minutes, {_compressions(runs)} compressions, "
          f"{total('retracted')} retracted, {total('aborted') + total('left')} given up, {total('compared')} compared, {wrong} wrong"
          f"{f', {cut} slices cut off' if cut else ''}")
    return wrong


def merge(paths: list[Path]) -> int:
    """Prints one table of several --out files, where each comes from, and what was wrong; 1 if anything was, or a file is not there."""
    runs, failed = [], False
    for path in paths:
        try:
            record = json.loads(path.read_text())
        except (OSError, ValueError) as error:  # the others count all the same
            failed = True
            print(f"{path.name}: {error}")
            continue
        print(f"{path.name}: {record['git_commit']}, {record['device']}, {record['time']}")
        runs += record["runs"]
        for run in record["runs"]:
            for line in run["wrong"][:10]:
                print(f"  {run['setting']}: {line}")
    return int(show(runs) > 0 or failed)
