"""Load published weights into linear recurrences, by the names in the packages that published them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.layers.linear.layer import Mixer
from seqloom.layers.linear.mamba2 import Mamba2
from seqloom.layers.linear.mlstm import MLSTM
from seqloom.layers.linear.rg_lru import RGLRU
from seqloom.layers.linear.rwkv7 import RWKV7

Weights = Mapping[str, Tensor]


@torch.no_grad()
def load_published(layer: Mixer, weights: Weights, prefix: str = "") -> None:
    """Copy the weights of a published model into a linear recurrence.

    ========  =============================================================  ========================================
    Layer     Names                                                          Prefix, for example
    ========  =============================================================  ========================================
    MLSTM     transformers' xLSTMLayer and xlstm's mLSTMLayer, capped=True   ``backbone.blocks.0.mlstm_layer.``
    Mamba2    mamba_ssm's Mamba2 and transformers' Mamba2Mixer, one group    ``backbone.layers.0.mixer.``
    RGLRU     transformers' RecurrentGemmaRecurrentBlock                     ``model.layers.0.temporal_block.``
    RWKV7     RWKV-7's time mixing in its first layer                        ``blocks.0.att.``
    ========  =============================================================  ========================================

    Later layers of RWKV-7 mix values with those of the first, which `RWKV7` does not support; their weights are
    refused. The inner matrices of RWKV-7 may have fewer rows than the layer's `rank`. xLSTM's weights may be single
    matrices or fused ones, without biases of the large matrices, as in xLSTM 7B.

    Args:
        layer: An `MLSTM`, `Mamba2`, `RGLRU` or `RWKV7` of the same sizes.
        weights: Names and tensors, as `safetensors.torch.load_file` or `state_dict` returns them. Other names than
            those with the prefix are ignored.
        prefix: What comes before the names of the layer's own weights.

    Raises:
        UserError: If there are no names for such a layer, one is missing or unknown, or a shape does not fit.

    Example:
        >>> layer = seqloom.Mamba2(8, heads=2, state_channels=4)
        >>> sizes = {"in_proj.weight": (42, 8), "conv1d.weight": (24, 1, 4), "conv1d.bias": (24,), "dt_bias": (2,)}
        >>> sizes |= {"A_log": (2,), "D": (2,), "norm.weight": (16,), "out_proj.weight": (8, 16)}
        >>> weights = {"mixer." + name: torch.zeros(size) for name, size in sizes.items()}
        >>> seqloom.load_published(layer, weights, "mixer.")
    """
    read = next((read for kind, read in READERS.items() if isinstance(layer, kind)), None)
    if read is None:
        names = ", ".join(kind.__name__ for kind in READERS)
        raise UserError(f"load_published takes {names}, got {type(layer).__name__}")
    found = {name.removeprefix(prefix): w for name, w in weights.items() if name.startswith(prefix)}
    if not found:
        raise UserError(f"no weight has a name that starts with {prefix!r}; the first is {next(iter(weights), None)!r}")
    own = read(layer, _Reader(found, prefix))
    targets = layer.state_dict()
    for name, target in targets.items():
        if own[name].shape != target.shape:
            raise UserError(
                f"{prefix}: the weight for {name} has shape {tuple(own[name].shape)}, expected {tuple(target.shape)}; "
                "make the layer with the sizes of the published one"
            )
    for name, target in targets.items():
        target.copy_(own[name])


class _Reader:
    """Weights that are consumed one by one; none may remain."""

    def __init__(self, weights: Weights, prefix: str) -> None:
        self.left, self.prefix = dict(weights), prefix

    def take(self, name: str) -> Tensor:
        if name not in self.left:
            raise UserError(f"{self.prefix}{name} is missing; there are {', '.join(sorted(self.left)) or 'no others'}")
        return self.left.pop(name)

    def close(self) -> None:
        if self.left:
            raise UserError(f"unknown weights: {', '.join(self.prefix + name for name in sorted(self.left))}")


def _read_mamba2(layer: Mixer, weights: _Reader) -> dict[str, Tensor]:
    assert isinstance(layer, Mamba2)
    names = {"A": "A_log", "b": "dt_bias", "d": "D", "norm.scale": "norm.weight", "W_out.weight": "out_proj.weight"}
    own = {name: weights.take(other) for name, other in names.items()}
    joined, rows = weights.take("in_proj.weight"), [layer.inner, sum(layer.sizes), layer.heads]
    if joined.shape[0] != sum(rows):
        raise UserError(f"{weights.prefix}in_proj.weight has {joined.shape[0]} rows, expected {sum(rows)} = {rows}")
    own["W_z.weight"], own["W_in.weight"], own["W_dt.weight"] = joined.split(rows)
    if layer.conv is not None:
        own["conv.weight"] = weights.take("conv1d.weight").squeeze(1)
        own["conv.bias"] = weights.take("conv1d.bias")
    weights.close()
    return own


def _read_mlstm(layer: Mixer, weights: _Reader) -> dict[str, Tensor]:
    assert isinstance(layer, MLSTM)
    if not layer.capped:
        raise UserError("the published layer of xLSTM limits its gates; make the layer with MLSTM(..., capped=True)")
    K, V = layer.heads * layer.key_size, layer.heads * layer.value_size
    if "qkv_opreact.weight" in weights.left:
        joined = weights.take("qkv_opreact.weight")
        if joined.shape[0] != 2 * (K + V):
            rows = f"{2 * (K + V)} = 2 x {K} + 2 x {V}"
            raise UserError(f"{weights.prefix}qkv_opreact.weight has {joined.shape[0]} rows, expected {rows}")
        qk, v, gate = joined.split([2 * K, V, V])
        gates = {kind: weights.take(f"ifgate_preact.{kind}") for kind in ("weight", "bias")}
    else:
        qk = torch.cat([weights.take("q.weight"), weights.take("k.weight")])
        v, gate = weights.take("v.weight"), weights.take("ogate_preact.weight")
        gates = {
            kind: torch.cat([weights.take(f"{letter}gate_preact.{kind}") for letter in "if"])
            for kind in ("weight", "bias")
        }
    own = {"W_qk.weight": qk, "W_v.weight": v, "W_g.weight": gate}
    own |= {f"W_if.{kind}": w for kind, w in gates.items()}
    own["norm.scale"] = weights.take("multihead_norm.weight").unflatten(0, (layer.heads, -1))
    own["W_o.weight"] = weights.take("out_proj.weight")
    weights.close()
    return own


def _read_rg_lru(layer: Mixer, weights: _Reader) -> dict[str, Tensor]:
    own = {
        f"W_{letter}.{kind}": weights.take(f"linear_{other}.{kind}")
        for letter, other in (("x", "x"), ("g", "y"), ("o", "out"))
        for kind in ("weight", "bias")
    }
    own["L"] = weights.take("rg_lru.recurrent_param")
    for letter, other in (("r", "recurrent"), ("i", "input")):
        own[f"W_{letter}"] = weights.take(f"rg_lru.{other}_gate_weight")
        own[f"b_{letter}"] = weights.take(f"rg_lru.{other}_gate_bias")
    own["conv.weight"], own["conv.bias"] = weights.take("conv_1d.weight").squeeze(1), weights.take("conv_1d.bias")
    weights.close()
    return own


def _read_rwkv7(layer: Mixer, weights: _Reader) -> dict[str, Tensor]:
    assert isinstance(layer, RWKV7)
    if any(name in weights.left for name in ("v0", "v1", "v2")):
        raise UserError(
            f"{weights.prefix}v0 to v2 mix values with the first layer's, which RWKV7 does not do; in the first layer, "
            "where they are not used, leave them out"
        )
    own = {"mu": torch.stack([weights.take(f"x_{letter}").flatten() for letter in "rkvwag"])}
    for letter, other in (("r", "receptance"), ("k", "key"), ("v", "value"), ("o", "output")):
        own[f"W_{letter}.weight"] = weights.take(f"{other}.weight")
    rank = layer.rank
    for letter in "wag":
        for i in (0, 1):
            own[f"W_{letter}.{i}.weight"] = _pad(weights.take(f"{letter}{i + 1}").T, rank, i)
        if letter != "g":
            own[f"W_{letter}.2.bias"] = weights.take(f"{letter}0").flatten()
    own["k_e"], own["k_a"] = weights.take("k_k").flatten(), weights.take("k_a").flatten()
    own["r_k"] = weights.take("r_k")
    own["norm.weight"], own["norm.bias"] = weights.take("ln_x.weight"), weights.take("ln_x.bias")
    weights.close()
    return own


def _pad(weight: Tensor, rank: int, dim: int) -> Tensor:
    """Pad a matrix with zeros to `rank` rows or columns, which does not change results."""
    missing = rank - weight.shape[dim]
    if missing < 0:
        raise UserError(f"the weights have rank {weight.shape[dim]}, the layer {rank}; make it with a larger rank=")
    more = weight.new_zeros(*(missing if d == dim else n for d, n in enumerate(weight.shape)))
    return torch.cat([weight, more], dim)


READERS: dict[type[Mixer], Callable[[Mixer, _Reader], dict[str, Tensor]]] = {
    MLSTM: _read_mlstm,
    Mamba2: _read_mamba2,
    RGLRU: _read_rg_lru,
    RWKV7: _read_rwkv7,
}
