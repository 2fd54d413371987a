"""Programs in the sandbox: right, wrong, and hostile ones."""

import dataclasses
import os
import time

import pytest

from benchmarks.checkers import code, sandbox
from benchmarks.checkers.code import Case
from benchmarks.datasets.problem import Problem

LIMITS = sandbox.Limits(cpu_seconds=1, wall_seconds=5, memory=1 << 30)
ADD = [Case("1 2\n", "3"), Case("5 6", "11\n")]
METHOD = [Case("[1, 2]\n3", "[6, true]", "f")]


def check(source: str, cases=ADD, limits=LIMITS):
    return code.check(Problem("0", [], cases), f"Here:\n```python\n{source}\n```", limits)


@pytest.mark.parametrize("source", [
    "a, b = map(int, input().split())\nprint(a + b)",
    "print(sum(map(int, sys.stdin.read().split())), '\\n')",
    "def main():\n    print(float(sum(map(int, input().split()))))\nif __name__ == '__main__':\n    main()",
    "print(sum(map(int, input().split())))\nexit()",
])
def test_right(source):
    assert check(source).score == 1.0


@pytest.mark.parametrize("source, note", [
    ("print(3)", "test 2 of 2: wrong output"),
    ("print(4)", "test 1 of 2: wrong output"),
    ("print(3)\nprint(3)", "test 1 of 2: wrong output"),
    ("print(3.0000001)", "test 1 of 2: wrong output"),
    ("pass", "test 1 of 2: wrong output"),
    ("print(3)\n1 / 0", "test 1 of 2: ZeroDivisionError: division by zero"),
    ("print(3", "test 1 of 2: SyntaxError: '(' was never closed"),
    ("print(3)\nexit(1)", "test 1 of 2: exit status 1"),
])
def test_wrong(source, note):
    verdict = check(source)
    assert (verdict.score, verdict.note) == (0.0, note)


def test_functions():
    assert check("class Solution:\n    def f(self, a: List[int], b):\n        print('noise')\n        return sum(a) + b, True", METHOD).score == 1
    assert check("def f(a, b):\n    return [sum(a) + b, True]", METHOD).score == 1
    assert check("def f(a, b):\n    return [sum(a) + b, 1]", [Case("[1, 2]\n3", "[6, 2]", "f")]).note.endswith("wrong result")
    assert check("def f(a):\n    return 1", [Case("0", "true", "f")]).note.endswith("wrong result")
    assert check("def g(a, b):\n    return 1", METHOD).score == 0
    assert check("def f(a, b):\n    return {1}", METHOD).score == 0  # not JSON


def test_runs_away():
    """Loops, sleeps, swallowed interrupts: ended in time."""
    start = time.monotonic()
    assert check("while True: pass").note.endswith("out of CPU time")
    quick = sandbox.Limits(cpu_seconds=1, wall_seconds=1, memory=1 << 30)
    assert check("import time\nwhile True:\n    try: time.sleep(9)\n    except BaseException: pass", limits=quick).note.endswith("after 1 s")
    assert time.monotonic() - start < 12


def test_takes_too_much():
    assert check("x = bytearray(10 << 30)\nprint(3)").note.endswith("MemoryError")
    assert check("open('big', 'wb').write(b'x' * (100 << 20))\nprint(3)").note.endswith("File too large")
    assert check("print('x' * (100 << 20))").note.endswith("File too large")


@pytest.mark.skipif(not sandbox.isolated(), reason="root without namespaces is not counted")
def test_number_of_processes():
    """Bounded, so that a broken sandbox does not take the machine along."""
    forks = "import os, time\nfor n in range(100):\n    try:\n        if os.fork() == 0: time.sleep(60)\n    except OSError: break\nprint(n)"
    assert 1 <= int(sandbox.run(forks, limits=dataclasses.replace(LIMITS, tasks=32)).output) <= 32


@pytest.mark.skipif(not sandbox.isolated(), reason="no namespaces here")
def test_forks_end():
    """A child that leaves the process group ends with it."""
    run = sandbox.run("import os, time\nprint(os.getcwd(), flush=True)\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)", limits=LIMITS)
    folder = os.path.dirname(run.output.strip()).encode()
    assert run.code == 0 and folder and not [p for p in os.listdir("/proc") if p.isdigit() and folder in _command(p)]


def _command(pid: str) -> bytes:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()
    except OSError:  # it ended meanwhile
        return b""


def test_leaves_nothing_and_sees_nothing(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    run = sandbox.run("import os\nopen('note', 'w').write('x')\nprint(os.getcwd(), os.environ.get('HF_TOKEN'))", limits=LIMITS)
    folder, token = run.output.split()
    assert run.code == 0 and token == "None" and not os.path.exists(folder)


@pytest.mark.skipif(not sandbox.isolated(), reason="no namespaces here")
def test_no_network():
    run = sandbox.run("import socket\nsocket.create_connection(('127.0.0.1', 9), 1)", limits=LIMITS)
    assert "unreachable" in run.error


@pytest.mark.skipif(os.getuid() != 0 or not sandbox.isolated(), reason="drops rights only where it has them")
def test_no_rights(tmp_path):
    target = tmp_path / "file"
    target.write_text("before")
    tmp_path.chmod(0o755)
    run = sandbox.run(f"import os\nprint(os.getuid())\nopen({str(target)!r}, 'w').write('after')", limits=LIMITS)
    assert run.output == f"{sandbox.NOBODY}\n" and run.code != 0 and target.read_text() == "before"


def test_judges_output_as_a_judge_would():
    assert code.same_output("1 2 \n3\n\n", "1 2\n3")
    assert code.same_output("1.50 2", "1.5 2.0")
    assert not code.same_output("1 2", "1 2 3") and not code.same_output("1\n2", "1 2") and not code.same_output("yes", "YES")
    assert not code.same_result("", "1") and code.same_result("1.0", "1")
