"""The flags: SGLang's ServerArgs with zipage's fields, validated before any process is spawned."""


import dataclasses
from typing import Optional

import torch

from sglang.srt.arg_groups.arg_utils import NS, A, Arg
from sglang.srt.server_args import ServerArgs
from zipage_patches import refusals
from zipage_sglang.config import POLICIES, POOLINGS, PREFIX_MODES, PRESETS, REDUNDANCIES, ZipageConfig

# ServerArgs field -> ZipageConfig field, where they differ by more than the prefix.
_RENAMED = {"zipage_lambda": "lam"}
_DEFAULT = {f.name: f.default for f in dataclasses.fields(ZipageConfig)}


def _memory(help_text: str, choices=None):
    return Arg(help=help_text, choices=list(choices) if choices else None)


@dataclasses.dataclass
class ZipageServerArgs(ServerArgs):
    """Fields left at None take the preset's value, or else the default of ZipageConfig."""

    enable_zipage: A[bool, "Bound the KV cache of each request while it decodes (Compressed PagedAttention). "
                           "Lossy: old tokens are evicted. See the other --zipage flags.", NS("memory")] = False
    zipage_preset: A[Optional[str], _memory(
        "Start from named settings; single flags still win. 'paper': the settings of arXiv 2603.08743 (no recency "
        "reserve).", PRESETS), NS("memory")] = None
    zipage_budget: A[Optional[int], _memory(
        f"Tokens K that a request keeps after a compression, its prompt not counted. A multiple of --page-size. "
        f"Default {_DEFAULT['budget']}."), NS("memory")] = None
    zipage_block: A[Optional[int], _memory(
        f"Tokens b decoded between two compressions; a request holds at most prompt + K + b tokens. A multiple of "
        f"--page-size. Default {_DEFAULT['block']}."), NS("memory")] = None
    zipage_window: A[Optional[int], _memory(
        f"Latest tokens w whose queries score all others and which are always kept. Default {_DEFAULT['window']}."),
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
        f"Share r of the budget that is always the latest tokens, 0 to 1. Default {_DEFAULT['recency']}."),
        NS("memory")] = None
    zipage_seed: A[Optional[int], _memory(
        f"Seed of the 'random' policy. Default {_DEFAULT['seed']}."), NS("memory")] = None
    zipage_prefix: A[Optional[str], _memory(
        f"'keep': the prompt is never evicted. Default {_DEFAULT['prefix']}.", PREFIX_MODES), NS("memory")] = None

    def __post_init__(self):
        if self.enable_zipage:
            self._fill_defaults()
            self._choose_backend()
        super().__post_init__()

    def __setstate__(self, state):
        """Runs when a spawned process unpickles its arguments, before it builds a scheduler: make sure that the hooks are in
        place there too, whatever happened to plugin discovery in that process."""
        self.__dict__.update(state)
        if self.enable_zipage:
            from sglang.srt.plugins import load_plugins
            from sglang.srt.plugins.hook_registry import HookRegistry
            from zipage_patches import install

            load_plugins()
            install.register_stage1()
            HookRegistry.apply_hooks()
            install.verify_stage1()

    def zipage_config(self) -> ZipageConfig:
        """The method's knobs; raises ValueError naming the flag."""
        return ZipageConfig(**{
            f.name: getattr(self, field) for f in dataclasses.fields(ZipageConfig)
            for field in (next((k for k, v in _RENAMED.items() if v == f.name), f"zipage_{f.name}"),)
        })

    def check_server_args(self):
        super().check_server_args()
        if not self.enable_zipage:
            return
        from zipage_patches import install

        install.verify_stage1()
        refusals.check_flags(self)
        self.zipage_config().check_page_size(self.page_size)
        refusals.check_model(self.get_model_config())

    def _fill_defaults(self):
        if self.zipage_preset is not None and self.zipage_preset not in PRESETS:
            raise ValueError(f"--zipage-preset: must be one of {', '.join(PRESETS)}, got {self.zipage_preset!r}")
        values = {**_DEFAULT, **PRESETS.get(self.zipage_preset, {})}
        for name, value in values.items():
            field = next((k for k, v in _RENAMED.items() if v == name), f"zipage_{name}")
            if getattr(self, field) is None:
                setattr(self, field, value)
        self.zipage_config()

    def _choose_backend(self):
        named = self.attention_backend or self.prefill_attention_backend or self.decode_attention_backend
        if named is None:
            on_cpu = self.device == "cpu" or not torch.cuda.is_available()
            self.attention_backend = "torch_native" if on_cpu else "flashinfer"
