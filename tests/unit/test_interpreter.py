"""Without a GPU: the Triton kernels' tests in Triton's interpreter."""

import os
import pathlib
import subprocess
import sys

import pytest
import torch

HERE = pathlib.Path(__file__).parent


@pytest.mark.skipif(torch.cuda.is_available(), reason="the tests run compiled, on the GPU")
@pytest.mark.skipif("TRITON_INTERPRET" in os.environ, reason="the tests run in this process")
def test_triton_kernels():
    files = [str(file) for file in sorted(HERE.glob("test_triton_*.py"))]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *files],
        env=os.environ | {"TRITON_INTERPRET": "1"}, cwd=HERE.parents[1], capture_output=True, text=True,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-6000:]
