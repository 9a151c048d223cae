"""The definition of a linear recurrence, step by step."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.kernels.linear.job import LinearJob


def why_not(job: LinearJob) -> str | None:
    """Return None: the definition runs every job."""
    return None


def run(job: LinearJob) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, T, H, V) and the last state (B, H, K, V)."""
    job = job.expand()
    S, outputs = job.state, []
    for t in range(job.q.shape[1]):
        for i in range(t * job.writes, (t + 1) * job.writes):
            S = advance(S, *(None if part is None else part[:, i] for part in (job.k, job.v, job.decay, job.erase)))
        outputs.append(read(S, job.q[:, t]))
    return torch.stack(outputs, 1), S


def advance(S: Tensor, k: Tensor | None, v: Tensor | None, decay: Tensor | None, erase: Tensor | None) -> Tensor:
    """Return S' = exp(decay) S + k (v - S^T erase)^T for S (B, H, K, V)."""
    assert k is not None and v is not None
    w = v if erase is None else v - (erase.unsqueeze(-1) * S).sum(-2)
    kept = S if decay is None else decay.exp().unsqueeze(-1) * S
    return kept + k.unsqueeze(-1) * w.unsqueeze(-2)


def read(S: Tensor, q: Tensor) -> Tensor:
    """Return S^T q, (B, H, V)."""
    return (q.unsqueeze(-1) * S).sum(-2)
