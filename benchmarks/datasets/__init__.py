"""Public benchmarks: where their problems come from, how they are asked and how they are checked."""
