"""Torch's Transformer layers, taken over with their weights."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from seqloom.attention.convert import rename_from_torch
from seqloom.core.errors import UserError, UserTypeError
from seqloom.layers.transformer.block import Block
from seqloom.layers.transformer.layer import Transformer

KNOWN = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer, nn.TransformerEncoder, nn.TransformerDecoder)
# Torch counts its norms; the last one is the small network's.
NORMS = {2: ("attention", "feed"), 3: ("attention", "cross", "feed")}


def from_torch(module: nn.Module, causal: bool | None = None) -> Transformer:
    """A torch.nn.TransformerEncoder, Decoder, or one of their layers -> the same as a Transformer.

    `causal` is what torch's users say with a mask: True for a decoder, False for an encoder unless given.
    """
    if not isinstance(module, KNOWN):
        names = ", ".join(kind.__name__ for kind in KNOWN)
        raise UserTypeError(f"from_torch takes one of {names}, got {type(module).__name__}")
    whole = isinstance(module, nn.TransformerEncoder | nn.TransformerDecoder)
    layers: list[Any] = list(module.layers) if whole else [module]  # type: ignore[arg-type]
    one = layers[0]
    crossed = hasattr(one, "multihead_attn")
    made = Transformer(
        one.self_attn.embed_dim,
        one.self_attn.num_heads,
        len(layers),
        causal=crossed if causal is None else causal,
        memory_size=one.self_attn.embed_dim if crossed else None,
        block=_block(one),
    ).to(one.linear1.weight)
    for i, layer in enumerate(layers):
        made.layer_at(i).load_state_dict(_names(layer.state_dict(), 3 if crossed else 2))
    last = getattr(module, "norm", None) if whole else None
    made.norm = nn.Identity()
    if isinstance(last, nn.LayerNorm):
        made.norm = nn.LayerNorm(made.output_size, last.eps, bias=last.bias is not None).to(last.weight)
        made.norm.load_state_dict(last.state_dict())
    return made.train(module.training)


def _block(layer: Any) -> Block:
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


def _names(state: dict[str, Tensor], parts: int) -> dict[str, Tensor]:
    """A torch layer's state_dict under the names of TransformerLayer."""
    found: dict[str, Tensor] = {}
    for theirs, mine in {"self_attn.": "attention.", "multihead_attn.": "cross."}.items():
        part = {name.removeprefix(theirs): t for name, t in state.items() if name.startswith(theirs)}
        found |= {mine + name: t for name, t in rename_from_torch(part).items()} if part else {}
    renamed = {f"linear{n}.": f"feed.W_{n}." for n in (1, 2)}
    renamed |= {f"norm{n}.": f"norm_{name}." for n, name in enumerate(NORMS[parts], 1)}
    for name, t in state.items():
        head = name.split(".")[0] + "."
        if head in renamed:
            found[renamed[head] + name.split(".")[1]] = t
    return found
