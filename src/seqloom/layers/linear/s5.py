"""S5: a diagonal state-space model, discretised with a learned step."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.checks import check_heads
from seqloom.core.errors import UserError
from seqloom.kernels.linear.diagonal import scan_pairs
from seqloom.layers.linear.layer import Mixer, wide
from seqloom.layers.linear.lru import start_pairs


class S5(Mixer, name="s5"):
    """S5: one state-space model with many inputs and outputs, in the coordinates that make its matrix diagonal.

        a  = exp(L dt)                                  L complex, Re L < 0, from the HiPPO-LegS matrix
        h' = a h + (a - 1) / L B x                      zero-order hold
        y  = W_o gelu(2 Re(C h') + d x)

    Only one of each pair of conjugate channels is computed. State: h (B, N / 2, 2), real and imaginary parts. Smith,
    Warrington & Linderman 2022, arXiv 2208.04933.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Blocks of the matrix at the start, each with its own HiPPO matrix.
        channels: Channels of the state, N, a multiple of 2 heads; 0 for the smallest multiple that is at least dim.
        shortest: Least step dt at the start.
        longest: Largest step dt at the start.
        causal: Must be True.

    Example:
        >>> y, state = seqloom.S5(8, heads=2)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[0].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 4, 2]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        channels: int = 0,
        shortest: float = 1e-3,
        longest: float = 0.1,
        causal: bool = True,
    ) -> None:
        super().__init__(dim, 1, causal)
        check_heads(heads, heads, "heads")
        unit = 2 * heads
        N = self.channels = channels or -(-dim // unit) * unit
        if N < 1 or N % unit:
            fitting = -(-max(N, 1) // unit) * unit
            raise UserError(f"channels must be a multiple of 2 * heads = {unit}, got {N}; take {fitting}")
        if not 0 < shortest <= longest:
            raise UserError(f"0 < shortest <= longest must hold, got {shortest} and {longest}")
        L, basis = make_hippo(N // heads)
        half = N // 2
        L = L.repeat(heads)
        self.L_real = nn.Parameter(torch.log(-L.real).float())  # L = -exp(L_real) + i L_imag
        self.L_imag = nn.Parameter(L.imag.float())
        eye = torch.eye(heads, dtype=torch.complex128)
        B = torch.kron(eye, basis.mH.contiguous()) @ (torch.randn(N, dim, dtype=torch.float64) * dim**-0.5).to(
            basis.dtype
        )
        C = (torch.randn(dim, N, dtype=torch.float64) * N**-0.5).to(basis.dtype) @ torch.kron(eye, basis.contiguous())
        self.B = nn.Parameter(torch.stack([B.real, B.imag]).float())  # (2, N / 2, D)
        self.C = nn.Parameter(torch.stack([C.real, C.imag]).float())  # (2, D, N / 2)
        self.d = nn.Parameter(torch.randn(dim))
        self.dt = nn.Parameter(torch.empty(half).uniform_(math.log(shortest), math.log(longest)))
        self.W_o = nn.Linear(dim, dim)
        self.state_size = 1

    def discretise(self) -> tuple[Tensor, Tensor]:
        """Return a and (a - 1) / L, complex (N / 2,), as real tensors (N / 2, 2)."""
        re, im, dt = -torch.exp(wide(self.L_real)), wide(self.L_imag), torch.exp(wide(self.dt))
        size = torch.exp(re * dt)
        a_re, a_im = size * torch.cos(im * dt), size * torch.sin(im * dt)
        norm = re * re + im * im
        f_re = ((a_re - 1) * re + a_im * im) / norm
        f_im = (a_im * re - (a_re - 1) * im) / norm
        return torch.stack([a_re, a_im], -1), torch.stack([f_re, f_im], -1)

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, State]:
        u = wide(x)
        a, f = self.discretise()
        re, im = (F.linear(u, wide(B)) for B in self.B)
        b = torch.stack([f[:, 0] * re - f[:, 1] * im, f[:, 0] * im + f[:, 1] * re], -1)
        y, end = scan_pairs(a, b, start_pairs(b, state), lengths=lengths, reset=reset)
        C = wide(self.C)
        re, im = (part.contiguous() for part in y.unbind(-1))  # torch.export asks whether strides are equal
        out = 2 * (F.linear(re, C[0]) - F.linear(im, C[1])) + wide(self.d) * u
        return self.W_o(F.gelu(out).to(x.dtype)), (end,)


def make_hippo(size: int) -> tuple[Tensor, Tensor]:
    """Return eigenvalues (size / 2,) and eigenvectors (size, size / 2) of the normal part of HiPPO-LegS.

    Only those with a positive imaginary part are returned; the others are their conjugates.
    """
    n = torch.arange(size, dtype=torch.float64)
    root = torch.sqrt(2 * n + 1)
    matrix = -torch.tril(root[:, None] * root[None, :], -1) - torch.diag(n + 1)
    low_rank = torch.sqrt(n + 0.5)
    normal = matrix + low_rank[:, None] * low_rank[None, :]
    symmetric = torch.diag(normal).mean()
    imaginary, vectors = torch.linalg.eigh((normal - symmetric * torch.eye(size, dtype=torch.float64)) * -1j)
    order = torch.argsort(imaginary)[size // 2 :]
    return torch.complex(symmetric.expand(size // 2), imaginary[order]), vectors[:, order]
