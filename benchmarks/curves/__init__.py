"""Accuracy against memory: `python -m benchmarks.curves`."""
