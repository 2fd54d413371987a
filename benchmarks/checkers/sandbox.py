"""Runs one untrusted Python program with limits, in a process group of its own that is gone when the call returns.

Limits: CPU seconds, address space, threads and processes, file size (driver.py sets them), wall time, a temporary directory, no
environment, no standard input but the given one.  Where `unshare` may (root, or user namespaces), also no network, and a process
namespace, so that what leaves the group dies too; started as root it runs as nobody, who writes only where everybody may.
Elsewhere it can read and write what the caller can: run models that you do not trust in a container.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

DRIVER = Path(__file__).with_name("driver.py")
NOBODY = 65534
_NAMESPACES = ["unshare", "--net", "--pid", "--fork", "--kill-child"]
_UNSHARE_SAYS = "unshare: sigprocmask unblock failed: Invalid argument"  # when what it waits for was killed
_CAPABILITIES = ("inh-caps", "ambient-caps", "bounding-set")
_AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
_BARE = [*_AS_NOBODY, *(f"--{kind}=-all" for kind in _CAPABILITIES)]
# May read everything: for an interpreter in a folder that only root can enter.
_READING = [*_AS_NOBODY, *(f"--{kind}=-all,+dac_read_search" for kind in _CAPABILITIES)]


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds and bytes.  tasks: threads and processes beyond those that the user has already."""

    cpu_seconds: int = 6
    wall_seconds: float = 12.0
    memory: int = 4 << 30
    tasks: int = 64
    file_bytes: int = 16 << 20


@dataclasses.dataclass(frozen=True)
class Run:
    """code: exit status, negative for a signal, None when wall time ran out.  error: the last 2,000 characters of stderr."""

    code: int | None
    output: str
    error: str


def run(source: str, stdin: str = "", call: str | None = None, limits: Limits = Limits()) -> Run:
    """Run `source` as `__main__` with `stdin`.

    call: instead, the name of a function, or of a method of a class Solution, to call with the JSON values of stdin's lines;
    its result is then the output, as JSON, and what it prints is not.
    """
    with tempfile.TemporaryDirectory(prefix="sandbox-", ignore_cleanup_errors=True) as box:
        folder = Path(box)
        work = folder / "work"
        work.mkdir()
        prefix = _prefix()
        uid = NOBODY if "setpriv" in prefix else os.getuid()
        if uid != os.getuid():
            folder.chmod(0o755)
            os.chown(work, uid, uid)
        (folder / "source.py").write_text(source, encoding="utf-8", errors="replace")
        (folder / "stdin").write_text(stdin, encoding="utf-8", errors="replace")
        numbers = dict(dataclasses.asdict(limits), tasks=_tasks_of(uid) + limits.tasks)
        # -S: without the site's start-up hooks, which take longer than most programs; driver.py adds its packages.
        command = [*prefix, sys.executable, "-I", "-S", "-B", str(DRIVER), str(folder / "source.py"), json.dumps(numbers),
                   sysconfig.get_paths()["purelib"], call or ""]
        with (open(folder / "stdin", "rb") as given, open(folder / "stdout", "wb") as out,
              open(folder / "stderr", "wb") as err):
            process = subprocess.Popen(command, stdin=given, stdout=out, stderr=err, cwd=work, env=_environment(work),
                                       start_new_session=True)
            try:
                code = process.wait(limits.wall_seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _kill(process)
        read = lambda name: (folder / name).read_text(encoding="utf-8", errors="replace")
        error = read("stderr")[-2000:].replace(_UNSHARE_SAYS, "killed")
        return Run(code, read("stdout"), error)


def _kill(process: subprocess.Popen):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _environment(work: Path) -> dict:
    """Nothing of the caller's: it may hold keys."""
    return {"PATH": "/usr/bin:/bin", "HOME": str(work), "TMPDIR": str(work), "LANG": "C.UTF-8", "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@functools.cache
def _prefix() -> tuple[str, ...]:
    """The strongest of the ways to isolate a process that works here."""
    if os.getuid() == 0:
        ways = [[*_NAMESPACES, *_BARE], [*_NAMESPACES, *_READING], _BARE, _READING, _NAMESPACES]
    else:
        ways = [[*_NAMESPACES, "--user"]]
    for way in ways:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            subprocess.run([*way, sys.executable, "-I", "-c", "pass"], check=True, timeout=20, capture_output=True,
                           stdin=subprocess.DEVNULL, cwd="/")
            return tuple(way)
    return ()


def isolated() -> bool:
    """Whether programs run without network and in a process namespace here."""
    return "unshare" in _prefix()


def _tasks_of(uid: int) -> int:
    """Threads of a user now: RLIMIT_NPROC counts them all."""
    count = 0
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError, KeyError, ValueError):  # it ended meanwhile
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
            if int(fields["Uid"].split()[0]) == uid:
                count += int(fields["Threads"])
    return count
