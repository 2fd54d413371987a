import importlib

import pytest
import torch
from kernel_cases import Request
from triton_cases import assert_same, both, positions_of

from zipage_kernels import reference
from zipage_kernels import triton as twins

module = importlib.import_module("zipage_kernels.triton.select")  # the package exports a function of the same name


@pytest.fixture(params=["registers", "memory"])
def place(request, monkeypatch):
    if request.param == "memory":
        monkeypatch.setattr(module, "RESIDENT", 16)


def check(case, c, scores):
    positions = positions_of(case)
    on_device = scores.to(c.batch.rows.device), positions.to(c.batch.rows.device), c.batch
    assert_same(twins.select(*on_device), reference.select(scores, positions, case.batch))
    for reserve, sinks in ((3, 2), (0, 0)):
        expected = reference.select_forced(scores, positions, case.batch, reserve, sinks)
        for ours, wanted in zip(twins.select_forced(*on_device, reserve, sinks), expected, strict=True):
            assert_same(ours, wanted)


def test_ties_and_special_values(place):
    case, c = both(layers=2, heads=1)
    positions = positions_of(case)
    rng = torch.Generator().manual_seed(1)
    values = torch.tensor([-torch.inf, -1.0, -0.0, 0.0, 0.5, torch.inf, torch.nan])
    scores = values[torch.randint(len(values), positions.shape, generator=rng)]
    scores[positions < 0] = torch.inf  # whatever padding holds is ignored
    check(case, c, scores)


def test_distinct_scores(place):
    case, c = both(layers=2, heads=1)
    scores = torch.randn(positions_of(case).shape, generator=torch.Generator().manual_seed(2))
    check(case, c, scores)


@pytest.mark.parametrize("value", [0.25, -torch.inf, torch.nan])
def test_all_equal_scores(place, value):
    requests = [Request(kv_len=20, evicted=5, stored=9, keep=7, count=1), Request(kv_len=9, keep=9), Request(kv_len=5, keep=0)]
    case, c = both(requests, layers=1, heads=1)
    check(case, c, torch.full(positions_of(case).shape, value))
