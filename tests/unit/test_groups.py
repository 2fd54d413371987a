"""Tests that share a server run on one worker: `--dist loadgroup` does what `make test` relies on."""

import os

import pytest


@pytest.mark.xdist_group("any")
@pytest.mark.skipif("PYTEST_XDIST_WORKER" not in os.environ, reason="needs several workers, as in `make test`")
def test_groups_are_known_to_the_workers(request):
    assert request.node.nodeid.endswith("@any")
