"""One real server for all tests that talk HTTP."""

import pytest
from harness import CHECKS, MODEL

from benchmarks.server import Server

FLAGS = ["--model-path", str(MODEL), "--device", "cpu", "--dtype", "float32", "--disable-cuda-graph",
         "--max-total-tokens", "4096", "--enable-zipage", "--zipage-budget", "128", "--zipage-block", "32",
         "--zipage-spread", "1", "--zipage-policy", "recent", "--page-size", "16", "--enable-priority-scheduling",
         "--grammar-backend", "outlines", "--enable-cache-report", "--enable-metrics",
         "--sleep-on-idle"]  # its scheduler would keep a core busy between two tests


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        for name, value in CHECKS.items():
            patch.setenv(name, value)
        with Server(FLAGS, tmp_path_factory.mktemp("server") / "log.txt") as server:
            yield server


@pytest.fixture(scope="session")
def url(server):
    return server.url
