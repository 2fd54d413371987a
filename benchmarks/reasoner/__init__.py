"""A 9.6 M parameter Qwen3 that reasons for thousands of exactly checkable tokens, and its tasks (README.md here)."""

from pathlib import Path

MODEL_PATH = Path(__file__).parent / "model"
