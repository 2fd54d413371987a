"""Other ways to start or use an engine: each must end up compressed."""

import json
import os
import subprocess
import sys

import httpx
import pytest
from harness import MODEL, PROBE, environment
from test_server import PROBLEM, chat, zipage

from benchmarks.server import Server

METHOD = ["--zipage-budget", "96", "--zipage-block", "32", "--zipage-window", "8"]
CPU = ["--model-path", str(MODEL), "--device", "cpu", "--attention-backend", "torch_native", "--disable-cuda-graph",
       "--dtype", "float32", "--max-total-tokens", "4096"]


@pytest.mark.xdist_group("server")
def test_frontend_program_against_the_server(url):
    import sglang as sgl

    @sgl.function
    def solve(s, question):
        s += question
        s += sgl.gen("answer", max_tokens=600, temperature=0, stop="<|eos|>")

    before = zipage(url)["compressions"]
    states = solve.run_batch([{"question": PROBLEM.text}] * 2, backend=sgl.RuntimeEndpoint(url))
    assert all(PROBLEM.check(s["answer"]) for s in states)
    assert zipage(url)["compressions"] > before


def bench(module, tmp_path, flags, **env):
    """The offline bench on four random prompts of 260 output tokens; returns the probe's compressions."""
    words = " ".join(["loop"] * 40)
    chat_file = tmp_path / "conversations.json"  # the bench takes its warm-up prompts from a ShareGPT file
    chat_file.write_text(json.dumps([{"conversations": [{"value": words}, {"value": words}]}] * 20))
    command = [sys.executable, "-m", module, *CPU, "--dataset-name", "random", "--dataset-path", str(chat_file),
               "--num-prompts", "4", "--random-input", "32", "--random-output", "260", "--random-range-ratio", "1",
               "--result-filename", str(tmp_path / "result.jsonl"), *flags]
    done = subprocess.run(command, env=environment(ZIPAGE_PROBE_DIR=tmp_path, **env), capture_output=True, text=True,
                          timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    kept = tmp_path / "kept.jsonl"
    return kept.read_text().splitlines() if kept.exists() else []


def test_offline_bench_with_flags(tmp_path):
    assert len(bench("zipage_sglang.bench_offline_throughput", tmp_path, ["--enable-zipage", *METHOD])) >= 8


@pytest.mark.full
def test_stock_offline_bench_with_environment_defaults(tmp_path):
    env = dict(ZIPAGE_ENABLE=1, ZIPAGE_BUDGET=96, ZIPAGE_BLOCK=32, ZIPAGE_WINDOW=8)
    assert len(bench("sglang.benchmark.offline_throughput", tmp_path, [], **env)) >= 8


@pytest.mark.full
def test_sglang_serve(tmp_path):
    class Serve(Server):
        @property
        def command(self):
            return [os.path.join(os.path.dirname(sys.executable), "sglang"), "serve", "--host", "127.0.0.1", "--port",
                    str(self.port), *self.flags]

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(PROBE))
        with Serve([*CPU, "--enable-zipage", *METHOD], tmp_path / "log.txt") as server:
            body = chat(PROBLEM, max_tokens=260)
            assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=300).status_code == 200
            assert zipage(server.url)["compressions"] >= 3


@pytest.mark.full
def test_doctor(capsys):
    def doctor(*args, **env):
        return subprocess.run([sys.executable, "-m", "zipage_sglang", "doctor", *args], env=environment(**env),
                              capture_output=True, text=True, timeout=120)

    good = doctor("--model-path", str(MODEL))
    assert good.returncode == 0 and "ready" in good.stdout and "accepted" in good.stdout
    refused = doctor("--model-path", str(MODEL), "--speculative-algorithm", "NGRAM")
    assert refused.returncode == 1 and "--speculative-algorithm NGRAM" in refused.stdout
    hidden = doctor(SGLANG_PLUGINS="another")
    assert hidden.returncode == 1 and "SGLANG_PLUGINS=another leaves the plugin out" in hidden.stdout
