"""Demo, accuracy and speed measurements; run from the repository root as `python -m benchmarks.NAME`."""
