"""Conversion of weights from and to torch.nn.MultiheadAttention."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.attention.dense import Attention
from seqloom.core.errors import UserError


def from_torch(module: nn.MultiheadAttention, causal: bool = False) -> Attention:
    """Return an `Attention` with the weights of a torch module.

    Args:
        module: The module. The result takes (B, T, D), whatever the module's `batch_first`.
        causal: Whether the result is causal.

    Raises:
        UserError: If the module has settings that `Attention` lacks.
    """
    if module.bias_k is not None or module.add_zero_attn:
        raise UserError("cannot convert a MultiheadAttention with add_bias_kv or add_zero_attn")
    if module.kdim != module.vdim:
        raise UserError(
            f"cannot convert a MultiheadAttention with kdim={module.kdim} and vdim={module.vdim}; they must be equal"
        )
    bias = module.in_proj_bias is not None
    attention = Attention(
        module.embed_dim,
        module.num_heads,
        causal=causal,
        dropout=module.dropout,
        bias=bias,
        memory_size=module.kdim,
    ).to(module.out_proj.weight)
    attention.load_state_dict(rename_from_torch(module.state_dict()))
    return attention.train(module.training)


def rename_from_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state_dict of a MultiheadAttention under the names of `Attention`."""
    if "in_proj_weight" in state:
        weights: tuple[Tensor, ...] = state["in_proj_weight"].chunk(3)
    else:
        weights = tuple(state[f"{n}_proj_weight"] for n in "qkv")
    renamed = {f"{n}.weight": w for n, w in zip("qkv", weights, strict=True)}
    if "in_proj_bias" in state:
        renamed |= {f"{n}.bias": b for n, b in zip("qkv", state["in_proj_bias"].chunk(3), strict=True)}
    return renamed | {name.replace("out_proj", "out"): t for name, t in state.items() if name.startswith("out_proj")}


def rename_to_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state_dict of an `Attention` without kv_heads or position under MultiheadAttention's names."""
    weights = [state[f"{n}.weight"] for n in "qkv"]
    if len({w.shape for w in weights}) == 1:
        renamed = {"in_proj_weight": torch.cat(weights)}
    else:
        renamed = {f"{n}_proj_weight": w for n, w in zip("qkv", weights, strict=True)}
    if "q.bias" in state:
        renamed["in_proj_bias"] = torch.cat([state[f"{n}.bias"] for n in "qkv"])
    return renamed | {name.replace("out.", "out_proj."): t for name, t in state.items() if name.startswith("out.")}
