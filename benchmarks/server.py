"""One `sglang.launch_server` in its own process group, gone for certain when the block that started it ends."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

PR_SET_PDEATHSIG = 1  # linux/prctl.h


class ServerFailed(RuntimeError):
    """The server ended, or was not ready in time; the message ends with the last lines of its log."""


class Server:
    """`with Server(flags, log_path) as server:` waits until requests are answered and stops the server at the end.

    flags: launch_server flags without host and port (a free port on the loopback interface is chosen).
    progress: called about twice a second while it starts, with the seconds so far and the log's last line.
    Raises ServerFailed.
    """

    def __init__(self, flags: list[str], log_path: Path, progress=lambda seconds, line: None, start_seconds: float = 600):
        self.flags, self.log_path, self.progress, self.start_seconds = flags, Path(log_path), progress, start_seconds
        self.port = _free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen | None = None

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", str(self.port), *self.flags]

    def __enter__(self) -> Server:
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        env = {"OMP_NUM_THREADS": "1", **os.environ}  # threads that fight for two cores stall the CPU engine
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                            env=env, start_new_session=True, preexec_fn=_die_with_parent)
        try:
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc):
        self.stop()

    def _wait_ready(self):
        start = time.monotonic()
        while not self._answers():
            seconds = time.monotonic() - start
            if self.process.poll() is not None:
                raise ServerFailed(f"the server ended with code {self.process.returncode}\n{self.last_lines(15)}")
            if seconds > self.start_seconds:
                raise ServerFailed(f"the server was not ready after {seconds:.0f} s\n{self.last_lines(15)}")
            self.progress(seconds, self.last_lines(1))
            time.sleep(0.5)

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=2) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):  # not listening yet, or 503 until the warm-up request is through
            return False

    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def last_lines(self, n: int) -> str:
        return "\n".join(self.log().splitlines()[-n:])

    def stop(self):
        """Kill the whole process group: a polite end takes SGLang over ten seconds, and there is nothing to save."""
        if self.process is None:
            return
        with _ignore_interrupts():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


def exit_on_sigterm():
    """Let SIGTERM unwind the stack as Ctrl-C does, so that `with` blocks end what they started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def _free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def _die_with_parent():
    """In the child: the server ends even if this process is killed outright (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def _ignore_interrupts():
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(s, signal.SIG_IGN) for s in signals]
    try:
        yield
    finally:
        for s, handler in zip(signals, before):
            signal.signal(s, handler)
