"""Weights as 8-bit integers: a quarter of the size.

    w ~ s q,   q = round(w / s),   s = max |w| / 127     for each row of a matrix

Only weights are rounded; states and sums stay in float32. All targets store the same q and s, so they predict the same.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab.data.registry import reopen
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.stats.metrics import compute_scores
from seqloom.lab.training.run import Run
from seqloom.lab.training.scoring import score_split

LARGEST = 127
FEWEST = 256  # minimum number of elements of a matrix that is stored as int8
Array = np.ndarray[Any, Any]


def is_rounded(weight: Tensor) -> bool:
    """Return whether `round_weights` rounds a parameter: matrices, but no biases and no small ones."""
    return weight.ndim == 2 and weight.numel() >= FEWEST and weight.is_floating_point()


def quantise(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return q (N, M) of type int8 and s (N, 1)."""
    s = weight.abs().amax(-1, keepdim=True) / LARGEST
    s = torch.where(s > 0, s, torch.ones_like(s))
    return torch.round(weight / s).to(torch.int8), s


@torch.no_grad()
def round_weights(model: ForTask) -> ForTask:
    """Return a copy of a model whose matrices are rounded to values that 8 bits can represent."""
    model = copy.deepcopy(model)
    for p in model.parameters():
        if is_rounded(p):
            q, s = quantise(p)
            p.copy_(q * s)
    return model


class _Dequantise(nn.Module):
    """A parametrisation: the weight is stored as q and s."""

    def forward(self, q: Tensor, s: Tensor) -> Tensor:
        return q * s

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        return quantise(weight)


def store_as_int8(module: nn.Module) -> None:
    """Replace the matrices of a module with int8 tensors and their scales, from which they are computed."""
    module.requires_grad_(False)
    for part in list(module.modules()):
        for name, p in list(part.named_parameters(recurse=False)):
            if is_rounded(p):
                nn.utils.parametrize.register_parametrization(part, name, _Dequantise(), unsafe=True)


def compress_onnx(model: Any) -> int:  # noqa: ANN401  # an onnx.ModelProto
    """Store the rounded matrices of an ONNX model as int8, and return their number.

    A matrix W becomes Cast(q) * s; onnxruntime computes it once, when it loads the file. The axis of the scale is found
    by trying each one, because an export may transpose or stack matrices.
    """
    from onnx import helper, numpy_helper

    graph, count, nodes = model.graph, 0, []
    for tensor in list(graph.initializer):
        if tensor.data_type != 1:  # float
            continue
        weight = numpy_helper.to_array(tensor)
        parts = split_int8(weight) if weight.ndim in (2, 3) and weight.size >= FEWEST else None
        if parts is None:
            continue
        name, (q, s) = tensor.name, parts
        graph.initializer.remove(tensor)
        graph.initializer.append(numpy_helper.from_array(q, f"{name}.int8"))
        graph.initializer.append(numpy_helper.from_array(s, f"{name}.scale"))
        nodes.append(helper.make_node("Cast", [f"{name}.int8"], [f"{name}.cast"], to=1, name=f"{name}.cast"))
        nodes.append(helper.make_node("Mul", [f"{name}.cast", f"{name}.scale"], [name], name=f"{name}.mul"))
        count += 1
    for node in reversed(nodes):
        graph.node.insert(0, node)
    return count


def split_int8(weight: Array) -> tuple[Array, Array] | None:
    """Return q and s of a matrix that was rounded along one axis; None for any other."""
    for axis in (-1, -2):
        s = np.abs(weight).max(axis, keepdims=True) / np.float32(LARGEST)
        s = np.where(s > 0, s, 1).astype(np.float32)
        q = np.round(weight / s)
        if np.abs(weight - q * s).max() <= 1e-5 * np.abs(weight).max():
            return q.astype(np.int8), s
    return None


def measure_loss(run: Run, model: ForTask, rounded: ForTask) -> dict[str, Any]:
    """Score a model before and after rounding on the run's own test rows.

    Args:
        run: The run, whose data must still be there.
        model: Its model.
        rounded: The model with rounded weights.

    Returns:
        {"metric", "split", "rows", "float32", "int8"}.

    Raises:
        UserError: If the data are gone.
    """
    try:
        task = reopen(run.record["source"])
    except UserError as error:
        raise UserError(f"--int8 measures the loss on the run's test rows, but {error}") from None
    split = next((name for name in ("test", "valid") if name in task.splits), None)
    if split is None:
        raise UserError(f"--int8 measures the loss on held-out rows, and {task.name} has none; export without --int8")
    scores = [
        compute_scores(score_split(one, task, split, **run.settings.sizes), overlap=task.overlap)
        for one in (model, rounded)
    ]
    metric = kind_of(task).choose_selecting(scores[0].values, run.settings.metric)
    before, after = (one.values[metric] for one in scores)
    return {"metric": metric, "split": split, "rows": scores[0].rows, "float32": before, "int8": after}
