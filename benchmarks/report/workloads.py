"""The paper's workloads by name, shrunk on demand, as prompts and requests.

Counts and maxima are those of the paper's table; lengths come from files (`distributions/`), because neither prompts nor
output lengths of the paper are published.  Token ids are random: what a token is does not change how long a step takes.
"""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path

from benchmarks.report import lengths

LEAST_PROMPT, LEAST_OUTPUT = 8, 16  # tokens, however short the lengths are scaled


@dataclasses.dataclass(frozen=True)
class Workload:
    """parts: (questions, name or path of their lengths).  samples: requests a question.  max_tokens: output tokens at
    most."""

    name: str
    parts: tuple[tuple[int, str], ...]
    samples: int
    max_tokens: int

    @property
    def requests(self) -> int:
        return sum(questions for questions, _ in self.parts) * self.samples

    def scaled(self, scale: float) -> Workload:
        """About `scale` times as many requests: questions and samples shrink evenly, by about sqrt(scale), none to zero."""
        shrink = lambda n, factor: max(1, round(n * factor))
        samples = shrink(self.samples, math.sqrt(scale))
        parts = tuple((shrink(n, min(1.0, scale * self.samples / samples)), path) for n, path in self.parts)
        return dataclasses.replace(self, parts=parts, samples=samples)

    def with_lengths(self, path: str) -> Workload:
        """All questions take their lengths from one file."""
        return dataclasses.replace(self, parts=((sum(n for n, _ in self.parts), str(path)),))


WORKLOADS = {
    w.name: w
    for w in (
        Workload("amc23", ((40, "amc23"),), 32, 16384),
        Workload("aime24", ((30, "aime24"),), 32, 32768),
        Workload("livecodebench", ((400, "livecodebench"),), 8, 16384),
        Workload("mixture", ((1319, "gsm8k"), (40, "amc23")), 4, 16384),
        Workload("longbench", ((150, "longbench"),), 4, 4096),
    )
}


@dataclasses.dataclass(frozen=True)
class Request:
    """question: index of the prompt.  output: tokens, generated to the last one.  arrival: s after the start."""

    question: int
    output: int
    arrival: float = 0.0


@dataclasses.dataclass(frozen=True)
class Load:
    """prompts: token ids, one list a question.  requests: in order of arrival.  how: of each file of lengths."""

    prompts: list[list[int]]
    requests: list[Request]
    how: dict[str, str]

    @property
    def output_tokens(self) -> int:
        return sum(r.output for r in self.requests)

    def groups(self) -> list[list[int]]:
        """Output lengths of the requests of each prompt, for `benchmarks.ceiling`."""
        groups = [[] for _ in self.prompts]
        for r in self.requests:
            groups[r.question].append(r.output)
        return [g for g in groups if g]


def make_load(
    workload: Workload, token_ids: range, seed: int = 0, length_scale: float = 1.0, longest: int | None = None
) -> Load:
    """The same for every mode.  length_scale: of prompts, outputs and the maximum.  longest: tokens of prompt and output
    together that the model allows; the output's maximum and longer prompts are cut.

    A question's samples come one after the other, as a benchmark sends them.  Raises lengths.LengthsError.
    """
    rng = random.Random(seed)
    cap = max(LEAST_OUTPUT, round(workload.max_tokens * length_scale))
    if longest:
        cap = min(cap, longest - LEAST_PROMPT - 1)
    prompts, requests, how = [], [], {}

    def prompt_of(tokens: float) -> int:
        size = max(LEAST_PROMPT, round(tokens * length_scale))
        if longest:
            size = min(size, longest - cap - 1)
        prompts.append([rng.randrange(token_ids.start, token_ids.stop) for _ in range(size)])
        return len(prompts) - 1

    output = lambda tokens: min(cap, max(LEAST_OUTPUT, round(tokens * length_scale)))
    for questions, path in workload.parts:
        file = lengths.read(path)
        how[file.name] = file.how
        if file.trace:
            seen: dict[str, int] = {}
            for n in range(questions * workload.samples):
                question, prompt, tokens = file.trace[n % len(file.trace)]
                if question not in seen:
                    seen[question] = prompt_of(prompt)
                requests.append(Request(seen[question], output(tokens)))
            continue
        for _ in range(questions):
            question = prompt_of(lengths.draw(file.prompt, rng))
            requests += [Request(question, output(lengths.draw(file.output, rng))) for _ in range(workload.samples)]
    return Load(prompts, requests, how)


def summary(load: Load) -> dict:
    """Counts and mean lengths, tokens."""
    outputs, prompts = [r.output for r in load.requests], [len(p) for p in load.prompts]
    return dict(
        questions=len(prompts),
        requests=len(outputs),
        prompt_mean=sum(prompts) / len(prompts),
        prompt_max=max(prompts),
        output_mean=sum(outputs) / len(outputs),
        output_max=max(outputs),
        output_tokens=sum(outputs),
    )


def own_lengths(text: str) -> str:
    """`--lengths` on the command line: checked before anything starts.  Raises lengths.LengthsError."""
    lengths.read(text)
    return str(Path(text).resolve()) if Path(text).exists() else text
