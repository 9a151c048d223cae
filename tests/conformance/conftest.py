"""Compare exact numbers: cuDNN multiplies float32 matrices in tf32 unless it is told not to."""

import pytest
import torch


@pytest.fixture(autouse=True)
def _exact_products(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
