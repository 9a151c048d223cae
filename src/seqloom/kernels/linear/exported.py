"""A linear recurrence through torch's scan operator, for programs of torch.export that take any length."""

from __future__ import annotations

import torch
from torch import Tensor

from seqloom.kernels.linear.job import LinearJob
from seqloom.kernels.linear.recurrent import advance, read
from seqloom.kernels.scan import scan_steps


def why_not(job: LinearJob) -> str | None:
    """Return why this job cannot run here; None if it can."""
    return None if torch.compiler.is_exporting() else "it is for torch.export, which is not at work"


def run(job: LinearJob) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, T, H, V) and the last state (B, H, K, V)."""
    job = job.expand()
    T, n = job.q.shape[1], job.writes
    optional = [job.decay, job.erase]
    parts = [t for t in (job.k, job.v, *optional) if t is not None]
    parts = [t.unflatten(1, (T, n)) if n > 1 else t.unsqueeze(2) for t in parts]  # (B, T, writes, H, d)

    def step(state: Tensor, now: list[Tensor]) -> tuple[Tensor, Tensor]:
        q, k, v, *rest = now
        left = iter(rest)
        decay, erase = (None if t is None else next(left) for t in optional)
        for i in range(n):
            state = advance(
                state,
                k[:, i],
                v[:, i],
                None if decay is None else decay[:, i],
                None if erase is None else erase[:, i],
            )
        return state, read(state, q)

    return scan_steps(step, job.state, [job.q, *parts])
