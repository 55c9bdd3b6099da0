"""On a machine with a GPU: that the fast path gives the same answers as the plain one."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_gives_the_same_answers():
    script = Path(__file__).parent.parent / "benchmarks" / "check_gpu.py"
    done = subprocess.run([sys.executable, script, "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
