"""A soak's clients notice what is wrong with an answer."""

import pytest

from benchmarks import engines
from benchmarks.reasoner.knobs import make_problems
from benchmarks.soak.__main__ import main
from benchmarks.soak.clients import Clients, Question

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


@pytest.mark.full
def test_soak(tmp_path):
    assert main(["--minutes", "0.4", "--slice-minutes", "0.2", "--settings", "3", "2", "--out", str(tmp_path / "soak.json")]) == 0
