"""Compare exact numbers: cuDNN multiplies float32 matrices in tf32 unless it is told not to."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _exact_products():
    """Set the flag before the cases that the tests of a module share are computed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)
        yield
