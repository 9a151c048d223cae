"""mLSTM: an LSTM with a matrix memory and exponential gates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.core.cell import State
from seqloom.core.masks import make_mask
from seqloom.kernels.scan import scan_steps
from seqloom.layers.linear.layer import LinearMixer, Terms, read_float_state, wide
from seqloom.layers.linear.parts import HeadLayerNorm, HeadNorm

GATE_CAP = 15.0  # cap of xLSTM 7B


class MLSTM(LinearMixer, name="mlstm"):
    """mLSTM: the matrix memory of xLSTM.

        q, k, v = W_q u, W_k u / sqrt(K), W_v x                u = silu(conv(x))
        i, f    = W_i x + b_i, log sigmoid(W_f x + b_f)         one of each for a head, as logarithms
        m'      = max(f + m, i)
        S'      = exp(f + m - m') S + exp(i - m') k v^T
        n'      = exp(f + m - m') n + exp(i - m') k
        h       = S'^T q / max(|n'^T q|, exp(-m'))
        y       = W_o (norm(h) * silu(W_g x))

    n is a further column of S, and m keeps the exponential gate from overflowing: it changes no result. State: the
    inputs of the convolution, [S n] (B, heads, K, V + 1), m (B, heads). Beck et al. 2024, arXiv 2405.04517.

    With `capped` it is the layer of xLSTM 7B (Beck et al. 2025, arXiv 2503.13427), whose published weights
    `load_published` reads: 15 tanh(z / 15) in place of both gates' z, a layer norm of each head, a sigmoid in place of
    silu in the last line, and no convolution.

    There is no `batch_first`: inputs are (B, T, D), because every part works on whole rows; transpose (T, B, D) first.

    Args:
        dim: Width of input and output, D.
        heads: Heads; dim must be a multiple.
        key_size: Channels of a key in each head, K; 0 for dim / heads.
        kernel_size: Steps of the convolution; 0 for none. Not used with `capped`.
        capped: Whether to use the equations of xLSTM 7B.
        causal: Must be True.
        kernel: "auto", or the name of a kernel.

    Example:
        >>> y, state = seqloom.MLSTM(8, heads=2)(torch.randn(3, 5, 8))  # (B, T, D) -> (B, T, D)
        >>> y.shape, state[1].shape
        (torch.Size([3, 5, 8]), torch.Size([3, 2, 4, 5]))
    """

    def __init__(
        self,
        dim: int,
        heads: int = 4,
        *,
        key_size: int = 0,
        kernel_size: int = 4,
        capped: bool = False,
        causal: bool = True,
        kernel: str = "auto",
    ) -> None:
        super().__init__(dim, heads, causal, kernel, key_size)
        K = heads * self.key_size
        self.W_qk, self.W_v = nn.Linear(dim, 2 * K, bias=False), nn.Linear(dim, dim, bias=False)
        self.W_if = nn.Linear(dim, 2 * heads)
        self.W_g, self.W_o = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.capped = capped
        self.norm = HeadLayerNorm(heads, self.value_size) if capped else HeadNorm(self.value_size)
        self.add_conv(dim, 0 if capped else kernel_size)
        self.state_size += 1
        with torch.no_grad():
            self.W_if.weight.zero_()
            self.W_if.bias[:heads].fill_(-1.0)
            self.W_if.bias[heads:].copy_(torch.linspace(3.0, 6.0, heads))  # as in the paper: heads remember differently

    def mix(self, x: Tensor, state: State | None, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, State]:
        B, _, _ = x.shape
        u, ends, left = self.convolve(x, state, lengths, reset)
        q, k = (self.split(t) for t in self.W_qk(u).chunk(2, -1))
        v = self.split(self.W_v(x))
        gates = wide(self.W_if(x))
        i, f = (GATE_CAP * torch.tanh(gates / GATE_CAP) if self.capped else gates).chunk(2, -1)  # (B, T, heads)
        f = F.logsigmoid(f)
        S = read_float_state(left[0] if left else None)
        m = i.new_zeros(B, self.heads) if not left else left[1].to(i.dtype)
        i, f = _apply_flags(i, f, lengths, reset)
        before, m_all = scan_maximum(i, f, m)  # (B, T, heads)
        decay = f + before - m_all
        k = k * (self.key_size**-0.5 * torch.exp(i - m_all)).unsqueeze(-1)
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1).to(k.dtype)
        y, S = self.recur(Terms(q.to(k.dtype), k, v, decay=decay), S, lengths, reset)
        h, n = y[..., :-1], y[..., -1:]
        h = h / torch.maximum(n.abs(), torch.exp(-m_all).unsqueeze(-1))
        y = self.norm(h, self.split(self.W_g(x))).flatten(2).to(x.dtype)
        return self.W_o(y), (*ends, S, m_all[:, -1].clone())


def _apply_flags(i: Tensor, f: Tensor, lengths: Tensor | None, reset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the gates such that a step past a row's length neither writes nor forgets and a reset forgets all."""
    if reset is not None:
        f = f.masked_fill(reset.unsqueeze(-1), -torch.inf)
    if lengths is None:
        return i, f
    past = ~make_mask(lengths, i.shape[1]).unsqueeze(-1)
    return i.masked_fill(past, -torch.inf), f.masked_fill(past, 0)


def scan_maximum(i: Tensor, f: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """Return m before and m' = max(f + m, i) after every step, (B, T, H) each, in log2(T) passes.

    Two steps (f1, i1), (f2, i2) are one step (f1 + f2, max(f2 + i1, i2)).
    """
    if torch.compiler.is_exporting():
        both, _ = scan_steps(_step_maximum, m, [i, f])
        return both[..., 0], both[..., 1]
    i = torch.cat([torch.maximum(f[:, :1] + m.unsqueeze(1), i[:, :1]), i[:, 1:]], 1)
    T, reach = i.shape[1], 1
    while reach < T:
        later, earlier = slice(reach, None), slice(None, -reach)
        i = torch.cat([i[:, :reach], torch.maximum(f[:, later] + i[:, earlier], i[:, later])], 1)
        f = torch.cat([f[:, :reach], f[:, later] + f[:, earlier]], 1)
        reach *= 2
    return torch.cat([m.unsqueeze(1), i[:, :-1]], 1), i


def _step_maximum(m: Tensor, gates: list[Tensor]) -> tuple[Tensor, Tensor]:
    after = torch.maximum(gates[1] + m, gates[0])
    return after, torch.stack([m, after], -1)
