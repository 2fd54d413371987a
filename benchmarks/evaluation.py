"""Public benchmarks through a real server: full KV and zipage beside each other, with a model of your own.

Starts one server after the other (or uses a running one, --url), asks every problem --n times, keeps every reply, checks them and
prints pass@1 with 95 % bootstrap intervals over problems.  A run that was stopped goes on where it stopped: same command.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
from pathlib import Path

import openai

from benchmarks import asking, evaluation_options, provenance, scoring, summary
from benchmarks.datasets import longbench
from benchmarks.datasets.files import read_rows
from benchmarks.datasets.problem import DataError, Dataset, Problem
from benchmarks.datasets.registry import DATASETS
from benchmarks.device import as_flags, engine_options
from benchmarks.modes import Mode
from benchmarks.progress import Progress
from benchmarks.replies import OtherRun, ReplyFile, read_header
from benchmarks.server import Server, ServerFailed, exit_on_sigterm

FAILURES = (ExceptionGroup, openai.OpenAIError, OSError)  # of the server or the way to it; a group of those from the requests


def main(argv: list[str]):
    args = evaluation_options.parse(argv, __doc__)
    exit_on_sigterm()
    try:
        sys.exit(0 if _evaluate(args) else 130)
    except (DataError, OtherRun, ServerFailed) as error:
        sys.exit(f"error: {error}")


def _evaluate(args) -> bool:
    """Whether it ran to the end."""
    dataset = DATASETS[args.dataset]
    problems = load_problems(args, dataset)
    sampling = asking.Sampling(args.temperature, args.top_p, args.max_tokens, args.system or None)
    print(f"{len(problems)} problems of {dataset.name}, {args.n} samples each; T {sampling.temperature:g}, top_p {sampling.top_p:g}, at most "
          f"{sampling.max_tokens} output tokens; everything is kept in {args.out}", flush=True)
    origin = provenance.describe()  # first: the commit that the run started from
    complete = True
    try:
        if args.url:
            _ask_running(args, problems, sampling, origin)
        elif not args.report:
            for mode in args.modes:
                _ask_own(args, mode, problems, sampling, origin)
    except KeyboardInterrupt:
        print("\ninterrupted; what was answered is kept, the same command goes on")
        complete = False
    report(args, dataset, problems, origin, complete)
    return complete


def load_problems(args, dataset: Dataset) -> list[Problem]:
    """Raises DataError."""
    rows = read_rows(args.data) if args.data else dataset.fetch(args.hub or dataset.hub, args.split or dataset.split)
    prompts = {"prompts": longbench.read_prompts(args.prompts)} if args.prompts else {}
    problems = dataset.load(rows, **prompts)
    if len({p.id for p in problems}) < len(problems):
        raise DataError("two problems have the same id")
    problems = problems[:args.limit]
    if args.max_prompt_tokens:
        from transformers import AutoTokenizer  # seconds to import

        tokenizer = AutoTokenizer.from_pretrained(args.model)
        problems = [longbench.shorten(p, tokenizer, args.max_prompt_tokens) for p in problems]
    return problems


def _ask_own(args, mode: Mode, problems: list[Problem], sampling: asking.Sampling, origin: dict):
    """Start a server for one mode, unless everything is answered already."""
    with ReplyFile(_path(args, mode.text), _header(args, sampling, args.model, mode.text)) as file:
        todo = file.missing(problems, args.n)
        progress = Progress(mode.text)
        if not todo:
            return progress.done("all answered already")
        # The CPU needs all of it; on a GPU the model decides what it is stored as.
        engine = {k: v for k, v in engine_options().items() if k != "dtype" or v != "bfloat16"}
        flags = ["--model-path", args.model, *as_flags(engine | {"max_total_tokens": args.pool}), *as_flags(mode.engine),
                 *shlex.split(args.server_args)]
        starting = lambda seconds, line: progress.show(f"server starting, {seconds:.0f} s")
        with Server(flags, _path(args, mode.text).with_suffix(".log"), starting, start_seconds=args.start_minutes * 60) as server:
            progress.done("server ready: " + shlex.join(flags))
            try:
                _ask(args, server.url, todo, sampling, file, progress, origin)
            except FAILURES as error:
                raise ServerFailed(f"a request failed: {_first(error)}; what was answered is kept\n{server.last_lines(15)}") from None


def _ask_running(args, problems: list[Problem], sampling: asking.Sampling, origin: dict):
    try:
        info = asking.server_info(args.url)
    except OSError as error:
        raise ServerFailed(f"--url {args.url}: {error}") from None
    mode = args.name or evaluation_options.mode_name(asking.zipage_totals(info).get("config"))
    with ReplyFile(_path(args, mode), _header(args, sampling, args.model or info.get("model_path"), mode)) as file:
        try:
            _ask(args, args.url, file.missing(problems, args.n), sampling, file, Progress(mode), origin)
        except FAILURES as error:
            raise ServerFailed(f"--url {args.url}: {_first(error)}; what was answered is kept") from None


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _ask(args, url: str, todo: list, sampling: asking.Sampling, file: ReplyFile, progress: Progress, origin: dict):
    before, done = asking.zipage_totals(asking.server_info(url)), 0

    def on_reply(reply):
        nonlocal done
        file.add(reply)
        done += 1
        progress.show(f"{done} of {len(todo)} answered")

    try:
        asyncio.run(asking.ask_all(url, todo, sampling, args.concurrency, on_reply))
    finally:
        try:
            after = asking.zipage_totals(asking.server_info(url))
        except OSError:  # it is gone; what it answered stays
            after = {}
        counts = {k: v - before[k] for k, v in after.items() if k != "config" and k in before}
        config = (after or before).get("config")
        file.end_session(dict(replies=done, **counts, config=config, origin=origin))
        progress.done(f"{done} of {len(todo)} answered")


def report(args, dataset: Dataset, problems: list[Problem], origin: dict, complete: bool):
    """Score and print every mode whose replies lie in --out.  Raises OtherRun if they are not of one model and sampling."""
    results, first = [], None
    for path in sorted(args.out.glob("*.jsonl"), key=lambda p: (p.stem != summary.FULL, p.stem)):
        if path.name.endswith(".scores.jsonl"):
            continue
        header = read_header(path)
        mode = header["mode"]
        first = first or header
        differing = sorted(key for key in first if key != "mode" and header.get(key) != first[key])
        if differing or header["dataset"] != dataset.name:
            raise OtherRun(f"{path} has another {' and '.join(differing) or 'dataset'} than this comparison; remove it or choose another --out")
        with ReplyFile(path, header) as file:
            replies = file.of(problems, args.n)
        progress = Progress(f"{mode}, checking")
        verdicts = scoring.score(dataset, problems, replies, path.with_suffix(".scores.jsonl"), args.check_workers, args.recheck,
                                 lambda done, total, show=progress.show: show(f"{done} of {total}"))
        results.append(summary.Result(mode, replies, verdicts, file.sessions))
    if not any(result.replies for result in results):
        return print("no replies")
    rows = summary.summarize(problems, results)
    print("\n" + summary.render(rows) + "\n\n" + "\n".join([evaluation_options.LEGEND, *summary.warnings(rows)]))
    options = {k: str(v) if isinstance(v, Path) else v for k, v in vars(args).items() if k != "modes"}
    record = dict(**origin, options=options, complete=complete, rows=rows)
    (args.out / "summary.json").write_text(json.dumps(record, indent=1) + "\n")
    print(f"written: {args.out / 'summary.json'}")


def _path(args, mode: str) -> Path:
    return args.out / (re.sub(r"[^\w.=-]+", "_", mode) + ".jsonl")


def _header(args, sampling: asking.Sampling, model: str, mode: str) -> dict:
    return dict(dataset=args.dataset, model=model, mode=mode, temperature=sampling.temperature, top_p=sampling.top_p,
                max_tokens=sampling.max_tokens, system=sampling.system)
