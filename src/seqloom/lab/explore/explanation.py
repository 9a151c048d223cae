"""The explanation of one input: a JSON document, and the arrays of its heat maps."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.lab.explore.contributions import (
    Growth,
    Target,
    choose_target,
    compute_growth,
    find_layer,
    integrate_gradients,
    occlude,
    read_target,
)
from seqloom.lab.explore.finding import Evidence, describe
from seqloom.lab.explore.inside import Array, InsideView, look_inside
from seqloom.lab.explore.subject import LabelledInput, ModelOutputs, Subject
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.intervene import Clamp, has_weights, record

MAX_OUTPUTS = 8  # outputs of a model that are drawn, the largest ones


@dataclass(frozen=True)
class Request:
    """What to explain.

    Args:
        output: Index of the output; by default the model's prediction.
        step: Output step, for models with an output at each step.
        clamps: Gates and states to hold at a constant.
        uniform_attention: Whether to replace attention by equal weights.
    """

    output: int | None = None
    step: int | None = None
    clamps: tuple[Clamp, ...] = ()
    uniform_attention: bool = False

    @property
    def intervenes(self) -> bool:
        return bool(self.clamps) or self.uniform_attention

    @staticmethod
    def parse(document: Mapping[str, Any]) -> Request:
        """Read a request from the page's question."""
        return Request(
            document.get("output"),
            document.get("step"),
            tuple(map(_read_clamp, document.get("clamps") or [])),
            document.get("uniform_attention") is True,
        )


def _read_clamp(document: Mapping[str, Any]) -> Clamp:
    steps = document.get("steps")
    return Clamp(
        document["layer"],
        document["letter"],
        float(document["value"]),
        tuple(document.get("units") or ()),
        None if steps is None else (steps[0], steps[1]),
    )


@dataclass(eq=False)
class RowExplanation:
    """A document for the page, and its arrays by name: (T, units), (heads, T, S) or (T, features)."""

    document: dict[str, Any]
    arrays: dict[str, Array] = field(default_factory=dict)


def explain(subject: Subject, example: LabelledInput, request: Request = Request()) -> RowExplanation:
    """Explain what a model does with one input.

    Args:
        request: The output to explain, and interventions.

    Returns:
        A JSON-serialisable document and the arrays that it names.

    Raises:
        UserError: If an intervention does not fit the model.
    """
    with subject.lock:
        return _explain(subject, example, request)


def _explain(subject: Subject, example: LabelledInput, request: Request) -> RowExplanation:
    notes = list(example.notes)
    with torch.no_grad():
        plain = subject.compute_outputs(example.batch)
    target = choose_target(subject, plain, request.output, request.step)
    run = partial(_run, subject, request, plain.wanted)
    inside = look_inside(subject, example, target, request.clamps, request.uniform_attention, plain.wanted)
    notes += inside.notes
    if not inside.layers and not inside.attention:
        notes.append(_explain_nothing_inside(subject.network))
    has_steps = plain.values.ndim == 3 or subject.is_per_step  # the outputs themselves show the prediction at each step
    growth = Growth([], torch.zeros(0)) if has_steps else compute_growth(run, example)
    occlusion = occlude(run, example, target, subject.deletes)
    gradients = integrate_gradients(run, subject.network, example, target)
    statements = describe(Evidence(subject, example, inside, target, growth, occlusion, run))
    arrays = _collect_arrays(subject, example, inside)
    document = {
        "name": subject.name,
        "kind": subject.kind.name,
        "parameters": sum(p.numel() for p in subject.network.parameters()),
        "steps": list(example.steps),
        "unknown": [i for i, unknown in enumerate(example.unknown) if unknown],
        "notes": notes,
        "findings": [asdict(one) for one in sorted(statements, key=lambda one: not one.confirmed)],
        "prediction": _describe_outputs(inside.outputs, target),
        "before": float(read_target(plain, target)[0]) if request.intervenes else None,
        "target": asdict(target) | {"label": inside.outputs.labels[target.output]},
        "growth": _describe_growth(inside.outputs, growth, target),
        "contributions": {
            "windows": [list(window) for window in occlusion.windows],
            "occlusion": _round(occlusion.effects),
            "deletes": subject.deletes,
            "gradients": None if gradients is None else _round(gradients[0]),
            "gap": None if gradients is None else gradients[1],
        },
        "layers": [_describe_layer(layer) for layer in inside.layers.values()],
        "attention": [
            {"name": name, "heads": w.shape[0], "queries": w.shape[1], "keys": w.shape[2]}
            for name, w in inside.attention.items()
        ],
        "arrays": {name: _describe_array(array) for name, array in arrays.items()},
        "features": list(subject.features),
    }
    return RowExplanation(document, arrays)


