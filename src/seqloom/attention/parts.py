"""Shared parts of the attention layers: heads, padding, checks and the layer contract."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.attention import SDPBackend, sdpa_kernel

from seqloom.core.arguments import Checked
from seqloom.core.checks import check_heads, check_placement, read_lengths
from seqloom.core.errors import InputError, UserTypeError
from seqloom.core.masks import make_mask
from seqloom.core.plurals import count

State = tuple[Tensor, ...]
Lengths = Tensor | Sequence[int] | None


class Aside(TypedDict, total=False):
    """Further arguments of a step, as in `Attention.forward`."""

    memory: Tensor | None
    memory_lengths: Lengths
    mask: Tensor | None


class Heads(nn.Module, metaclass=Checked):
    """Base class of multi-head attention: products for queries, keys, values and output.

    Subclasses define `forward(x, state=None, lengths=None) -> (y, state)` on (B, T, D). A causal layer returns a state
    of `state_size` tensors, batch first, to pass in with the next steps; others return None.
    """

    state_size = 0

    def __init__(
        self,
        dim: int,
        heads: int,
        causal: bool,
        bias: bool,
        kv_heads: int | None = None,
        memory_size: int | None = None,
    ) -> None:
        super().__init__()
        check_heads(heads, dim, "dim")
        kv_heads = heads if kv_heads is None else kv_heads
        check_heads(kv_heads, heads, "heads", "kv_heads")
        self.input_size = self.output_size = dim
        self.heads, self.kv_heads, self.head_size, self.causal = heads, kv_heads, dim // heads, causal
        self.memory_size = dim if memory_size is None else memory_size
        self.q = nn.Linear(dim, dim, bias)
        self.k = nn.Linear(self.memory_size, kv_heads * self.head_size, bias)
        self.v = nn.Linear(self.memory_size, kv_heads * self.head_size, bias)
        self.out = nn.Linear(dim, dim, bias)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        for product in (self.q, self.k, self.v, self.out):
            nn.init.xavier_uniform_(product.weight)
            if product.bias is not None:
                nn.init.zeros_(product.bias)

    def read(self, x: Tensor, lengths: Lengths, state: State | None = None) -> tuple[Tensor, Tensor | None]:
        """Check the arguments; return x with 0 at padding, and the mask of real steps, None if all are."""
        check_input(x, self.input_size, self)
        if state is not None and not self.causal:
            raise InputError(f"{type(self).__name__} with causal=False takes no state; pass the whole sequence at once")
        check_state(state, self.state_size, x)
        real = real_steps(lengths, x)
        return mask_steps(x, real), real

    def split(self, t: Tensor) -> Tensor:
        """(B, T, heads d) -> (B, heads, T, d)."""
        return t.unflatten(-1, (-1, self.head_size)).transpose(1, 2)

    def join(self, t: Tensor) -> Tensor:
        """(B, heads, T, d) -> the output (B, T, D)."""
        return self.out(t.transpose(1, 2).flatten(2))

    def step(self, x: Tensor, state: State | None = None, **aside: Unpack[Aside]) -> tuple[Tensor, State | None]:
        """Run one step of a causal layer: (B, D) -> (B, D), state. Matches running the whole sequence."""
        if not self.causal:
            raise InputError(f"step: {type(self).__name__} with causal=False needs the whole sequence")
        y, state = self(x.unsqueeze(1), state, **aside)
        return y.squeeze(1), state

    def select(self, state: State, rows: Tensor) -> State:
        """Return the state of these batch rows, in this order; a row may be repeated."""
        return tuple(s.index_select(0, rows) for s in state)

    def extra_repr(self) -> str:
        return f"{self.input_size}, heads={self.heads}" + (", causal=True" if self.causal else "")


def check_input(x: Tensor, size: int, reader: nn.Module, name: str = "input") -> None:
    """Raise an error unless x is (B, T, size), T > 0, on the device and of the dtype of the module's weights."""
    if not isinstance(x, Tensor) or x.is_nested:
        kind = "nested Tensor" if isinstance(x, Tensor) else type(x).__name__
        raise UserTypeError(
            f"{name} must be a Tensor (B, T, {size}), with lengths= if rows differ in length, got a {kind}"
        )
    if x.dim() != 3 or x.shape[-1] != size:
        raise InputError(f"{name} must be (B, T, {size}), got shape {tuple(x.shape)}")
    if x.shape[1] == 0:
        raise InputError(f"{name} must have at least one step, got shape {tuple(x.shape)}")
    for weight in reader.parameters():  # a loop, since torch 2.8 does not compile next() with a default
        if weight.is_floating_point():
            check_placement(x, weight, name)
            break


