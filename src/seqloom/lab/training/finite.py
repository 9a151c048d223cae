"""Where a number first was not finite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 8  # of a batch that are named
NOTHING = "nothing that happens again"


def find(model: nn.Module, again: Callable[[], Tensor], batch_x: Tensor) -> str:
    """What was not finite first: a weight, the input, a layer's output, a gradient. `again` repeats the loss."""
    for name, p in model.named_parameters():
        if not _finite(p):
            return f"weight {name!r}"
    if batch_x.is_floating_point() and not _finite(batch_x):
        row = int((~batch_x.isfinite()).flatten(1).any(1).nonzero()[0])
        return f"the input, in row {row} of the batch"
    wrong: list[str] = []

    def look(name: str, kind: str) -> Callable[..., None]:
        def hook(_: Any, __: Any, output: Any) -> None:
            if not all(_finite(t) for t in _tensors(output)):
                wrong.append(f"the output of {name!r} ({kind})")

        return hook

    hooks = [m.register_forward_hook(look(name, type(m).__name__)) for name, m in model.named_modules() if name]
    try:
        model.zero_grad(set_to_none=True)
        loss = again()
        if not wrong and bool(loss.isfinite()):
            loss.backward()
    finally:
        for hook in hooks:
            hook.remove()
    if wrong:
        return wrong[0]
    if not bool(loss.isfinite()):
        return "the loss itself"
    # gradients run backwards: the last parameter in the model is the first that goes wrong
    for name, p in reversed(list(model.named_parameters())):
        if p.grad is not None and not _finite(p.grad):
            return f"the gradient of {name!r}"
    return NOTHING


def rows(numbers: Tensor) -> str:
    """A batch's rows, for a person."""
    shown = ", ".join(str(n) for n in numbers[:ROWS].tolist())
    return shown if len(numbers) <= ROWS else f"{shown} and {len(numbers) - ROWS} more"


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [t for part in output for t in _tensors(part)] if isinstance(output, tuple | list) else []
