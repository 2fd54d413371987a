"""The whole path against a server that only pretends: ask, keep, stop, go on, check, print."""

import dataclasses
import http.server
import json
import signal
import threading

import pytest

from benchmarks import evaluation, evaluation_options, scoring
from benchmarks.datasets import gsm8k
from benchmarks.datasets.problem import Problem, Verdict
from benchmarks.replies import OtherRun, Reply, ReplyFile
from zipage_sglang.config import ZipageConfig

pytest.importorskip("math_verify")
HEADER = dict(model="m", temperature=0.6)
PROBLEMS = [Problem(str(i), [{"role": "user", "content": f"question {i}"}], str(i)) for i in range(3)]


def reply(i, sample=0, **more):
    return Reply(str(i), sample, PROBLEMS[i].digest, **more)


def test_replies_resume(tmp_path):
    path = tmp_path / "x.jsonl"
    with ReplyFile(path, HEADER) as file:
        assert len(file.missing(PROBLEMS, 2)) == 6
        file.add(reply(1, text="line\u2028separator\nand é"))
        file.add(reply(2, error="too long"))
        assert len(path.read_bytes().splitlines()) == 3  # on disk at once: a killed run keeps it
        file.end_session({"replies": 2})
    with path.open("a") as out:
        out.write('{"problem": "0", "sample": 0, "dig')  # killed here
    with ReplyFile(path, HEADER) as file:
        assert [(p.id, s) for p, s in file.missing(PROBLEMS, 1)] == [("0", 0), ("2", 0)]  # a refused one is asked again
        assert file.sessions == [{"replies": 2}]
        file.add(reply(0))
        file.add(reply(2, text="ok"))
    with ReplyFile(path, HEADER) as file:
        assert file.missing(PROBLEMS, 1) == [] and len(file.missing(PROBLEMS, 2)) == 3
        assert [r.text for r in file.of(PROBLEMS, 1)] == ["", "line\u2028separator\nand é", "ok"]


def test_replies_of_another_run_are_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    with ReplyFile(path, HEADER) as file:
        file.add(reply(0))
    with pytest.raises(OtherRun, match="temperature = 0.6, not 0.0"), ReplyFile(path, HEADER | {"temperature": 0.0}):
        pass
    with ReplyFile(path, HEADER) as file, pytest.raises(OtherRun, match="problem 0 had another prompt"):
        file.missing([Problem("0", [{"role": "user", "content": "other"}], "0")], 1)


def test_scores_are_kept(tmp_path):
    calls = []

    class Counting:
        parallel_checks = True

        @staticmethod
        def check(problem, text):
            calls.append(problem.id)
            return Verdict(float(text == problem.reference), text)

    path, replies = tmp_path / "s.jsonl", [reply(0, text="0"), reply(1, text="7"), reply(2, error="no")]
    for workers in (1, 2):
        verdicts = scoring.score(Counting, PROBLEMS, replies, path, workers)
        assert [verdicts[str(i), 0].score for i in range(3)] == [1.0, 0.0, 0.0]
    assert sorted(calls) == ["0", "1"]
    scoring.score(Counting, PROBLEMS, [reply(0, text="0"), reply(1, text="1")], path)
    assert sorted(calls) == ["0", "1", "1"]  # another text of the same sample
    scoring.score(Counting, PROBLEMS, replies, path, fresh=True)
    assert len(calls) == 5


