"""`make demo`: the same problems, the same small KV pool, once with compression and once with full KV, side by side.

Both servers are real `sglang.launch_server` processes with the embedded reasoner; answers come through
/v1/chat/completions, running requests and retractions from SGLang's own log lines, compressions from /server_info.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import sys
import time
from pathlib import Path

import openai

from benchmarks import table
from benchmarks.client import Reply, ask_all, server_state
from benchmarks.device import as_flags, engine_options
from benchmarks.progress import Progress
from benchmarks.reasoner import MODEL_PATH, tasks
from benchmarks.reasoner.knobs import make_problems
from benchmarks.server import Server, ServerFailed, exit_on_sigterm
from benchmarks.serverlog import LogStats, read_log

LOG_DIR = Path(".demo")


@dataclasses.dataclass(frozen=True)
class Load:
    """What both servers get.  level: nominal chain-of-thought tokens; counts: problems of each family."""

    counts: dict[str, int]
    level: int
    pool_tokens: int
    zipage: dict

    def problems(self) -> list[tasks.Problem]:
        """Families interleaved, so that every family meets every phase of the run."""
        queues = [make_problems(f, self.level, n, regime="short") for f, n in self.counts.items()]
        return [q[i] for i in range(max(map(len, queues))) for q in queues if i < len(q)]


@dataclasses.dataclass(frozen=True)
class Outcome:
    replies: list[Reply]
    seconds: float
    log: LogStats
    zipage: dict

    def right(self, family: str) -> str:
        mine = [r.right for r in self.replies if r.family == family]
        return f"{sum(mine)} of {len(mine)}"

    @property
    def output_tokens(self) -> int:
        return sum(r.output_tokens for r in self.replies)

    @property
    def peak_kv_tokens(self) -> int:
        """Most KV tokens that one request held: counted by the plugin; with full KV all but the last token have one."""
        return self.zipage.get("peak_kv_tokens") or max(r.prompt_tokens + r.output_tokens - 1 for r in self.replies)


def run(name: str, load: Load, zipage: dict) -> Outcome:
    """Start a server, send the load, stop the server."""
    flags = ["--model-path", str(MODEL_PATH), *as_flags(engine_options()), "--max-total-tokens", str(load.pool_tokens),
             "--decode-log-interval", "1", *as_flags(zipage)]
    progress = Progress(name)
    log_path = LOG_DIR / f"{name.replace(' ', '-')}.log"
    with Server(flags, log_path, lambda seconds, line: progress.show(f"server starting, {seconds:.0f} s")) as server:
        progress.done(f"server ready (log: {log_path})")
        start = time.monotonic()
        try:
            replies = asyncio.run(_answer(server, load.problems(), progress))
        except* openai.OpenAIError as group:
            raise ServerFailed(f"a request failed: {group.exceptions[0]}\n{server.last_lines(15)}") from None
        seconds = time.monotonic() - start
        outcome = Outcome(replies, seconds, read_log(server.log().splitlines()), server_state(server.url).get("zipage", {}))
    progress.done(f"{len(replies)} answers in {seconds:.0f} s")
    return outcome


async def _answer(server: Server, problems: list[tasks.Problem], progress: Progress) -> list[Reply]:
    done: list[Reply] = []

    async def watch():
        while True:
            log = read_log(server.log().splitlines())
            text = (f"{len(done)}/{len(problems)} done, {sum(r.right for r in done)} right; {log.running_now} running, "
                    f"{log.waiting_now} waiting, {log.retractions} retracted")
            with contextlib.suppress(OSError):  # a busy server may answer late; the next look will do
                zipage = (await asyncio.to_thread(server_state, server.url)).get("zipage")
                text += f", {zipage['compressions']} compressed" if zipage else ""
            progress.show(text)
            await asyncio.sleep(1)

    # Room for the longest chain of thought; a request that lost its way stops there.
    max_tokens = max(len(p.cot_toks) for p in problems) + 32
    watcher = asyncio.create_task(watch())
    try:
        return await ask_all(server.url, problems, max_tokens, done.append)
    finally:
        watcher.cancel()


def report(load: Load, zipage: Outcome, full: Outcome) -> str:
    def row(label, value):
        return [label, value(zipage), value(full)]

    rows = [row(f"right answers, {family}", lambda o, f=family: o.right(f)) for family in load.counts]
    rows += [
        row("most requests running at once", lambda o: o.log.peak_running),
        row("mean requests running", lambda o: f"{o.log.mean_running:.1f}"),
        row("peak KV tokens of one request", lambda o: o.peak_kv_tokens),
        row("retractions (work thrown away)", lambda o: o.log.retractions),
        row("compressions", lambda o: o.zipage.get("compressions", "-")),
        row("KV tokens evicted", lambda o: o.zipage.get("evicted_tokens", "-")),
        row("output tokens", lambda o: o.output_tokens),
        row("wall time, s", lambda o: f"{o.seconds:.0f}"),
        row("output tokens/s", lambda o: f"{o.output_tokens / o.seconds:.0f}"),
    ]
    return table.render(["", "zipage", "full KV"], rows)


def main():
    args = _arguments()
    load = Load(counts={"loop": args.problems, "ram": args.problems, "chain": args.problems}, level=args.level,
                pool_tokens=args.pool, zipage={"enable_zipage": True, "zipage_budget": args.budget,
                                               "zipage_block": args.block, "zipage_policy": args.policy})
    exit_on_sigterm()
    print(f"{len(load.problems())} problems ({', '.join(load.counts)}; about {load.level} tokens of reasoning each), sent at once to "
          f"a server\nwhose KV pool holds {load.pool_tokens} tokens: first with {' '.join(as_flags(load.zipage))},\n"
          f"then with full KV.  Engine: {' '.join(as_flags(engine_options()))}\n", flush=True)
    try:
        zipage = run("zipage", load, load.zipage)
        full = run("full KV", load, {})
    except ServerFailed as error:
        sys.exit(f"\n{error}")
    except KeyboardInterrupt:
        print("\ninterrupted, server stopped")
        sys.exit(130)
    print("\n" + report(load, zipage, full))
    print("\nCompression is lossy: compare the right answers.")


def _arguments():
    parser = argparse.ArgumentParser(prog="python -m benchmarks.demo", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=3, help="of each family (default %(default)s)")
    parser.add_argument("--level", type=int, default=1000, help="tokens of reasoning, about (default %(default)s)")
    parser.add_argument("--pool", type=int, default=2400, help="KV pool of either server, tokens (default %(default)s)")
    parser.add_argument("--budget", type=int, default=256, help="--zipage-budget (default %(default)s)")
    parser.add_argument("--block", type=int, default=64, help="--zipage-block (default %(default)s)")
    parser.add_argument("--policy", default="zipage", help="--zipage-policy (default %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
