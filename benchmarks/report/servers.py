"""The server of a mode: same model, pool and flags in every mode but for the mode's own."""

from __future__ import annotations

import contextlib
import gzip
import json
import time
from pathlib import Path

from benchmarks.device import CPU, as_flags
from benchmarks.modes import Mode
from benchmarks.progress import Progress
from benchmarks.report.driving import drive, set_ulimit
from benchmarks.report.options import Options
from benchmarks.report.workloads import Load, Request
from benchmarks.reasoner import MODEL_PATH
from benchmarks.server import Server
from benchmarks.shapes import SHAPES, model_folder, token_ids

START_SECONDS = 600  # that a server may take
LOG_FLAGS = ("--decode-log-interval", "1", "--log-level", "info", "--log-level-http", "warning")


def model_path(options: Options) -> Path:
    """The reasoner, or a folder with a real model's shapes and a tokenizer, made in the output folder."""
    if options.size.model == "reasoner":
        return _short(MODEL_PATH)
    folder = model_folder(options.size.model, options.out.resolve() / "model")
    if not (folder / "tokenizer.json").exists():
        _word_tokenizer(SHAPES[options.size.model]["vocab_size"], folder)
    return _short(folder)


def _short(path: Path) -> Path:
    """Relative where that is shorter, for the report."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _word_tokenizer(size: int, folder: Path):
    """Token n is the word `tn`, so that every token of a model with random weights is text, which sglang.bench_serving
    needs to see that one came, and a text has exactly as many tokens as words."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    tokenizer = Tokenizer(models.WordLevel({f"t{n}": n for n in range(size)}, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(folder / "tokenizer.json"))
    config = dict(tokenizer_class="PreTrainedTokenizerFast", unk_token="t0", clean_up_tokenization_spaces=False)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def words(options: Options, ids: list[int]) -> str:
    """Text of exactly these tokens."""
    if options.size.model == "reasoner":
        from benchmarks.reasoner import tasks

        return " ".join(tasks.VOCAB[i] for i in ids)
    return " ".join(f"t{i}" for i in ids)


def flags(options: Options, mode: Mode) -> list[str]:
    if options.device == "cpu":
        engine = dict(CPU, sleep_on_idle=True)  # it would keep a core busy while a client, or the next server, loads
    else:
        engine = dict(
            dtype="bfloat16",
            attention_backend=options.attention_backend,
            cuda_graph_max_bs_decode=512,
            disable_prefill_cuda_graph=True,
        )
    if options.size.model != "reasoner":
        engine["load_format"] = "dummy"
    return [
        "--model-path",
        str(model_path(options)),
        "--max-total-tokens",
        str(options.size.pool),
        "--random-seed",
        str(options.seed),
        "--grammar-backend",
        "none",
        "--skip-server-warmup",
        "--incremental-streaming-output",
        *LOG_FLAGS,
        *as_flags(engine),
        *as_flags(mode.engine),
    ]


class Servers:
    """One server at a time; `get` starts that of another mode only when it is needed.

    end: time.monotonic() by which it must be up, None for any.  started: s that the latest start took, None before the
    first.
    """

    def __init__(self, options: Options, end: float | None):
        self.options, self.end = options, end
        self.mode = self.server = self.started = None
        self.stack = contextlib.ExitStack()

    def get(self, mode: Mode) -> Server:
        """Raises ServerFailed."""
        if self.mode == mode.text:
            return self.server
        self.stop()
        progress, start = Progress(mode.text), time.monotonic()
        set_ulimit()  # the server's too
        log = self.options.out / "logs" / f"{slug(mode.text)}-{time.strftime('%Y%m%d-%H%M%S')}.log"
        most = START_SECONDS if self.end is None else max(1.0, min(START_SECONDS, self.end - start))
        starting = lambda s, line: progress.show(f"server starting, {s:.0f} s")
        self.stack.callback(_shrink, log)
        self.server = self.stack.enter_context(Server(flags(self.options, mode), log, starting, most))
        self._warm_up()
        self.mode, self.started = mode.text, time.monotonic() - start
        progress.done(f"server ready after {self.started:.0f} s (log: {log})")
        return self.server

    def _warm_up(self):
        """What is compiled at the first requests is not measured."""
        ids = token_ids(self.options.size.model)
        prompts = [[ids.start + n] * 8 for n in range(2)]
        if drive(self.server.url, Load(prompts, [Request(n, 8) for n in range(2)], {}), 300, 1, 0).interrupted:
            raise KeyboardInterrupt

    def stop(self):
        self.stack.close()
        self.mode = self.server = None

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exc):
        self.stop()


def _shrink(log: Path):
    """A line a step adds up."""
    if log.exists():
        log.with_name(log.name + ".gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()


def slug(text: str) -> str:
    """A mode or unit as a file name."""
    return "".join(c if c.isalnum() or c in ".=-" else "_" for c in text)