class Pretender(http.server.BaseHTTPRequestHandler):
    """Answers question i with i, the second with nonsense; refuses what is in `refused`; breaks down after `patience` answers."""

    config, refused, patience, asked = None, (), 10**9, []

    def do_GET(self):
        states = [{"zipage": dict(compressions=3 * len(self.asked), evicted_tokens=0, retractions=0, config=self.config)}]
        self._send(200, dict(internal_states=states if self.config else [{}], model_path="m"))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        number = body["messages"][-1]["content"].split()[-1]
        if number in self.refused:
            return self._send(400, {"message": "prompt too long"})
        if len(self.asked) >= self.patience:
            return self._send(500, {"message": "broken"})
        self.asked.append((number, body))
        text = f"\\boxed{{{number if number != '1' else 'x'}}}"
        self._send(200, dict(id="1", object="chat.completion", created=0, model="m", usage=dict(
            prompt_tokens=9, completion_tokens=400, total_tokens=409), choices=[dict(
                index=0, finish_reason="stop", message=dict(role="assistant", content=text, reasoning_content="\\boxed{9}"))]))

    def _send(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def server(monkeypatch):
    handler = type("Handler", (Pretender,), dict(asked=[]))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        handler.url = f"http://127.0.0.1:{httpd.server_port}"
        monkeypatch.setattr(evaluation, "exit_on_sigterm", lambda: None)
        monkeypatch.setattr(evaluation.provenance, "describe", lambda: dict(git_commit="test"))
        yield handler
        httpd.shutdown()


def run(server, tmp_path, *more):
    """Exit status and summary.json of one evaluation of four gsm8k-like problems, two samples each."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(dict(question=f"question {i}", answer=f"#### {i}")) + "\n" for i in range(4)))
    with pytest.raises(SystemExit) as end:
        evaluation.main(["--dataset", "gsm8k", "--data", str(data), "--url", server.url, "--n", "2", "--concurrency", "1",
                         "--out", str(tmp_path / "out"), *more])
    path = tmp_path / "out/summary.json"
    return end.value.code, json.loads(path.read_text())["rows"] if path.exists() else None


def test_both_modes(server, tmp_path, capsys):
    assert run(server, tmp_path)[0] == 0
    body = server.asked[0][1]
    assert (body["temperature"], body["top_p"], body["max_tokens"]) == (0.6, 0.95, 32768)
    assert body["messages"][0] == {"role": "system", "content": gsm8k.SYSTEM} and len(server.asked) == 8
    server.config = dataclasses.asdict(ZipageConfig(budget=256, block=64))
    code, (full, zipage) = run(server, tmp_path)
    assert code == 0 and (full["mode"], zipage["mode"]) == ("full", "zipage:budget=256,block=64")
    assert (full["score"], zipage["score"], zipage["difference"]) == (0.75, 0.75, 0.0)  # the thoughts' box does not count
    assert (full["compressed"], zipage["compressed"], zipage["compressions"]) == (None, 1.0, 24)
    assert "zipage:budget=256,block=64" in capsys.readouterr().out
    assert run(server, tmp_path)[0] == 0 and len(server.asked) == 16  # nothing is asked twice


def test_other_sampling_is_not_compared(server, tmp_path):
    assert run(server, tmp_path)[0] == 0
    server.config = dataclasses.asdict(ZipageConfig(budget=256, block=64))
    assert "has another temperature than this comparison" in run(server, tmp_path, "--temperature", "0")[0]


def test_goes_on_after_a_failure(server, tmp_path):
    server.patience = 3
    code, rows = run(server, tmp_path)
    assert "what was answered is kept" in code and rows is None
    server.patience = 10**9
    code, (row,) = run(server, tmp_path)
    assert code == 0 and row["replies"] == 8 and len(server.asked) == 8


def test_interrupt_keeps_what_there_is(server, tmp_path, monkeypatch):
    add, count = ReplyFile.add, []

    def stop_at_three(self, reply):
        add(self, reply)
        count.append(1)
        if len(count) == 3:
            signal.raise_signal(signal.SIGINT)  # as Ctrl-C does: asyncio then ends its tasks in order

    with monkeypatch.context() as patch:
        patch.setattr(ReplyFile, "add", stop_at_three)
        code, (row,) = run(server, tmp_path)
    assert (code, row["replies"], row["problems"]) == (130, 3, 3)
    code, (row,) = run(server, tmp_path)
    assert (code, row["replies"]) == (0, 8) and len(server.asked) in (8, 9)  # one may have been under way


def test_refused_requests_count_as_wrong(server, tmp_path, capsys):
    server.refused = ("2",)
    code, (row,) = run(server, tmp_path)
    assert (code, row["score"], row["refused"], row["replies"]) == (0, 0.5, 2, 8)
    assert "2 requests were refused" in capsys.readouterr().out


def test_errors_in_one_line(server, tmp_path):
    assert "--url http://127.0.0.1:9:" in run(server, tmp_path, "--url", "http://127.0.0.1:9")[0]
    with pytest.raises(SystemExit) as end:
        evaluation.main(["--dataset", "gsm8k", "--data", "no.jsonl", "--model", "m"])
    assert end.value.code == "error: no.jsonl: No such file or directory"


@pytest.mark.parametrize("argv", [[], ["--model", "m", "--modes", "fast"], ["--model", "m", "--prompts", "x"],
                                  ["--model", "m", "--data", "x", "--hub", "y"]])
def test_options_that_do_not_fit(argv):
    with pytest.raises(SystemExit) as end:
        evaluation_options.parse(["--dataset", "gsm8k", *argv], "")
    assert end.value.code == 2


def test_option_defaults():
    args = evaluation_options.parse(["--dataset", "aime24", "--model", "org/name"], "")
    assert (args.n, args.max_tokens, str(args.out)) == (32, 32768, ".eval/aime24-name") and "boxed" in args.system
    assert evaluation_options.mode_name(None) == "full" and evaluation_options.mode_name(dataclasses.asdict(ZipageConfig())) == "zipage"
