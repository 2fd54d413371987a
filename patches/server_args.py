"""The flags: SGLang's ServerArgs with zipage's fields, validated before any process is spawned."""

import contextlib
import dataclasses
import os
import tempfile
from typing import Any, Optional

import torch

from sglang.srt.arg_groups.arg_utils import NS, A, Arg
from sglang.srt.server_args import ServerArgs
from zipage_patches import install, refusals
from zipage_patches.compat import arguments
from zipage_sglang.config import PER_REQUEST, POLICIES, POOLINGS, PREFIX_MODES, PRESETS, REDUNDANCIES, WHEN, ZipageConfig

_DEFAULT = {f.name: f.default for f in dataclasses.fields(ZipageConfig)}


def _memory(help_text: str, choices=None):
    return Arg(help=help_text, choices=list(choices) if choices else None)


@arguments.with_fields
class ZipageServerArgs(ServerArgs, **arguments.CLASS_KEYWORDS):
    """Fields left at None take the preset's value, or else the default of ZipageConfig."""

    enable_zipage: A[bool, "Bound the KV cache of each request while it decodes (Compressed PagedAttention). "
                           "Lossy: old tokens are evicted. See the other --zipage flags. Every flag also reads its default from "
                           "the environment: ZIPAGE_ENABLE=1, ZIPAGE_BUDGET, ZIPAGE_POLICY and so on.", NS("memory")] = (
        os.environ.get("ZIPAGE_ENABLE", "").lower() in ("1", "true", "yes")
    )
    zipage_preset: A[Optional[str], _memory(
        "Start from named settings; single flags still win. 'paper': the settings of arXiv 2603.08743 (no recency "
        "reserve, one window).", PRESETS), NS("memory")] = None
    zipage_budget: A[Optional[int], _memory(
        f"Tokens K that a request keeps after a compression, its prompt not counted. A multiple of --page-size. "
        f"Default {_DEFAULT['budget']}."), NS("memory")] = None
    zipage_block: A[Optional[int], _memory(
        f"Tokens b decoded between two compressions; a request holds at most prompt + K + b tokens. A multiple of "
        f"--page-size. Default {_DEFAULT['block']}."), NS("memory")] = None
    zipage_window: A[Optional[int], _memory(
        f"Tokens w whose queries score all others together; the latest w are always kept. Default {_DEFAULT['window']}."),
        NS("memory")] = None
    zipage_policy: A[Optional[str], _memory(
        f"What ranks tokens. 'zipage': attention with memory of earlier scores against redundancy; 'attention': "
        f"attention alone; 'recent' and 'random': controls. Default {_DEFAULT['policy']}.", POLICIES), NS("memory")] = None
    zipage_alpha: A[Optional[float], _memory(
        f"Decay of the remembered score, 0 (forget) to 1. Default {_DEFAULT['alpha']}."), NS("memory")] = None
    zipage_lambda: A[Optional[float], _memory(
        f"Weight of the score against redundancy, 0 to 1. Default {_DEFAULT['lam']}."), NS("memory")] = None
    zipage_tau: A[Optional[float], _memory(
        f"Scale of the redundancy softmax. Default {_DEFAULT['tau']}."), NS("memory")] = None
    zipage_redundancy: A[Optional[str], _memory(
        f"Which keys are compared: 'lightning' inside blocks of b, 'flash' all pairs, 'none'. Default "
        f"{_DEFAULT['redundancy']}.", REDUNDANCIES), NS("memory")] = None
    zipage_pooling: A[Optional[str], _memory(
        f"Max-pool scores over 5 neighbours at a request's first compression ('once'), 'always' or 'never'. Default "
        f"{_DEFAULT['pooling']}.", POOLINGS), NS("memory")] = None
    zipage_sinks: A[Optional[int], _memory(
        f"First tokens that are always kept when prompts are compressed too (a kept prompt holds them anyway). Default "
        f"{_DEFAULT['sinks']}."), NS("memory")] = None
    zipage_recency: A[Optional[float], _memory(
        "Share r of the budget that is always the latest tokens, 0 to 1. -1: a quarter, but at least 128 tokens or half of a "
        "small budget. Default -1."),
        NS("memory")] = None
    zipage_seed: A[Optional[int], _memory(
        f"Seed of the 'random' policy. Default {_DEFAULT['seed']}."), NS("memory")] = None
    zipage_prefix: A[Optional[str], _memory(
        f"'keep': the prompt is never evicted and does not count in the budget; 'compress': it is evicted like any other "
        f"token; 'auto': 'compress' for prompts longer than the budget. Default {_DEFAULT['prefix']}.", PREFIX_MODES),
        NS("memory")] = None
    zipage_when: A[Optional[str], _memory(
        f"'always': every request is compressed when it holds K + b tokens; 'pressure': it grows on while the pool has "
        f"room for all, and is compressed, largest first, when others need its pages (one window scores then, see "
        f"--zipage-passes). Default {_DEFAULT['when']}.", WHEN), NS("memory")] = None
    zipage_query_slots: A[Optional[int], _memory(
        "Requests whose queries can be kept at the same time (memory: layers x w queries each); others wait for a slot, with "
        "their KV, and take turns block by block. 0: one for each that fits with the server's budget; where only the last "
        "windows score (--zipage-passes), four times as many as are expected. Default 0."), NS("memory")] = None
    zipage_max_compress: A[Optional[int], _memory(
        "Compressions in one step at most; requests beyond it wait for the next. 0: no limit. Default 0."), NS("memory")] = None
    zipage_passes: A[Optional[int], _memory(
        "Windows of w tokens before a compression whose queries score, one after the other, the last one included. Each costs "
        "the time of its attention scores, and a request has a query slot for as many tokens; 1: as in the paper. 0: all of a "
        "block, or 1 where that cannot be had (other policies, --zipage-when pressure, --zipage-async-steps). Default 0."),
        NS("memory")] = None
    zipage_spread: A[Optional[int], _memory(
        "Steps over which the first compressions of requests that start together are spread: each comes up to so many tokens, "
        "less one, before K + b, so that they do not all score and compress in the same steps from there on. 1: all at K + b, as "
        "in the paper. 0: a quarter of --zipage-block. Default 0."), NS("memory")] = None
    zipage_async_steps: A[Optional[int], _memory(
        "Compress on a stream of its own, beside so many decode steps of the others, which the request sits out; its pages come "
        "free after them, and one window scores (see --zipage-passes). 0: between two steps, in their stream. Default 0."),
        NS("memory")] = None
    zipage_admit_every: A[Optional[int], _memory(
        "Decode steps that requests may be left waiting after an admission where the pool is full, so that several are admitted "
        "at once: all that run wait for each prefill. They are admitted earlier when as many have ended as one in 32 of those "
        "that run, or as wait. Who comes while nobody waits for room is admitted at once. No effect where fewer than 64 fit, or "
        f"with --zipage-when pressure. 0: at once. Default {_DEFAULT['admit_every']}."), NS("memory")] = None
    zipage_max_budget: A[Optional[int], _memory(
        "Largest budget that a request may ask for itself; sizes the workspace. A multiple of --page-size. Default 0: that of "
        "--zipage-budget."), NS("memory")] = None
    zipage_per_request: A[Optional[str], _memory(
        f"What requests may set for themselves in custom_params: 'all' (budget, policy and so on, and compression off), 'no-off' "
        f"(all but that), 'none'. Default {_DEFAULT['per_request']}.", PER_REQUEST), NS("memory")] = None

    zipage_trace: A[Optional[str], _memory(
        "Folder for traces of single requests: which tokens each compression kept, to be seen with `python -m zipage_sglang "
        "show`. Four requests at a time, 256 files and 1 GiB at most, the oldest go first. Default: none."), NS("memory")] = None

    def __post_init__(self):
        if self.enable_zipage:
            self._fill_defaults()
            self._choose_backend()
        else:
            _refuse_idle_flags(self)
        super().__post_init__()

    if arguments.RESOLVES_ASIDE:

        def __reduce__(self):
            return _restore, super().__reduce__()

    else:

        def __setstate__(self, state):
            self.__dict__.update(state)
            _hooks_in_place(self)

    @classmethod
    def from_cli_args(cls, args):
        """From a command line: what is wrong with the zipage flags is one line on stderr, not a traceback."""
        with _one_line_errors():
            _config_from(args) if args.enable_zipage else _refuse_idle_flags(args)
        server_args = super().from_cli_args(args)
        server_args.__dict__["_zipage_from_cli"] = True
        return server_args

    def zipage_config(self) -> ZipageConfig:
        """The method's knobs; raises ValueError naming the flag."""
        return _config_from(self)

    def check_server_args(self):
        """Runs in the launching process, for every way to start: server, Engine, benchmarks."""
        arguments.resolve(self)
        super().check_server_args()
        if not self.enable_zipage:
            return
        with _one_line_errors() if getattr(self, "_zipage_from_cli", False) else contextlib.nullcontext():
            install.verify_stage1()
            resolved = arguments.resolved(self)
            refusals.check_flags(resolved)
            _check_trace_folder(self.zipage_trace)
            self.zipage_config().check_page_size(resolved.page_size)
            refusals.check_model(arguments.model_config(self))

    def _fill_defaults(self):
        config = _config_from(self)
        for f in dataclasses.fields(ZipageConfig):
            setattr(self, _field(f.name), getattr(config, f.name))
        if self.zipage_trace is None:
            self.zipage_trace = os.environ.get("ZIPAGE_TRACE")

    def _choose_backend(self):
        if not any(getattr(self, field) for field in refusals.BACKEND_FIELDS):
            on_cpu = self.device == "cpu" or not torch.cuda.is_available()
            self.attention_backend = "torch_native" if on_cpu else "flashinfer"


