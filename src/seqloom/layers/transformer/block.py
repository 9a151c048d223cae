"""One layer of a Transformer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.attention.dense import Attention
from seqloom.attention.parts import Lengths, State, mask_steps, real_steps
from seqloom.core.arguments import Checked
from seqloom.core.errors import InputError, UserError
from seqloom.layers.linear.layer import Mixer

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu, "swiglu": F.silu}


@dataclass(frozen=True)
class Block(metaclass=Checked):
    """Settings of the layers of a Transformer.

    Args:
        norm: "pre" for layer normalisation before each part and once at the end (Xiong et al. 2020, arXiv 2002.04745),
            or "post" for normalisation after each sum, as in the original Transformer.
        activation: "gelu", "relu" or "swiglu" (Shazeer 2020, arXiv 2002.05202).
        hidden: Width of the feed-forward network; 0 for 4 D, or 8/3 D with swiglu, which has a third product.
        dropout: Dropout on the output of each part and inside the feed-forward network.
        bias: Whether linear maps and norms have biases.
        eps: Added to the variance in the norms.
        attention_dropout: Dropout on the attention weights; None for `dropout`. Above 0, torch has no fused attention
            on a CPU and stores all T x T weights of each head.

    Raises:
        ValueError: If a value is unknown or out of range.

    Example:
        >>> layer = seqloom.Transformer(8, heads=2, block=seqloom.Block(activation="swiglu", dropout=0.1))
        >>> layer(torch.randn(3, 5, 8))[0].shape
        torch.Size([3, 5, 8])
    """

    norm: str = "pre"
    activation: str = "gelu"
    hidden: int = 0
    dropout: float = 0.0
    bias: bool = True
    eps: float = 1e-5
    attention_dropout: float | None = None

    def __post_init__(self) -> None:
        if self.norm not in ("pre", "post"):
            raise UserError(f"Block.norm must be 'pre' or 'post', got {self.norm!r}")
        if self.activation not in ACTIVATIONS:
            raise UserError(f"Block.activation must be one of {', '.join(ACTIVATIONS)}, got {self.activation!r}")
        for name, share in (("dropout", self.dropout), ("attention_dropout", self.weight_dropout)):
            if not 0 <= share <= 1:
                raise UserError(f"Block.{name} must be between 0 and 1, got {share}")

    @property
    def weight_dropout(self) -> float:
        """The dropout on the attention weights."""
        return self.dropout if self.attention_dropout is None else self.attention_dropout


class FeedForward(nn.Module):
    """f(x) = W_2 act(W_1 x); swiglu: W_2 (silu(W_1 x) * (W_3 x))."""

    def __init__(self, dim: int, block: Block) -> None:
        super().__init__()
        gated = block.activation == "swiglu"
        hidden = block.hidden or (8 * dim // 3 if gated else 4 * dim)
        self.act, self.dropout = ACTIVATIONS[block.activation], block.dropout
        self.W_1 = nn.Linear(dim, hidden, block.bias)
        self.W_2 = nn.Linear(hidden, dim, block.bias)
        self.W_3 = nn.Linear(dim, hidden, block.bias) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        a = self.act(self.W_1(x))
        a = a if self.W_3 is None else a * self.W_3(x)
        return self.W_2(F.dropout(a, self.dropout, self.training))


class TransformerLayer(nn.Module):
    """Self-attention, optional attention to a memory, and a feed-forward network.

        pre    x = x + f(norm(x))      for each of the three f
        post   x = norm(x + f(x))

    Args:
        attention: A layer `forward(x, state, lengths) -> (y, state)` with `input_size`, `causal` and `state_size`.
        block: Norm, feed-forward network and dropout.
        cross: The attention to a memory, if there is a memory.
    """

    def __init__(self, attention: nn.Module, block: Block = Block(), cross: Attention | None = None) -> None:
        super().__init__()
        dim = cast(int, attention.input_size)
        self.input_size = self.output_size = dim
        self.causal, self.block = cast(bool, attention.causal), block
        self.attention, self.cross, self.feed = attention, cross, FeedForward(dim, block)
        norms = [nn.LayerNorm(dim, block.eps, bias=block.bias) for _ in range(2 if cross is None else 3)]
        self.norm_attention, self.norm_feed = norms[:2]
        self.norm_cross = None if cross is None else norms[2]
        self.own_size = cast(int, attention.state_size) if self.causal else 0
        self.state_size = self.own_size + (0 if cross is None else cross.state_size)

    def forward(
        self,
        x: Tensor,
        state: State | None = None,
        lengths: Lengths = None,
        *,
        memory: Tensor | None = None,
        memory_lengths: Lengths = None,
        mask: Tensor | None = None,
        reset: Tensor | None = None,
    ) -> tuple[Tensor, State | None]:
        """Run on x (B, T, D); the state has the tensors of the self-attention, then those of the memory."""
        aside: dict[str, Any] = {} if mask is None else {"mask": mask}
        if reset is not None:
            if not isinstance(self.attention, Mixer):
                raise InputError(f"reset: {type(self.attention).__name__} sees all steps; take linear recurrences only")
            aside["reset"] = reset
        own = None if state is None or not self.causal else state[: self.own_size]
        y, end = self.attention(self._before(self.norm_attention, x), own, lengths, **aside)
        x = self._after(self.norm_attention, x, y)
        if self.cross is not None and self.norm_cross is not None:
            past = None if state is None or memory is not None else state[self.own_size :]
            if memory is None and past is None:
                raise InputError("this Transformer has memory_size= and needs a memory; pass memory=")
            aside = {"memory": memory, "memory_lengths": memory_lengths}
            y, read = self.cross(self._before(self.norm_cross, x), past, lengths, **aside)
            x = self._after(self.norm_cross, x, y)
            end = (*(end or ()), *read)
        y = self.feed(self._before(self.norm_feed, x))
        x = self._after(self.norm_feed, x, y)
        return mask_steps(x, real_steps(lengths, x)), end

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.block.norm == "pre" else x

    def _after(self, norm: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        y = x + F.dropout(y, self.block.dropout, self.training)
        return y if self.block.norm == "pre" else norm(y)
