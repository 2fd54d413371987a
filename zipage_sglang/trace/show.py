"""`python -m zipage_sglang show`: from trace files to a page or a picture."""

from __future__ import annotations

import sys
from pathlib import Path

from zipage_sglang.trace import page
from zipage_sglang.trace.file import SUFFIX, Trace, TraceError, load, merge


def spell(token_ids: list[int], tokenizer: str) -> list[str]:
    """The text of each token by itself.  Raises OSError or ValueError where there is no such tokenizer."""
    from transformers import AutoTokenizer

    decode = AutoTokenizer.from_pretrained(tokenizer).decode
    known = {token: decode([token], clean_up_tokenization_spaces=False) for token in set(token_ids)}
    return [known[token] for token in token_ids]


def write(trace: Trace, texts: list[str] | None, path: Path):
    """texts: one per token, or None.  Raises TraceError for a name that says nothing about the format."""
    if path.suffix == ".html":
        path.write_text(page.render(trace, texts), encoding="utf-8")
    elif path.suffix == ".png":
        try:
            from zipage_sglang.trace import picture
        except ModuleNotFoundError as error:
            remedy = "pip install 'zipage-sglang[bench]', or write a page (.html)"
            raise TraceError(f"{path}: a picture needs {error.name}: {remedy}") from None
        picture.draw(trace, path)
    else:
        raise TraceError(f"{path}: write a page (.html) or a picture (.png)")


def run(paths: list[str], outputs: list[str] | None, tokenizer: str | None) -> int:
    """Prints what it wrote; returns 0, or 1 after one line on stderr that says what is wrong."""
    try:
        trace = merge([load(Path(path)) for path in paths])
        texts = spell(trace.token_ids.tolist(), tokenizer) if tokenizer else None
        for path in outputs or [paths[0].removesuffix(SUFFIX) + ".html"]:
            write(trace, texts, Path(path))
            print(path)
    except (TraceError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
