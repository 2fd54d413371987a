"""`python -m benchmarks.report`: the paper's evaluation on this engine, as one report (docs/report.md)."""
