"""The embedded reasoner: where its weights are, its tasks module and its detokenizer."""
import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks" / "reasoner"
MODEL = FOLDER / "model"
EOS = 2


def _load_tasks():
    name = "reasoner_tasks"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, FOLDER / "tasks.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their own module up while they are being built
        spec.loader.exec_module(module)
    return sys.modules[name]


tasks = _load_tasks()


def detokenize(ids):
    """Token ids -> the text that `Problem.check` reads (tokens separated by spaces)."""
    return " ".join(tasks.VOCAB[i] for i in ids)
