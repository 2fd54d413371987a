"""What a speed run compares: `full`, `zipage`, or `zipage` with any of its options, `zipage:budget=1024,prefix=compress`.

`radix=off` is an option of both: SGLang's prefix cache is off.
"""

from __future__ import annotations

import dataclasses

from zipage_sglang.config import PRESETS, ZipageConfig


@dataclasses.dataclass(frozen=True)
class Mode:
    """text: as on the command line, the mode's name everywhere.  config: None for full KV.  engine: sgl.Engine arguments."""

    text: str
    config: ZipageConfig | None = None
    engine: dict = dataclasses.field(default_factory=dict)


def parse_modes(words: list[str], **defaults) -> list[Mode]:
    """Modes of `["full,zipage:budget=1024,block=128", "zipage"]`; an option after a comma belongs to the mode before it.

    defaults: zipage options (`budget=2048`) of every zipage mode that does not say otherwise.  Raises ValueError.
    """
    texts = []
    for part in ",".join(words).split(","):
        if "=" in part and ":" not in part and texts:
            texts[-1] += "," + part
        elif part not in texts:
            texts.append(part)
    return [_parse(text, defaults) for text in texts]


def _parse(text: str, defaults: dict) -> Mode:
    name, _, options = text.partition(":")
    words = [word for word in options.split(",") if word]
    engine = dict(disable_radix_cache=True) if "radix=off" in words else {}
    words = [word for word in words if word != "radix=off"]
    if name == "full" and not words:
        return Mode(text, engine=engine)
    if name != "zipage":
        raise ValueError(f"mode {text!r}: must be `full`, `full:radix=off`, `zipage` or `zipage:option=value,...`")
    kinds = {f.name.replace("lam", "lambda"): type(f.default) for f in dataclasses.fields(ZipageConfig)} | {"preset": str}
    given = dict(defaults)
    for option in words:
        key, equals, value = option.partition("=")
        if key not in kinds or not equals:
            raise ValueError(f"mode {text!r}: {option!r} is not option=value with one of {', '.join(kinds)}")
        given[key] = kinds[key](value)
    own = {key.replace("lambda", "lam"): value for key, value in given.items() if key != "preset"}
    config = ZipageConfig(**{**PRESETS.get(given.get("preset"), {}), **own})
    return Mode(text, config, dict(enable_zipage=True, **engine, **{f"zipage_{key}": value for key, value in given.items()}))
