"""Whether something is at work that a compiled kernel cannot follow."""

from __future__ import annotations

import torch
from torch.autograd import forward_ad


def transformed() -> str | None:
    """The reason, for a kernel that needs addresses or a fixed length."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return "fused kernels know no vmap and no forward-mode derivative"
    if torch.compiler.is_exporting():
        return "fused kernels freeze the length when exported"
    return None
