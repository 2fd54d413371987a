"""The datasets by name."""

from __future__ import annotations

from benchmarks.datasets.gsm8k import GSM8K
from benchmarks.datasets.livecodebench import LIVECODEBENCH
from benchmarks.datasets.longbench import LONGBENCH
from benchmarks.datasets.maths import AIME24, AMC23, MATH500

DATASETS = {d.name: d for d in (AMC23, AIME24, GSM8K, MATH500, LIVECODEBENCH, LONGBENCH)}
