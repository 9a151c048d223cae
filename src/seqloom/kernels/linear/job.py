"""The common form of all linear recurrences with a matrix state."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from seqloom.core.errors import DtypeError, InputError
from seqloom.core.masks import make_mask


@dataclass(frozen=True, eq=False)
class LinearJob:
    """The input of a linear recurrence of H heads, each with a state S of size K x V.

        S_t = diag(exp(decay_t)) S_(t-1) + k_t (v_t - S_(t-1)^T erase_t)^T
        y_t = S_t^T q_t

    Without `erase` a write is an outer product. With `beta` instead of `erase` it is the delta rule, which moves the
    value that the decayed state has for k towards v:

        A   = diag(exp(decay_t)) S_(t-1)
        S_t = A + beta_t k_t (v_t - A^T k_t)^T                 erase = exp(decay) k, and beta k in place of k

    Several writes for each output (`writes` > 1) give products of Householder matrices and transitions of rank two.

    Attributes:
        q: (B, T, H, K).
        k: (B, T * writes, H, K).
        v: (B, T * writes, H, V).
        decay: (B, T * writes, H, 1) or (B, T * writes, H, K), the logarithm of the decay, at most 0; None for no decay.
            Minus infinity empties the state.
        erase: (B, T * writes, H, K), or None.
        state: (B, H, K, V), float32 or float64: sums are computed in its type.
        writes: Writes for each output.
        beta: (B, T * writes, H, 1), or None.
        has_reset: Whether a decay may be minus infinity.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    decay: Tensor | None
    erase: Tensor | None
    state: Tensor
    writes: int = 1
    beta: Tensor | None = None
    has_reset: bool = False

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors of the job."""
        parts = (self.q, self.k, self.v, self.decay, self.erase, self.state, self.beta)
        return tuple(t for t in parts if t is not None)

    @property
    def needs_gradient(self) -> bool:
        """Whether autograd records this call."""
        return torch.is_grad_enabled() and any(t.requires_grad for t in self.tensors)

    def widen(self) -> LinearJob:
        """Return the job with every tensor in the type of the state."""
        wide = self.state.dtype
        if all(t is None or t.dtype == wide for t in (self.q, self.k, self.v, self.decay, self.erase, self.beta)):
            return self
        decay, erase, beta = (None if t is None else t.to(wide) for t in (self.decay, self.erase, self.beta))
        q, k, v = (t.to(wide) for t in (self.q, self.k, self.v))
        return replace(self, q=q, k=k, v=v, decay=decay, erase=erase, beta=beta)

    def expand(self) -> LinearJob:
        """Return the job with `erase` in place of `beta`, in the type of the state."""
        if self.beta is None:
            return self.widen()
        job = self.widen()
        assert job.beta is not None
        erase = job.k if job.decay is None else job.decay.exp() * job.k
        return replace(job, k=job.beta * job.k, erase=erase, beta=None)


def make_job(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    decay: Tensor | None = None,
    erase: Tensor | None = None,
    state: Tensor | None = None,
    *,
    beta: Tensor | None = None,
    lengths: Tensor | None = None,
    reset: Tensor | None = None,
    writes: int = 1,
) -> LinearJob:
    """Check the arguments of a linear recurrence, and express lengths and resets through decay, keys and erasure.

    A step past a row's length neither decays nor writes; a reset empties the state before a step.

    Args:
        q: (B, T, H, K).
        k: (B, T * writes, H, K).
        v: (B, T * writes, H, V).
        decay: Logarithms, (B, T * writes, H), or with a last dimension of 1 or K; or None.
        erase: (B, T * writes, H, K), or None.
        state: (B, H, K, V), any floating-point type; None for zeros.
        beta: (B, T * writes, H), for the delta rule; or None.
        lengths: (B,), the real steps of each row.
        reset: (B, T), True where the state is emptied before the step.
        writes: Writes for each output.

    Raises:
        InputError: If a shape does not fit.
        DtypeError: If a tensor is not of a real floating-point type.
    """
    B, T, H, K = q.shape
    V, steps = v.shape[-1], T * writes
    wide = torch.promote_types(v.dtype, torch.float32)
    if beta is not None and erase is not None:
        raise InputError("give beta or erase, not both")
    decay = decay.unsqueeze(-1) if decay is not None and decay.dim() == 3 else decay
    beta = beta.unsqueeze(-1) if beta is not None and beta.dim() == 3 else beta
    expected = {"k": (k, K), "v": (v, V), "erase": (erase, K), "decay": (decay, 1), "beta": (beta, 1)}
    for name, (tensor, width) in expected.items():
        if tensor is None:
            continue
        widths = (1, K) if name == "decay" else (width,)
        if tuple(tensor.shape[:-1]) != (B, steps, H) or tensor.shape[-1] not in widths:
            raise InputError(f"{name} must be {(B, steps, H, width)}, got shape {tuple(tensor.shape)}")
    if state is None:
        state = torch.zeros(B, H, K, V, dtype=wide, device=v.device)
    elif tuple(state.shape) != (B, H, K, V):
        raise InputError(f"the state must be {(B, H, K, V)}, got shape {tuple(state.shape)}")
    for tensor in (q, k, v, state):
        if not tensor.is_floating_point():
            raise DtypeError(f"a linear recurrence takes real floating-point tensors, got {tensor.dtype}")
    if state.device != v.device:
        raise InputError(f"the state is on {state.device}, the input on {v.device}; move one with .to()")
    if reset is not None:
        starts = reset if writes == 1 else _pad_writes(reset, writes)
        gone = starts.reshape(B, steps, 1, 1)
        decay = torch.zeros(B, steps, H, 1, dtype=wide, device=v.device) if decay is None else decay.to(wide)
        decay = decay.masked_fill(gone, -torch.inf)
        erase = None if erase is None else erase.masked_fill(gone, 0)
    if lengths is not None:
        past = ~make_mask(lengths * writes, steps).reshape(B, steps, 1, 1)
        k, v = k.masked_fill(past, 0), v.masked_fill(past, 0)
        decay = None if decay is None else decay.masked_fill(past, 0)
        erase = None if erase is None else erase.masked_fill(past, 0)
    return LinearJob(q, k, v, decay, erase, state.to(wide), writes, beta, reset is not None)


def _pad_writes(reset: Tensor, writes: int) -> Tensor:
    """Return (B, T * writes): the resets of (B, T), each before the first write of its step."""
    later = reset.new_zeros(*reset.shape, writes - 1)
    return torch.cat([reset.unsqueeze(-1), later], -1).flatten(1)
