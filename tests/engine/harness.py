"""Engines in subprocesses (a scheduler that fails takes its whole process tree along), with every check switched on."""

import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys

from benchmarks.soak.settings import CHECKS

ROOT = pathlib.Path(__file__).parents[2]
MODEL = ROOT / "benchmarks" / "reasoner" / "model"
PROBE = pathlib.Path(__file__).parent / "probe"

CPU = dict(device="cpu", attention_backend="torch_native", disable_cuda_graph=True, dtype="float32", log_level="info",
           model_path=str(MODEL), skip_tokenizer_init=True, max_total_tokens=8192, random_seed=1)


@dataclasses.dataclass
class Run:
    """What one engine did: outputs per round, what it said to refused requests, the zipage block of each scheduler (info: the first
    one's), the probe's records by request id, and the seconds of each round."""

    requests: list
    rounds: list
    infos: list
    flushed: bool
    kept: dict
    retracted_at: dict
    refusals: list
    seconds: list

    @property
    def info(self):
        return self.infos[0]

    def output(self, rid):
        return next(o["ids"] for rs, os_ in zip(self.requests, self.rounds) for r, o in zip(rs, os_) if r["rid"] == rid)

    def ids(self, n=0):
        return [o["ids"] for o in self.rounds[n]]


class EngineFailed(AssertionError):
    """The engine process ended without a result; the message holds the end of its log."""


def request(rid, input_ids, max_new_tokens, **params):
    return {"rid": rid, "input_ids": list(input_ids),
            "params": {"temperature": 0, "max_new_tokens": max_new_tokens, "ignore_eos": True, **params}}


def environment(**extra):
    env = {**os.environ, "OMP_NUM_THREADS": "1", **CHECKS}
    env["PYTHONPATH"] = os.pathsep.join([str(PROBE), env.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    return {**env, **{k: str(v) for k, v in extra.items()}}


def run_engine(tmp_path, rounds, env=None, timeout=600, refused=(), **engine) -> Run:
    """Start an engine with `engine` over the CPU defaults, run `rounds` and then what must be refused, and read back what happened."""
    tmp_path.mkdir(parents=True, exist_ok=True)
    spec, result = tmp_path / "spec.json", tmp_path / "result.json"
    spec.write_text(json.dumps({"engine": {**CPU, **engine}, "rounds": rounds, "refused": list(refused)}))
    with open(tmp_path / "log.txt", "w") as log:
        process = subprocess.Popen(
            [sys.executable, str(pathlib.Path(__file__).with_name("run_engine.py")), str(spec), str(result)],
            env=environment(**{"ZIPAGE_PROBE_DIR": tmp_path, **(env or {})}), stdout=log, stderr=log,
            start_new_session=True,
        )
    try:
        process.wait(timeout)
    finally:
        with contextlib.suppress(ProcessLookupError):  # an engine that stopped for good leaves its scheduler behind
            os.killpg(process.pid, signal.SIGKILL)
    if process.returncode != 0 or not result.exists():
        raise EngineFailed((tmp_path / "log.txt").read_text()[-6000:])
    data = json.loads(result.read_text())
    kept, retracted = {}, {}
    for line in _lines(tmp_path / "kept.jsonl"):
        kept.setdefault(line["rid"], []).append(line)
    for line in _lines(tmp_path / "events.jsonl"):
        retracted.setdefault(line["rid"], []).append(line["outputs"])
    return Run(rounds, data["rounds"], data["infos"], data["flushed"], kept, retracted, data["refusals"], data["seconds"])


def _lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
