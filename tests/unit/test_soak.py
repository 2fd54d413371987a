"""A soak's clients notice what is wrong with an answer, and what is known is never lost."""

import asyncio
import json

import pytest

from benchmarks import engines
from benchmarks.reasoner.knobs import make_problems
from benchmarks.soak import __main__ as soak
from benchmarks.soak.__main__ import main
from benchmarks.soak.clients import Clients, Question, ServerEnded
from benchmarks.soak.settings import LOADS, SETTINGS

EXPECTED = [7, 8, 9, engines.EOS]


def ask(ids, most=40, reason="stop", retractions=0, compare=True, may_abort=False):
    question = Question(make_problems("loop", 100, 1, "short")[0], 40, EXPECTED)
    clients = Clients("", [question], 100, compare, 0)
    reply = {"output_ids": ids, "meta_info": {"finish_reason": {"type": reason}, "completion_tokens": len(ids),
                                              "num_retractions": retractions}}
    clients._check("rid", question, most, reply, may_abort)
    return clients.totals


def test_what_is_expected_is_right():
    totals = ask(EXPECTED)
    assert (totals.answered, totals.compared, totals.wrong) == (1, 1, [])
    assert ask(EXPECTED[:2], most=2, reason="length").wrong == []
    assert ask(EXPECTED[:1], reason="abort", may_abort=True).aborted == 1


@pytest.mark.parametrize("reply", [
    dict(ids=[7, 8, 1, engines.EOS]),                      # somebody else's token
    dict(ids=[7, 8], reason="abort"),                      # nobody asked for that
    dict(ids=[7, 8, 9], reason="length"),                  # too short
    dict(ids=[7, 8, 9], reason="stop"),                    # no end
    dict(ids=[7, 7], reason="abort", may_abort=True),
])  # fmt: skip
def test_what_is_not_is_wrong(reply):
    assert len(ask(**reply).wrong) == 1


def test_a_retracted_request_may_answer_otherwise():
    totals = ask([7, 8, 1, engines.EOS], retractions=1)
    assert (totals.compared, totals.retracted, totals.recomputed[1], totals.wrong) == (0, 1, 1, [])


def test_a_server_that_ends_is_noticed_at_once():
    clients = Clients("http://127.0.0.1:9", [Question(make_problems("loop", 100, 1, "short")[0], 40)], 100, False, 0)
    with pytest.raises(ExceptionGroup) as failed:
        asyncio.run(clients.run(2, 3, 3, lambda: False))
    assert [type(error) for error in failed.value.exceptions] == [ServerEnded]


def test_query_slots_are_as_short_under_every_load():
    slots = [[flags[flags.index("--zipage-query-slots") + 1] for flags in (setting.server_flags(LOADS[d]) for d in ("cpu", "cuda"))]
             for setting in SETTINGS if setting.slots]
    assert slots == [["4", "21"], ["2", "10"]]


RUN = dict(seconds=60.0, requests=10, answered=8, aborted=1, left=1, output_tokens=100, compared=5, retracted=2, steady=[3, 4],
           recomputed=[1, 2], wrong=[], zipage=dict(compressions=7), log="")


@pytest.mark.parametrize("end", [KeyboardInterrupt(), soak.Interrupted(RUN | dict(wrong=["lost"])), None])
def test_whoever_is_stopped_keeps_what_is_known(end, tmp_path, monkeypatch, capsys):
    runs = iter([RUN, end or RUN, RUN])

    def slice_of(*args):
        if isinstance(run := next(runs), BaseException):
            raise run
        return run

    monkeypatch.setattr(soak, "soak", slice_of)
    monkeypatch.setattr(soak.provenance, "describe", lambda: dict(git_commit="abc", device="CPU", time="now"))
    monkeypatch.setattr(soak.signal, "signal", lambda *_: None)  # of the process that runs the tests
    out = tmp_path / "soak.json"
    assert main(["--minutes", "2", "--slice-minutes", "1", "--settings", "0", "3", "--out", str(out)]) == (130 if end else 0)
    kept = json.loads(out.read_text())["runs"]
    cut = isinstance(end, soak.Interrupted)
    assert [(r["setting"], r.get("interrupted", False)) for r in kept] == [("default", False), ("beside two steps", cut)][: 1 if end and not cut else 2]
    capsys.readouterr()
    assert main(["--merge", str(out), str(out)]) == int(cut)
    text = capsys.readouterr().out
    n = 2 * len(kept)
    assert f"{10 * n} requests in {n} minutes, {7 * n} compressions, {2 * n} retracted, {2 * n} given up, {5 * n} compared" in text
    assert "6/8 (41, 93)" in text and ("2 slices cut off" in text and "lost" in text) == cut
    out.write_text("{")
    assert main(["--merge", str(out)]) == 1


@pytest.mark.full
def test_soak(tmp_path):
    assert main(["--minutes", "0.4", "--slice-minutes", "0.2", "--settings", "3", "2", "--out", str(tmp_path / "soak.json")]) == 0
