"""Conversion of torch.nn's Transformers, with their weights."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.attention.convert import rename_from_torch
from seqloom.core.errors import UserError, UserTypeError
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Transformer

CONVERTIBLE = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder, nn.TransformerDecoder)
# Torch numbers its norms; the last one belongs to the feed-forward network.
NORMS = {2: ("attention", "feed"), 3: ("attention", "cross", "feed")}


def from_torch(module: nn.Module, causal: bool | None = None) -> Transformer:
    """Convert a Transformer of torch.nn, with a copy of its weights.

    Args:
        module: A TransformerEncoder, a TransformerDecoder, or one of their layers.
        causal: Whether steps attend to earlier steps only, which torch expresses by a mask. By default True for a
            decoder and False for an encoder.

    Returns:
        A `Transformer` with the same results.

    Raises:
        TypeError: If the module is none of these.
        ValueError: If its activation is neither relu nor gelu.
    """
    if not isinstance(module, CONVERTIBLE):
        names = ", ".join(kind.__name__ for kind in CONVERTIBLE)
        raise UserTypeError(f"from_torch takes one of {names}, got {type(module).__name__}")
    whole = isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder)
    layers: list[Any] = list(module.layers) if whole else [module]  # type: ignore[arg-type]
    one = layers[0]
    crossed = hasattr(one, "multihead_attn")
    new = Transformer(
        one.self_attn.embed_dim,
        one.self_attn.num_heads,
        len(layers),
        causal=crossed if causal is None else causal,
        memory_size=one.self_attn.embed_dim if crossed else None,
        block=_read_block(one),
    ).to(one.linear1.weight)
    for i, layer in enumerate(layers):
        new.layer_at(i).load_state_dict(_rename_weights(layer.state_dict(), 3 if crossed else 2))
    last = getattr(module, "norm", None) if whole else None
    new.norm = nn.Identity()
    if isinstance(last, nn.LayerNorm):
        new.norm = nn.LayerNorm(new.output_size, last.eps, bias=last.bias is not None).to(last.weight)
        new.norm.load_state_dict(last.state_dict())
    return new.train(module.training)


def _read_block(layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer) -> Block:
    acts = {F.gelu: "gelu", F.relu: "relu"}
    act = acts.get(layer.activation) or {nn.GELU: "gelu", nn.ReLU: "relu"}.get(type(layer.activation))
    if act is None:
        raise UserError(f"activation must be relu or gelu, got {layer.activation!r}")
    return Block(
        norm="pre" if layer.norm_first else "post",
        activation=act,
        hidden=layer.linear1.out_features,
        dropout=layer.dropout.p,
        bias=layer.linear1.bias is not None,
        eps=layer.norm1.eps,
    )


def _rename_weights(state: dict[str, Tensor], parts: int) -> dict[str, Tensor]:
    """Return a torch layer's state_dict with the names of TransformerLayer."""
    weights: dict[str, Tensor] = {}
    for theirs, mine in {"self_attn.": "attention.", "multihead_attn.": "cross."}.items():
        part = {name.removeprefix(theirs): t for name, t in state.items() if name.startswith(theirs)}
        weights |= {mine + name: t for name, t in rename_from_torch(part).items()} if part else {}
    renamed = {f"linear{n}.": f"feed.W_{n}." for n in (1, 2)}
    renamed |= {f"norm{n}.": f"norm_{name}." for n, name in enumerate(NORMS[parts], 1)}
    for name, t in state.items():
        head = name.split(".")[0] + "."
        if head in renamed:
            weights[renamed[head] + name.split(".")[1]] = t
    return weights