def _run(subject: Subject, request: Request, wanted: Tensor | None, batch: Any) -> ModelOutputs:  # noqa: ANN401  # a Batch
    if not request.intervenes:
        return subject.compute_outputs(batch, wanted)
    with record(subject.network, request.clamps, request.uniform_attention):
        return subject.compute_outputs(batch, wanted)


def _explain_nothing_inside(model: nn.Module) -> str:
    kind = type(model).__name__
    has_parts = any(isinstance(m, Recurrent) or has_weights(m) for m in model.modules())
    if has_parts:
        return "The layers of this model did not run for this input, so there is nothing inside to show."
    if find_layer(model) is None:
        return f"This model ({kind}) has no layers of seqloom inside: no states, gates or attention to show."
    return f"This model ({kind}) has neither cells nor attention: no states, gates or attention to show."


def _describe_outputs(outputs: ModelOutputs, target: Target) -> dict[str, Any]:
    values = outputs.values[0].detach()
    flat = values.unsqueeze(0) if values.ndim == 1 else values
    size = flat.abs().amax(0) if target.step is None else flat[target.step].abs()
    chosen = _choose_outputs(size, target)
    if len(chosen) == len(size):
        chosen.sort()
    best = flat.argmax(1).tolist()
    is_value = not bool(((flat >= 0) & (flat <= 1)).all())
    return {
        "text": outputs.text,
        "value": float(values[target.output] if target.step is None else values[target.step, target.output]),
        "outputs": [{"index": k, "label": outputs.labels[k], "values": _round(flat[:, k])} for k in chosen],
        "others": len(size) - len(chosen),
        "steps": list(outputs.steps),
        "best": [] if values.ndim == 1 else [outputs.labels[k] for k in best],
        "is_value": is_value,
    }


def _describe_growth(outputs: ModelOutputs, growth: Growth, target: Target) -> dict[str, Any] | None:
    ends, values = growth
    if not ends:
        return None
    chosen = sorted(_choose_outputs(values.abs().amax(0), target))
    lines = [{"index": k, "label": outputs.labels[k], "values": _round(values[:, k])} for k in chosen]
    return {"steps": ends, "lines": lines}


def _choose_outputs(size: Tensor, target: Target) -> list[int]:
    """Return the target and the largest other outputs."""
    size = size.clone()
    size[target.output] = torch.inf
    return size.topk(min(MAX_OUTPUTS, len(size))).indices.tolist()


def _describe_layer(layer: Any) -> dict[str, Any]:  # noqa: ANN401  # a LayerView
    return {
        "name": layer.name,
        "cell": layer.cell,
        "equations": layer.equations,
        "letters": list(layer.tensors) + (["effect"] if layer.effect is not None else []),
        "ranking": layer.rank_units() if layer.tensors["h"].ndim == 2 else [],
        "groups": layer.groups,
        "flow": None if layer.flow is None else _round(torch.from_numpy(layer.flow)),
    }


def _collect_arrays(subject: Subject, example: LabelledInput, inside: InsideView) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    for layer in inside.layers.values():
        arrays |= {f"{layer.name}/{letter}": values for letter, values in layer.tensors.items()}
        if layer.effect is not None:
            arrays[f"{layer.name}/effect"] = layer.effect
    arrays |= {f"attention/{name}": weights for name, weights in inside.attention.items()}
    if subject.features:
        arrays["input"] = example.batch.x[0].float().numpy()
    return arrays


def _describe_array(array: Array) -> dict[str, Any]:
    low, high = (float(array.min()), float(array.max())) if array.size else (0.0, 0.0)
    return {"shape": list(array.shape), "low": low, "high": high}


def pack_array(array: Array) -> bytes:
    """Return an array as little-endian 16-bit integers, from 0 for its least to 65535 for its largest value."""
    if not array.size:
        return b""
    values = np.nan_to_num(array.astype(np.float64))
    low, high = values.min(), values.max()
    scale = 65535 / (high - low) if high > low else 0.0
    return bytes(np.round((values - low) * scale).astype("<u2").tobytes())


def _round(values: Tensor) -> list[float | None]:
    """Return numbers with six digits; None for NaN and infinity, which JSON does not support."""
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.detach().flatten().tolist()]
