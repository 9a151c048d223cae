"""Weights of torch.nn.MultiheadAttention, taken over and given back."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from seqloom.attention.dense import Attention
from seqloom.core.errors import UserError


def from_torch(module: nn.MultiheadAttention, causal: bool = False) -> Attention:
    """The same attention on (B, T, D), whichever `batch_first` the module has."""
    if module.bias_k is not None or module.add_zero_attn:
        raise UserError("a MultiheadAttention with add_bias_kv or add_zero_attn has no counterpart here")
    if module.kdim != module.vdim:
        raise UserError(f"keys and values come from one memory here, got kdim={module.kdim}, vdim={module.vdim}")
    bias = module.in_proj_bias is not None
    made = Attention(
        module.embed_dim,
        module.num_heads,
        causal=causal,
        dropout=module.dropout,
        bias=bias,
        memory_size=module.kdim,
    ).to(module.out_proj.weight)
    made.load_state_dict(rename_from_torch(module.state_dict()))
    return made.train(module.training)


def rename_from_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A MultiheadAttention's state_dict under the names of `Attention`."""
    if "in_proj_weight" in state:
        weights: tuple[Tensor, ...] = state["in_proj_weight"].chunk(3)
    else:
        weights = tuple(state[f"{n}_proj_weight"] for n in "qkv")
    found = {f"{n}.weight": w for n, w in zip("qkv", weights, strict=True)}
    if "in_proj_bias" in state:
        found |= {f"{n}.bias": b for n, b in zip("qkv", state["in_proj_bias"].chunk(3), strict=True)}
    return found | {name.replace("out_proj", "out"): t for name, t in state.items() if name.startswith("out_proj")}


def rename_to_torch(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The state_dict of an `Attention` without kv_heads or position, under MultiheadAttention's names."""
    weights = [state[f"{n}.weight"] for n in "qkv"]
    if len({w.shape for w in weights}) == 1:
        found = {"in_proj_weight": torch.cat(weights)}
    else:
        found = {f"{n}_proj_weight": w for n, w in zip("qkv", weights, strict=True)}
    if "q.bias" in state:
        found["in_proj_bias"] = torch.cat([state[f"{n}.bias"] for n in "qkv"])
    return found | {name.replace("out.", "out_proj."): t for name, t in state.items() if name.startswith("out.")}
