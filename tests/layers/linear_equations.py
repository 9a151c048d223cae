"""The equations of linear recurrences step by step, as in their papers, for tests."""

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.layers.linear import rg_lru


def run_deltanet(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, V) and S step by step, as in the paper; beta (B, T, H)."""
    outputs = []
    for t in range(q.shape[1]):
        now = torch.einsum("bhkv,bhk->bhv", S, k[:, t])
        S = S + beta[:, t, :, None, None] * k[:, t, :, :, None] * (v[:, t] - now)[:, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S


def run_deltaproduct(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, V) and S step by step; alpha (B, T, H), and k, v, beta (B, T, n, H, ...)."""
    outputs, eye = [], torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    for t in range(q.shape[1]):
        S = alpha[:, t, :, None, None] * S
        for j in range(k.shape[2]):
            kj, bj = k[:, t, j], beta[:, t, j, :, None, None]
            S = (eye - bj * kj[..., :, None] * kj[..., None, :]) @ S + bj * kj[..., None] * v[:, t, j, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S


def run_gated_deltanet(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor, beta: Tensor, S: Tensor
) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, V) and S step by step, as in the paper; alpha and beta (B, T, H)."""
    outputs, eye = [], torch.eye(q.shape[-1], dtype=q.dtype, device=q.device)
    for t in range(q.shape[1]):
        kk = k[:, t, :, :, None] * k[:, t, :, None, :]
        A = alpha[:, t, :, None, None] * (eye - beta[:, t, :, None, None] * kk)
        S = A @ S + beta[:, t, :, None, None] * k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S


def run_gla(q: Tensor, k: Tensor, v: Tensor, a: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, V) and S step by step, as in the paper; gates a (B, T, H, K)."""
    outputs = []
    for t in range(q.shape[1]):
        S = a[:, t, :, :, None] * S + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S


def run_hgrn2(q: Tensor, f: Tensor, v: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, V) and S step by step, as in the paper; forget gates f (B, T, H, K)."""
    outputs = []
    for t in range(q.shape[1]):
        S = f[:, t, :, :, None] * S + (1 - f[:, t])[..., None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S


def run_lru(a: Tensor, b: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
    """Return h after every step (B, T, N) and the last h, step by step; all complex, a (N,)."""
    outputs = []
    for t in range(b.shape[1]):
        h = a * h + b[:, t]
        outputs.append(h)
    return torch.stack(outputs, 1), h


def run_mamba2(v: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, V) without the skip d, and S, step by step; dt (B, T, H), A (H,) negative, B, C (B, T, N)."""
    outputs = []
    for t in range(v.shape[1]):
        keep = torch.exp(dt[:, t] * A)[..., None, None]
        S = keep * S + torch.einsum("bn,bh,bhv->bhnv", B[:, t], dt[:, t], v[:, t])
        outputs.append(torch.einsum("bhnv,bn->bhv", S, C[:, t]))
    return torch.stack(outputs, 1), S


def run_mlstm(q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> Tensor:
    """Return h (B, T, H, V) step by step, as in the paper, from an empty state; gates i and f (B, T, H)."""
    B, T, H, K = q.shape
    S, n = q.new_zeros(B, H, K, v.shape[-1]), q.new_zeros(B, H, K)
    m = q.new_zeros(B, H)
    outputs = []
    for t in range(T):
        forget = F.logsigmoid(f[:, t])
        later = torch.maximum(forget + m, i[:, t])
        keep, write = torch.exp(forget + m - later)[..., None], torch.exp(i[:, t] - later)[..., None]
        S = keep[..., None] * S + write[..., None] * k[:, t, :, :, None] * v[:, t, :, None, :]
        n, m = keep * n + write * k[:, t], later
        scale = torch.maximum((n * q[:, t]).sum(-1).abs(), torch.exp(-m))
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]) / scale[..., None])
    return torch.stack(outputs, 1)


def run_retnet(q: Tensor, k: Tensor, v: Tensor, gamma: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, V) and S step by step, as in the paper; gamma (H,)."""
    outputs = []
    for t in range(q.shape[1]):
        S = gamma[:, None, None] * S + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, q[:, t]))
    return torch.stack(outputs, 1), S


def run_rg_lru(u: Tensor, r: Tensor, i: Tensor, L: Tensor, h: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return h after every step (B, T, D) and the last, step by step, as in the paper; h None at the start."""
    outputs = []
    for t in range(u.shape[1]):
        a = torch.exp(-rg_lru.SHARPNESS * F.softplus(L) * r[:, t])
        write = i[:, t] * u[:, t]
        h = write if h is None else a * h + torch.sqrt(1 - a**2) * write
        outputs.append(h)
    assert h is not None
    return torch.stack(outputs, 1), h


def run_rwkv7(r: Tensor, w: Tensor, k: Tensor, v: Tensor, e: Tensor, a: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (B, T, H, V) and S step by step, as in the paper; w (B, T, H, K) is the decay itself."""
    outputs = []
    for t in range(r.shape[1]):
        A = torch.diag_embed(w[:, t]) - (a[:, t] * e[:, t])[..., :, None] * e[:, t, :, None, :]
        S = A @ S + k[:, t, :, :, None] * v[:, t, :, None, :]
        outputs.append(torch.einsum("bhkv,bhk->bhv", S, r[:, t]))
    return torch.stack(outputs, 1), S
