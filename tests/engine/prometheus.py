"""A real Prometheus on the loopback interface that scrapes one server, with its own configuration and data folder."""

import shutil
import subprocess
import time

import httpx
import pytest

from benchmarks.server import _die_with_parent, _free_port

CONFIG = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: sglang
    static_configs: [{{targets: ["{target}"]}}]
"""


def series(name, more=""):
    """Selector of a series of this package.  prometheus_client 0.22 and later turn a colon into an underscore for scrapers that ask
    for OpenMetrics without saying how to escape names, as Prometheus 2 does; Prometheus 3 sees the colon."""
    return f'{{__name__=~"{name.replace(":", "[:_]", 1)}"{more}}}'


class Prometheus:
    """`with Prometheus(url of the server, folder) as prometheus:`; skips the test where there is no binary."""

    def __init__(self, server_url, folder):
        self.binary = shutil.which("prometheus")
        if self.binary is None:
            pytest.skip("no prometheus binary here (Debian: apt-get install prometheus)")
        self.folder, self.port = folder, _free_port()
        (folder / "prometheus.yml").write_text(CONFIG.format(target=server_url.removeprefix("http://")))

    def __enter__(self):
        command = [self.binary, f"--config.file={self.folder}/prometheus.yml", f"--storage.tsdb.path={self.folder}/data",
                   f"--web.listen-address=127.0.0.1:{self.port}", "--log.level=warn"]
        with open(self.folder / "prometheus.log", "wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_die_with_parent)
        self.wait(lambda: self.query("up == 1"))
        return self

    def __exit__(self, *exc):
        self.process.kill()
        self.process.wait()

    def get(self, path, **params):
        reply = httpx.get(f"http://127.0.0.1:{self.port}/api/v1/{path}", params=params, timeout=10).json()
        assert reply["status"] == "success", (params, reply)
        return reply["data"]

    def query(self, expression):
        """The instant vector of an expression: [(labels, value)]."""
        return [(r["metric"], float(r["value"][1])) for r in self.get("query", query=expression)["result"]]

    def value(self, expression):
        """The one value of an expression."""
        ((_, value),) = self.query(expression)
        return value

    def scrape(self):
        """Wait for the next two scrapes, so that the values are not older than this call."""
        count, began = "count_over_time(up[1h])", time.time()
        before = self.query(count)
        self.wait(lambda: self.query(count)[0][1] >= before[0][1] + 2 and time.time() > began)

    def wait(self, condition, seconds=60):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "prometheus.log").read_text()[-2000:]
            try:
                if condition():
                    return
            except httpx.TransportError:  # it does not listen yet
                pass
            time.sleep(0.25)
        raise AssertionError((self.folder / "prometheus.log").read_text()[-2000:])
