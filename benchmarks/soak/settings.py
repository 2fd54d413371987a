"""Servers that a soak goes through: flags, environment, and what can be asked of their answers."""

from __future__ import annotations

import dataclasses

# Every check that the plugin and SGLang have; each ends the server where it fails.
CHECKS = {
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_BUSY": "1",
    "SGLANG_ENABLE_STRICT_MEM_CHECK_DURING_IDLE": "1",
    "SGLANG_CHECK_KV_PAGE_INVARIANTS": "1",
    "SGLANG_DEBUG_MEMORY_POOL": "1",
    "ZIPAGE_CHECK_INVARIANTS": "1",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """method: what the kept tokens, and so a request's answer, depend on.  slots: query slots for every twelve clients, None for the
    default.  retract: SGLang retracts somebody every so many steps.  steady: answers do not depend on the load."""

    name: str
    method: tuple[str, ...]
    flags: tuple[str, ...] = ()
    slots: int | None = None
    retract: int | None = None
    steady: bool = True

    def server_flags(self, load: Load) -> list[str]:
        slots = [] if self.slots is None else ["--zipage-query-slots", str(self.slots * load.clients // 12)]
        return [*load.flags, *self.method, *self.flags, *slots]

    @property
    def environment(self) -> dict[str, str]:
        if self.retract is None:
            return CHECKS
        return {**CHECKS, "SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": str(self.retract)}


KEEP = ("--zipage-prefix", "keep")
PAGES = ("--page-size", "16", "--zipage-prefix", "auto")
ONE_WINDOW = ("--zipage-passes", "1")  # all that can score beside the steps; answers depend on it
CHUNKS = ("--chunked-prefill-size", "64")
SETTINGS = (
    Setting("default", KEEP),
    Setting("pages, chunks", PAGES, CHUNKS),
    Setting("pages, chunks, retracted", PAGES, CHUNKS, retract=61),
    Setting("beside two steps", (*KEEP, *ONE_WINDOW), ("--zipage-async-steps", "2")),
    Setting("without overlap", KEEP, ("--disable-overlap-schedule",)),
    Setting("beside a step, pages, retracted", (*PAGES, *ONE_WINDOW), ("--zipage-async-steps", "1", *CHUNKS), retract=61),
    Setting("under pressure", KEEP, ("--zipage-when", "pressure"), steady=False),
    Setting("without prefix cache", KEEP, ("--disable-radix-cache",)),
    Setting("pressure, pages, retracted", PAGES, ("--zipage-when", "pressure", *CHUNKS), retract=61, steady=False),
    Setting("one window", (*KEEP, *ONE_WINDOW)),
    Setting("few query slots, pages, retracted", PAGES, CHUNKS, slots=4, retract=61),
    Setting("one window, few query slots", (*KEEP, *ONE_WINDOW), ("--zipage-max-compress", "1"), slots=2),
)


@dataclasses.dataclass(frozen=True)
class Load:
    """level: tokens of reasoning a problem.  problems: of each family, shared by the clients.  clients: at once.  flags: model's
    size and the method's.  exact: float32 on the CPU, where a request's tokens do not depend on its neighbours.  drain: seconds
    that answers may still take once the time is up; what is left then is aborted all at once."""

    level: int
    problems: int
    clients: int
    flags: tuple[str, ...]
    exact: bool
    drain: float


def _method(budget: int, block: int, window: int) -> tuple[str, ...]:
    return ("--enable-zipage", "--zipage-budget", str(budget), "--zipage-block", str(block), "--zipage-window", str(window))


LOADS = {
    "cpu": Load(320, 3, 12, ("--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32", "--disable-cuda-graph",
                             "--max-total-tokens", "2560", *_method(160, 32, 8)), True, 300),
    "cuda": Load(800, 8, 64, ("--dtype", "bfloat16", "--attention-backend", "flashinfer", "--cuda-graph-max-bs-decode", "64",
                              "--disable-prefill-cuda-graph", "--mem-fraction-static", "0.2", "--max-total-tokens", "16384",
                              *_method(256, 64, 16)), False, 30),
}  # fmt: skip