def _restore(rebuild, state):
    """Unpickles, see `_hooks_in_place`."""
    server_args = rebuild(*state)
    _hooks_in_place(server_args)
    return server_args


def _hooks_in_place(server_args):
    """Runs when a spawned process unpickles its arguments, before it builds a scheduler: make sure that the hooks are in
    place there too, whatever happened to plugin discovery in that process."""
    if server_args.enable_zipage:
        from sglang.srt.plugins import load_plugins
        from sglang.srt.plugins.hook_registry import HookRegistry

        load_plugins()
        install.register_stage1()
        HookRegistry.apply_hooks()
        install.verify_stage1()


def _field(name: str) -> str:
    """ServerArgs field of a ZipageConfig field (`lambda` is a keyword in Python, not on a command line)."""
    return "zipage_lambda" if name == "lam" else f"zipage_{name}"


def _config_from(args) -> ZipageConfig:
    """What was set, over the environment, over the preset, over the defaults.  Raises ValueError naming the flag."""
    preset = args.zipage_preset or os.environ.get("ZIPAGE_PRESET")
    if preset is not None and preset not in PRESETS:
        raise ValueError(f"--zipage-preset: must be one of {', '.join(PRESETS)}, got {preset!r}")
    values: dict[str, Any] = dict(PRESETS[preset]) if preset else {}
    for f in dataclasses.fields(ZipageConfig):
        if (value := getattr(args, _field(f.name))) is not None:
            values[f.name] = value
        elif (text := os.environ.get(_field(f.name).upper())) is not None:
            values[f.name] = _from_text(f, text)
    return ZipageConfig(**values)


def _refuse_idle_flags(args):
    for name in ("zipage_preset", "zipage_trace", *(_field(f.name) for f in dataclasses.fields(ZipageConfig))):
        if getattr(args, name) is not None:
            flag = "--" + name.replace("_", "-")
            raise ValueError(f"{flag} does nothing without --enable-zipage: add it, or drop {flag}")


def _check_trace_folder(folder: str | None):
    if folder is None:
        return
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = f"cannot write there ({error.strerror}); name a folder that can be written"
        raise ValueError(f"--zipage-trace {folder}: {why}") from None


def _from_text(field: dataclasses.Field, text: str):
    kind: type = type(field.default)
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{_field(field.name).upper()}: {text!r} is not of type {kind.__name__}") from None


@contextlib.contextmanager
def _one_line_errors():
    try:
        yield
    except (ValueError, install.ContractError) as error:
        raise SystemExit(f"error: {error}") from None
