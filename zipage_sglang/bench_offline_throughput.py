"""`python -m zipage_sglang.bench_offline_throughput`: SGLang's offline throughput bench with the --zipage flags.

The stock module parses its arguments before it loads plugins and so does not know them; here plugins come first.  (With the
stock module, the environment defaults work: ZIPAGE_ENABLE=1 ZIPAGE_BUDGET=1024 ...)
"""

import runpy

if __name__ == "__main__":
    from sglang.srt.plugins import load_plugins

    load_plugins()
    runpy.run_module("sglang.benchmark.offline_throughput", run_name="__main__", alter_sys=True)
