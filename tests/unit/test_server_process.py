"""The demo's server process: nothing of it may outlive the block, or the process, that started it."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.server import Server, ServerFailed

HERE = Path(__file__).parent

FAKE_SERVER = """
import http.server, subprocess, sys
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
print("worker", worker.pid, flush=True)

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""

OWNER = """
import signal, sys, time
from pathlib import Path
from benchmarks.server import exit_on_sigterm
sys.path.insert(0, sys.argv[2])
from test_server_process import FakeServer

signal.signal(signal.SIGINT, signal.default_int_handler)  # as on a terminal, even if the tests run in the background
exit_on_sigterm()
with FakeServer([], Path(sys.argv[1])) as server:
    print(server.process.pid, flush=True)
    time.sleep(60)
"""


class FakeServer(Server):
    script = FAKE_SERVER

    @property
    def command(self):
        return [sys.executable, "-c", self.script, str(self.port)]


def gone(pid: int, seconds: float = 10.0) -> bool:
    """Whether `pid` ends within `seconds` (a zombie that its new parent has not reaped yet counts as ended)."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            state = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


def worker_pid(log: str) -> int:
    return int(log.split("worker ")[1].split()[0])


def test_leader_and_worker_end_with_the_block(tmp_path):
    with FakeServer([], tmp_path / "log") as server:
        leader, worker = server.process.pid, worker_pid(server.log())
        assert not gone(leader, 0.2) and not gone(worker, 0.2)
    assert gone(leader) and gone(worker)


def test_an_error_in_the_block_ends_it_too(tmp_path):
    with pytest.raises(ZeroDivisionError), FakeServer([], tmp_path / "log") as server:
        worker = worker_pid(server.log())
        raise ZeroDivisionError
    assert gone(worker)


def test_a_server_that_dies_says_why(tmp_path):
    server = FakeServer([], tmp_path / "log")
    server.script = "import sys; print('no such model'); sys.exit(3)"
    with pytest.raises(ServerFailed, match="code 3\nno such model"):
        server.__enter__()


def test_a_server_that_never_gets_ready_is_killed(tmp_path):
    server = FakeServer([], tmp_path / "log", start_seconds=1.0)
    server.script = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with pytest.raises(ServerFailed, match="not ready after"):
        server.__enter__()
    assert gone(int(server.log()))


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_signals_to_the_owner(tmp_path, sent):
    log = tmp_path / "log"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(log), str(HERE)], stdout=subprocess.PIPE, text=True,
                             stderr=subprocess.DEVNULL, cwd=HERE.parents[1])
    leader = int(owner.stdout.readline())
    worker = worker_pid(log.read_text())
    try:
        owner.send_signal(sent)
        assert owner.wait(10) != 0
        assert gone(leader)
        if sent != signal.SIGKILL:  # then only the leader is told; SGLang's workers watch their parent themselves
            assert gone(worker)
    finally:
        for pid in (leader, worker):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