def check_state(state: State | None, size: int, x: Tensor) -> None:
    """Raise an error unless state is None or `size` tensors with as many rows as x."""
    if isinstance(state, Tensor):
        raise UserTypeError(f"state must be the tuple of {count(size, 'tensor')} that the layer returned, got a Tensor")
    if state is not None and len(state) != size:
        raise InputError(f"state must have {count(size, 'tensor')}, got {len(state)}")
    for s in state or ():
        if s.shape[:1] != x.shape[:1]:
            rows = f"state has a tensor of shape {tuple(s.shape)}, the input has {count(x.shape[0], 'row')}"
            raise InputError(f"{rows}; choose the rows of the state with select(state, rows)")


def real_steps(lengths: Lengths, x: Tensor, name: str = "lengths") -> Tensor | None:
    """Return a mask (B, T), True at real steps; None without lengths."""
    if lengths is None:
        return None
    lengths = read_lengths(lengths, x.shape[0], x.shape[1], x.device, name)
    return make_mask(lengths, x.shape[1])


def take_first(t: Tensor, n: int, dim: int) -> Tensor:
    """Return the first n entries along a dimension; an export uses an index, since a slice would specialise on n."""
    if torch.compiler.is_exporting():
        return t.index_select(dim, torch.arange(n, device=t.device))
    return t.narrow(dim, 0, n)


def split_parts(t: Tensor, size: int, dim: int) -> Tensor:
    """(..., n size, ...) -> (..., n, size, ...); in an export with unfold, which allows any n, else as a view."""
    if torch.compiler.is_exporting():
        return t.unfold(dim, size, size).movedim(-1, dim + 1)
    return t.unflatten(dim, (-1, size))


def pad_end(t: Tensor, n: int, dim: int) -> Tensor:
    """Append n zeros at the end of a dimension; `dim` is negative."""
    if torch.compiler.is_compiling():
        t = t.contiguous()  # if n is 0, pad would keep strides that the graph does not expect
    return F.pad(t, (0, 0) * (-dim - 1) + (0, n))


def mask_steps(x: Tensor, real: Tensor | None) -> Tensor:
    """Set padding of x (B, T, ...) to 0, even where it is NaN."""
    if real is None:
        return x
    return torch.where(real.reshape(*real.shape, *[1] * (x.dim() - 2)), x, torch.zeros_like(x))


def softmax(s: Tensor, allowed: Tensor | None) -> Tensor:
    """Return the softmax of allowed scores over the last dimension; 0, with gradient 0, if none is allowed."""
    if allowed is None:
        return torch.softmax(s, -1)
    a = torch.softmax(s.masked_fill(~allowed, torch.finfo(s.dtype).min), -1)
    return a.masked_fill(~allowed, 0.0)


def weigh(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    enable_gqa: bool = False,
) -> Tensor:
    """Call torch's scaled_dot_product_attention, unfused where the fused kernels lack a derivative.

    These cases are forward-mode derivatives, and a bias inside vmap or grad, where torch does not see that the bias
    requires a gradient.
    """
    plain = not torch.compiler.is_compiling() and (forward_ad._current_level >= 0 or _is_transformed_bias(attn_mask))
    with sdpa_kernel(SDPBackend.MATH) if plain else nullcontext():
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=attn_mask, dropout_p=dropout_p, is_causal=is_causal, enable_gqa=enable_gqa
        )


def _is_transformed_bias(mask: Tensor | None) -> bool:
    return mask is not None and mask.is_floating_point() and torch._C._are_functorch_transforms_active()
