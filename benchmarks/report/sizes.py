"""What `--size` stands for: model, KV pool, and the parts of the report with their times, in the order in which they are
run."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Size:
    """pool: KV tokens of every server.  budget, block: of zipage modes that do not name one.

    for_all, for_first: (workload, arrivals) that all `modes` run, and that only `first_modes` run.  special: (workload,
    arrivals, mode).  unit_seconds: that one workload runs in one mode, at most.  start_seconds: of a server, expected
    until one was started.  rates: requests a second, each sent for online_seconds, of `online_workload` at online_length
    times its lengths, by first_modes.  by_server: a server does all its units before the next one starts, because starting
    one takes longer than they do; otherwise what is compared comes first, should time be up before the end.  tpot_ms: limit for goodput.  stream_interval: tokens between two messages of a
    request; probes get every token.  scale, length_scale: see `workloads`.
    """

    model: str
    pool: int
    budget: int
    block: int
    modes: tuple[str, ...]
    first_modes: tuple[str, ...]
    for_all: tuple[tuple[str, str], ...]
    for_first: tuple[tuple[str, str], ...]
    special: tuple[tuple[str, str, str], ...] = ()
    scale: float = 1.0
    length_scale: float = 1.0
    unit_seconds: float = 100
    start_seconds: float = 30
    online_workload: str = "amc23"
    online_length: float = 0.5
    rates: tuple[float, ...] = (1.0, 2.0, 4.0)
    online_seconds: float = 60
    tpot_ms: float = 25
    tokens_per_second: float = 5000
    stream_interval: int = 64
    probes: int = 4
    by_server: bool = False


_GPU_MODES = ("full", "zipage", "zipage:budget=1024", "zipage:async_steps=2", "zipage:when=pressure", "full:radix=off",
              "zipage:radix=off")
_GPU = dict(
    pool=300_000,
    budget=2048,
    block=256,
    modes=_GPU_MODES,
    first_modes=("full", "zipage"),
    for_all=(("amc23", "all"),),
    for_first=(
        ("amc23", "poisson:4"),
        ("amc23", "bursts:64:20"),
        ("aime24", "all"),
        ("livecodebench", "all"),
        ("mixture", "all"),
    ),
    # Their prompts are long and their answers short: with the prompt kept nothing would be compressed.
    special=(("longbench", "all", "full"), ("longbench", "all", "zipage:prefix=compress")),
)
SIZES = {
    # Tokens a second: those of full KV in benchmarks/results, rounded down; they only tell `--plan` and `--scale fit` how
    # long.
    "0.6b": Size(model="qwen3-0.6b", **_GPU),
    "8b": Size(model="qwen3-8b", **_GPU, start_seconds=45, tokens_per_second=2700, rates=(0.5, 1.0, 2.0), tpot_ms=40),
    "tiny": Size(
        model="reasoner",
        pool=600,
        budget=32,
        block=16,
        modes=("full", "zipage"),
        first_modes=("full", "zipage"),
        for_all=(("amc23", "all"),),
        for_first=(("amc23", "bursts:8:2"),),
        scale=0.02,
        length_scale=1 / 64,
        unit_seconds=30,
        start_seconds=20,
        online_length=1.0,
        rates=(6.0,),
        online_seconds=2,
        tpot_ms=100,
        tokens_per_second=300,
        stream_interval=4,
        probes=2,
        by_server=True,
    ),
}
