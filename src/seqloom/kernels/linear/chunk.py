"""A linear recurrence in chunks: products inside each chunk, one state from chunk to chunk.

Inside a chunk of C steps with the state S before it, and D_ts = exp(decay_(s+1) + ... + decay_t):

    w_t = v_t - (erase_t P_(t-1))^T S - sum_(s<t) (erase_t . k_s D_(t-1)s) w_s      a triangular system
    y_t = (q_t P_t)^T S + sum_(s<=t) (q_t . k_s D_ts) w_s
    S'  = P_C S + sum_s (k_s D_Cs) w_s^T                                              P_t = D_t0

D is computed as sums between s and t, never as a quotient: no power of it is above 1, so that nothing overflows, and a
decay of 0 (minus infinity as a logarithm) needs no special case.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from seqloom.kernels.linear.job import LinearJob

SCALAR_CHUNK = 64  # steps of a chunk with one decay for all channels
CHANNEL_CHUNK = 16  # with a decay for each channel, D has C x C numbers for each of them


def why_not(job: LinearJob) -> str | None:
    """Return why this job cannot run here; None if it can."""
    return "exported chunks would accept one length only" if torch.compiler.is_exporting() else None


def run(job: LinearJob, chunk: int = 0) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, T, H, V) and the last state (B, H, K, V).

    Args:
        job: The recurrence.
        chunk: Writes in a chunk; 0 for the default. Rounded up to whole outputs.
    """
    job = job.expand()
    by_channel = job.decay is not None and job.decay.shape[-1] > 1
    size = chunk or (CHANNEL_CHUNK if by_channel else SCALAR_CHUNK)
    outputs = min(-(-size // job.writes), job.q.shape[1])
    T = job.q.shape[1]
    q = _split(job.q, outputs)  # (B, H, N, outputs, K)
    k, v, erase, decay = (
        None if t is None else _split(t, outputs * job.writes) for t in (job.k, job.v, job.erase, job.decay)
    )
    assert k is not None and v is not None
    y, S = _run_chunks(q, k, v, decay, erase, job.state, job.writes)
    return y.flatten(2, 3)[:, :, :T].transpose(1, 2), S


def _split(t: Tensor, size: int) -> Tensor:
    """(B, T, H, d) -> (B, H, N, size, d), with zeros after the last step."""
    missing = -t.shape[1] % size
    t = F.pad(t, (0, 0, 0, 0, 0, missing)) if missing else t
    return t.unflatten(1, (-1, size)).permute(0, 3, 1, 2, 4)


def _run_chunks(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, erase: Tensor | None, S: Tensor, writes: int
) -> tuple[Tensor, Tensor]:
    """Return the outputs (B, H, N, outputs, V) and the last state."""
    C = k.shape[-2]
    reads = slice(writes - 1, None, writes)
    lower = torch.ones(C, C, dtype=torch.bool, device=k.device).tril()
    D, P = None, None
    if decay is not None:
        D = sum_segments(decay).exp()  # (..., C, C, 1 or K)
        P = decay.cumsum(-2).exp()  # (..., C, 1 or K)
    scores = _weigh(q, k, None if D is None else D[..., reads, :, :]).masked_fill(~lower[reads], 0)
    q = q if P is None else q * P[..., reads, :]
    kept = None if P is None else P[..., -1, :].unsqueeze(-1)  # (B, H, N, 1 or K, 1)
    ends = k if D is None else k * D[..., -1, :, :]
    if erase is None:
        added = ends.transpose(-1, -2) @ v
        before, S = _pass_states(added, added.new_ones(1, 1, 1, 1, 1) if kept is None else kept, S)
        return q @ before + scores @ v, S
    earlier = None if D is None else F.pad(D, (0, 0, 0, 0, 1, 0))[..., :-1, :, :]  # row t holds D_(t-1)s
    first = erase if P is None else erase * torch.cat([torch.ones_like(P[..., :1, :]), P[..., :-1, :]], -2)
    L = _weigh(erase, k, earlier).masked_fill(~lower.tril(-1), 0)
    # _Inverse has no forward-mode derivative, its operators have
    solve = _Inverse.forward(L) if forward_ad._current_level >= 0 else _Inverse.apply(L)
    w_v, w_S = solve @ v, solve @ first
    ends = ends.transpose(-1, -2)
    if k.shape[2] == 1:  # one chunk
        w = w_v - w_S @ S.unsqueeze(2)
        y = q @ S.unsqueeze(2) + scores @ w
        return y, (S if kept is None else kept[:, :, 0] * S) + (ends @ w).squeeze(2)
    A = -(ends @ w_S)  # (B, H, N, K, K): what a chunk makes of the state before it
    one = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    before, S = _pass_states(ends @ w_v, A + (one if kept is None else kept * one), S)
    return q @ before + scores @ (w_v - w_S @ before), S


class _Inverse(torch.autograd.Function):
    """(I + L)^-1 for strictly lower triangular L (..., C, C), from blocks of twice the size at every step.

    The inverse of [[A, 0], [M, B]] is [[A^-1, 0], [-B^-1 M A^-1, B^-1]]: a few batched products, whereas torch's
    triangular solver on a GPU solves one small system at a time. As stable as substitution, unlike powers of L.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(L: Tensor) -> Tensor:
        C = L.shape[-1]
        padded = 1 << (C - 1).bit_length()
        M = F.pad(L, (0, padded - C, 0, padded - C))
        X = torch.ones(*L.shape[:-2], padded, 1, 1, dtype=L.dtype, device=L.device)  # inverses of diagonal blocks
        size = 1
        while size < padded:
            pairs = padded // (2 * size)
            blocks = M.unflatten(-2, (pairs, 2 * size)).unflatten(-1, (pairs, 2 * size))
            below = blocks.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)[..., size:, :size]
            A, B = X[..., 0::2, :, :], X[..., 1::2, :, :]
            corner = -(B @ below @ A)
            upper = torch.cat([A, torch.zeros_like(A)], -1)
            X = torch.cat([upper, torch.cat([corner, B], -1)], -2)
            size *= 2
        return X.squeeze(-3)[..., :C, :C]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:  # noqa: ANN401, ARG004
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx: Any, dX: Tensor) -> Tensor:  # noqa: ANN401  # has what forward set
        (X,) = ctx.saved_tensors
        return -(X.mT @ dX @ X.mT).tril(-1)


def _weigh(rows: Tensor, columns: Tensor, D: Tensor | None) -> Tensor:
    """Return the products of rows (..., R, K) and columns (..., C, K), weighted by D (..., R, C, 1 or K)."""
    if D is None:
        return rows @ columns.transpose(-1, -2)
    if D.shape[-1] == 1:
        return (rows @ columns.transpose(-1, -2)) * D.squeeze(-1)
    return torch.einsum("...rk,...ck,...rck->...rc", rows, columns, D)


def _pass_states(added: Tensor, kept: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return the state before each chunk (B, H, N, K, V) and the last one.

    Args:
        added: (B, H, N, K, V), what each chunk adds.
        kept: (B, H, N, 1 or K, 1), factors of the state, or (B, H, N, K, K), its transition.
        S: (B, H, K, V), the state before the first chunk.
    """
    if forward_ad._current_level >= 0:  # _PassStates has no forward-mode derivative
        return _advance_all(added, kept, S)
    before, S = _PassStates.apply(added, kept, S)
    return before, S


def _advance_all(added: Tensor, kept: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Do what `_pass_states` does, with one kernel per chunk."""
    kept = kept.expand(*added.shape[:3], *kept.shape[3:])
    before = []
    for A, new in zip(kept.unbind(2), added.unbind(2), strict=True):
        before.append(S)
        S = _advance(S, A, new)
    return torch.stack(before, 2), S


def _advance(S: Tensor, A: Tensor, new: Tensor) -> Tensor:
    """Return A S + new for A (B, H, 1 or K, 1) or (B, H, K, K)."""
    if A.shape[-1] == 1:
        return torch.addcmul(new, A, S)
    return torch.baddbmm(new.flatten(0, 1), A.flatten(0, 1), S.flatten(0, 1)).unflatten(0, S.shape[:2])


class _PassStates(torch.autograd.Function):
    """`_advance_all` with one kernel per chunk in the backward pass as well, which starts with the last chunk.

    The gradient of the state before chunk n is g_n = A_n^T g_(n+1) + (the gradient of that output).
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(added: Tensor, kept: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
        return _advance_all(added, kept, S)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:  # noqa: ANN401
        ctx.save_for_backward(inputs[1], output[0])

    @staticmethod
    def backward(ctx: Any, d_before: Tensor, d_last: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # noqa: ANN401
        kept, before = ctx.saved_tensors
        is_matrix = kept.shape[-1] > 1
        back = kept.mT if is_matrix else kept
        g, g_first = _advance_all(d_before.flip(2), back.expand(*before.shape[:3], *back.shape[3:]).flip(2), d_last)
        g = g.flip(2)  # after each chunk
        d_kept = g @ before.mT if is_matrix else (g * before).sum(-1, keepdim=True)
        return g, d_kept.sum_to_size(kept.shape), g_first


def sum_segments(decay: Tensor) -> Tensor:
    """Return (..., C, C, d): at t, s the sum of decay (..., C, d) after s up to t; minus infinity where s > t.

    Each sum has its own terms only, so a large decay elsewhere costs no precision.
    """
    C = decay.shape[-2]
    after = torch.ones(C, C, dtype=torch.bool, device=decay.device).tril(-1).unsqueeze(-1)
    terms = torch.where(after, decay.unsqueeze(-2), torch.zeros_like(decay.unsqueeze(-2)))
    sums = terms.cumsum(-3)
    upper = torch.ones(C, C, dtype=torch.bool, device=decay.device).triu(1).unsqueeze(-1)
    return sums.masked_fill(upper, -torch.inf)
