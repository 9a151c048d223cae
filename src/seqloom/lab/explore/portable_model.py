"""A model in a form that a page can run without a server: its vocabulary, its topology and its weights.

The page runs the equations of the cells (`frontend/src/model.ts`), so that it can also show gates and apply
interventions; an ONNX graph would compute only outputs.
"""

from __future__ import annotations

import base64
from typing import Any

from torch import nn

from seqloom.cells.attn_rnn import AttnRNNCell
from seqloom.cells.gru import GRUCell
from seqloom.cells.lstm import LSTMCell
from seqloom.lab.data.coders.text import TextCoder
from seqloom.lab.explore.finding import CONTRASTS, NEGATIONS
from seqloom.lab.explore.inside import find_equations
from seqloom.lab.explore.subject import Subject
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.layers.transformer.layer import Projected, Transformer
from seqloom.models.classify import Classify
from seqloom.models.embed import Embed

MAX_BYTES = 14_000_000  # bytes of weights in a page, so that it stays below 20 MB in base64
CELLS = {"gru": GRUCell, "lstm": LSTMCell, "attn_rnn": AttnRNNCell}
UNITS = ("words", "characters")


def explain_not_portable(subject: Subject) -> str:
    """Return why a page cannot run a model without a server; "" if it can."""
    network, coder = subject.network, None if subject.task.encoding is None else subject.task.encoding.x
    if subject.model.decision is None:
        return f"a page runs models that classify, not those that {subject.kind.name}"
    if not isinstance(network, Classify):
        return "a page runs trained models, not baselines"
    if not isinstance(coder, TextCoder) or coder.unit not in UNITS or coder.end or not isinstance(network.embed, Embed):
        return "a page can run models that read words or characters, and this one does not"
    if network.readout.name == "attention":
        return "a page has no attention readout"
    if (reason := _check_layer(network.layer)) is not None:
        return reason
    size = sum(4 * t.numel() for t in network.state_dict().values())
    return "" if size <= MAX_BYTES else f"its weights have {size / 1e6:.0f} MB, a page holds {MAX_BYTES / 1e6:.0f} MB"


def _check_layer(layer: nn.Module) -> str | None:
    if isinstance(layer, Recurrent):
        cell = layer.cell_at(0)
        if type(cell) is not CELLS.get(cell.name) or cell.__dict__.get("learned_states"):
            return f"a page runs {', '.join(CELLS)} and transformer, not {cell.name or type(cell).__name__}"
        if getattr(cell, "proj_size", 0) or not getattr(cell, "reset_after", True) or getattr(cell, "slots", 1) > 1:
            return f"a page runs {cell.name} in its usual form only"
        return None
    if isinstance(layer, Projected) and type(layer.layer) is Transformer:
        inner = layer.layer.layer_at(0)
        attention: Any = inner.attention
        usual = inner.block.norm == "pre" and inner.block.activation == "gelu" and inner.block.bias
        if type(attention).__name__ == "Attention" and type(attention.position).__name__ == "Rotary" and usual:
            return None if attention.kv_heads == attention.heads else "a page has no grouped heads"
    return f"a page runs {', '.join(CELLS)} and transformer, not this {type(layer).__name__}"


def pack_model(subject: Subject) -> dict[str, Any]:
    """Return everything that a page needs to run a model, JSON-serialisable; weights are float32 in base64."""
    network, coder, names = subject.network, subject.task.encoding.x, subject.kind.list_classes(subject.task)
    assert isinstance(network, Classify) and isinstance(network.embed, Embed)
    decision, weights = subject.model.decision, network.state_dict()
    assert decision is not None and names is not None
    return {
        "labels": names,
        "words": list(coder.words),
        "unit": coder.unit,
        "lowercase": coder.lowercase,
        "scale": network.embed.scale,
        "layer": _describe_layer(network.layer),
        "readout": network.readout.name,
        "normalised": isinstance(network.head, nn.Sequential),
        "temperature": decision.temperature,
        "weights": list(decision.weights),
        "threshold": decision.threshold,
        "positive": decision.positive,
        "parameters": sum(p.numel() for p in subject.model.parameters()),
        "contrasts": sorted(CONTRASTS),
        "negations": sorted(NEGATIONS),
        "tensors": {
            name: {
                "shape": list(tensor.shape),
                "data": base64.b64encode(tensor.float().contiguous().numpy().astype("<f4").tobytes()).decode(),
            }
            for name, tensor in weights.items()
        },
    }


def _describe_layer(layer: nn.Module) -> dict[str, Any]:
    if isinstance(layer, Recurrent):
        cell: Any = layer.cell_at(0)
        facts: dict[str, Any] = {"cell": cell.name, "hidden": layer.hidden_size, "layers": layer.num_layers}
        facts |= {"bidirectional": layer.bidirectional, "equations": find_equations(cell)}
        if cell.name == "attn_rnn":
            facts |= {"heads": cell.heads, "context": list(cell.context), "norm": cell.norm, "initial": cell.initial}
        return facts
    assert isinstance(layer, Projected) and isinstance(layer.layer, Transformer)
    inner = layer.layer
    attention: Any = inner.layer_at(0).attention
    return {
        "cell": "transformer",
        "hidden": inner.input_size,
        "layers": len(inner.layers),
        "heads": attention.heads,
        "causal": inner.causal,
        "base": attention.position.base,
        "bidirectional": False,
        "equations": "",
    }
