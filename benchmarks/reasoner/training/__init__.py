"""The trainer that made ../model (one GPU, plain PyTorch): `python -m benchmarks.reasoner.training --help`."""
