import os

import torch

# The Triton kernels need a GPU or Triton's interpreter, and the interpreter has to be chosen before Triton is imported:
# without a GPU, test_interpreter.py runs these files in a process of their own.
if not torch.cuda.is_available() and "TRITON_INTERPRET" not in os.environ:
    collect_ignore_glob = ["test_triton_*.py"]
