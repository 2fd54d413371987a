"""The real SGLang engine with the reasoner inside this process: token ids in, token ids out."""

from __future__ import annotations

import contextlib
import os
import warnings

from benchmarks.device import engine_options
from benchmarks.reasoner import MODEL_PATH, tasks

EOS = tasks.TOK2ID["<|eos|>"]


@contextlib.contextmanager
def open_engine(concurrency: int, pool_tokens: int, seed: int, **options):
    """An sgl.Engine for token ids (no tokenizer process).  pool_tokens: KV pool.  options: further Engine arguments."""
    warnings.simplefilter("ignore")  # SGLang's imports warn dozens of times about hardware that is not here
    os.environ.setdefault("PYTHONWARNINGS", "ignore")  # the same in the engine's processes
    import sglang  # ten seconds to import

    engine = sglang.Engine(model_path=str(MODEL_PATH), skip_tokenizer_init=True, log_level="error",
                           max_running_requests=concurrency, max_total_tokens=pool_tokens, random_seed=seed,
                           **engine_options(), **options)
    try:
        yield engine
    finally:
        engine.shutdown()


def generate(engine, problems: list[tasks.Problem], max_new_tokens: int, temperature: float) -> list[list[int]]:
    """Output ids of each problem, `<|eos|>` included where it came in time."""
    params = dict(temperature=temperature, max_new_tokens=max_new_tokens, stop_token_ids=[EOS])
    replies = engine.generate(input_ids=[p.ids()[0] for p in problems], sampling_params=params)
    return [reply["output_ids"] for reply in replies]


def detokenize(ids: list[int]) -> str:
    return " ".join(tasks.VOCAB[i] for i in ids if i < len(tasks.VOCAB))  # the head is padded to 384 rows


def counters(engine) -> dict:
    """zipage's totals since the engine started, {} with full KV."""
    return engine.get_server_info()["internal_states"][0].get("zipage", {})
