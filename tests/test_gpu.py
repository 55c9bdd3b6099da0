"""On a machine with a GPU: that the fast path gives the same answers as the plain one."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from dgz import load_numbers
from dgz.generators import CounterfactualVAEGAN
from dgz.peers import GCMCF, gcm_cf

SETTINGS = {"n_per_class": 30, "n_epochs": 2, "n_unseen_epochs": 2, "row_batch_size": 200, "row_learning_rate": 0.01}


def trained_in_use(data, precision):
    generator = CounterfactualVAEGAN(n_epochs=2, hidden=(64,), d_decoder=48, n_critic=1, n_contrasts=5)
    model = GCMCF(generator=generator, **SETTINGS, precision=precision, device="cuda")
    return model.fit(data.x_train, data.y_train, data.attributes)


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_gpu_gives_the_same_answers():
    script = Path(__file__).parent.parent / "benchmarks" / "check_gpu.py"
    done = subprocess.run([sys.executable, script, "--quick"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_model_that_trains_in_use_says_the_same_wherever_it_is_loaded(tmp_path):
    data = load_numbers(0, n_train=5, n_test=2)
    one = trained_in_use(data, "float32")
    one.save(tmp_path / "model")
    there = one.decision_function(data.x_test_unseen)
    here = GCMCF.load(tmp_path / "model").decision_function(data.x_test_unseen)
    np.testing.assert_allclose(here, there, rtol=1e-3, atol=1e-3 * np.abs(there).max())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_verdicts_by_float16_are_those_by_float32(monkeypatch):
    data, types = load_numbers(0, n_train=5, n_test=2), []
    one, train_softmaxes = trained_in_use(data, "tf32"), gcm_cf.train_softmaxes
    monkeypatch.setattr(
        gcm_cf,
        "train_softmaxes",
        lambda real, made, *args, **options: (
            types.append((real.dtype, made.dtype)) or train_softmaxes(real, made, *args, **options)
        ),
    )
    x = torch.tensor(one.scaler_.transform(data.x_test_unseen), device="cuda")
    by_half = one._judge(x, one._vectors("cuda"))
    one._judged.clear()
    monkeypatch.setattr(gcm_cf, "_operands", lambda *args: torch.float32)
    one.settings_["precision"] = "float32"
    whole = one._judge(x, one._vectors("cuda"))
    assert set(types) == {(torch.float16, torch.float16), (torch.float32, torch.float32)}
    torch.testing.assert_close(by_half, whole, rtol=0.0, atol=0.02 * whole.std().item())
