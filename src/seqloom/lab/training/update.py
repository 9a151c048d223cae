"""The one place where a training changes weights: clip the gradients, skip what is not finite, step the optimiser."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor


class Update:
    """Apply gradients to weights. `train`, `compare`, studies and goals all take their steps here.

    Args:
        weights: The parameters to clip, in the order of the model.
        optimiser: Their optimiser. If it is capturable, no step waits for the GPU, and steps can be recorded as a
            CUDA graph.
        clip: The largest norm of the gradient; infinity to change nothing.
        scaler: The scale of losses in float16.

    Example:
        >>> layer = torch.nn.Linear(2, 1)
        >>> update = Update(layer.parameters(), torch.optim.Adam(layer.parameters()), clip=1.0)
        >>> bool(update.take_step(layer(torch.randn(8, 2)).square().mean(), lr=1e-3))
        True
    """

    def __init__(
        self,
        weights: Iterable[Tensor],
        optimiser: torch.optim.Optimizer,
        clip: float = math.inf,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self.weights, self.optimiser, self.clip = list(weights), optimiser, clip
        self.scaler = torch.amp.GradScaler(enabled=False) if scaler is None else scaler
        self.is_recordable = bool(optimiser.defaults.get("capturable"))

    def take_step(self, loss: Tensor, lr: float | None = None) -> Tensor:
        """Minimise a loss by one step, unless it or its gradient is not finite; return whether both are finite."""
        if lr is not None:
            self.set_rate(lr)
        loss.backward()
        finite = self.clip_gradients() & loss.detach().isfinite()
        self.apply(finite)
        self.discard_gradients()
        return finite

    def set_rate(self, lr: float | Tensor) -> None:
        """Set the learning rate of all groups, in place where it is a tensor."""
        for group in self.optimiser.param_groups:
            if not isinstance(group["lr"], Tensor):
                group["lr"] = float(lr)
            elif isinstance(lr, Tensor):
                group["lr"].copy_(lr)
            else:
                group["lr"].fill_(lr)

    def clip_gradients(self) -> Tensor:
        """Remove the scale of the loss, clip the gradients, and return whether all of them are finite, as a tensor."""
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimiser)
        return clip_gradients([p.grad for p in self.weights if p.grad is not None], self.clip)

    def apply(self, finite: Tensor | bool) -> None:
        """Take a step with the gradients if they are finite; a scaler skips steps whose gradients overflowed itself."""
        if self.is_recordable:
            assert isinstance(finite, Tensor)
            setattr(self.optimiser, "found_inf", (~finite).float())  # noqa: B010  (makes a fused step skip itself)
            self.optimiser.step()
        elif finite:
            self.scaler.step(self.optimiser)
            self.scaler.update()

    def discard_gradients(self) -> None:
        """Free the gradients."""
        self.optimiser.zero_grad(set_to_none=True)


def clip_gradients(gradients: list[Tensor], limit: float) -> Tensor:
    """Scale gradients in place to a norm of at most `limit`; return whether all of them are finite, as a tensor.

    Gradients through a thousand steps can reach 1e30. Their squares overflow float32, so that
    `torch.nn.utils.clip_grad_norm_` returns an infinite norm; here they are divided by the largest value first.

    Args:
        gradients: Tensors on one device.
        limit: The largest norm; infinity to change nothing.
    """
    largest = torch.stack(torch._foreach_norm(gradients, math.inf)).max()
    if limit < math.inf:
        scale = largest.clamp(min=limit)
        torch._foreach_div_(gradients, scale)
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        torch._foreach_mul_(gradients, torch.minimum(limit / norm, scale))
    return largest < math.inf  # false for NaN, too
