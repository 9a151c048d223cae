"""Write a layer or a model to an ONNX file."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from seqloom.core.errors import require
from seqloom.layers.recurrent.layer import Recurrent
from seqloom.tools.onnx.operators import NativeRecurrent, has_native_operator, make_translations
from seqloom.tools.onnx.scan import ScannedRecurrent, make_bodies, make_scan_translation


def prepare(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose recurrent layers are written to ONNX as GRU, LSTM, RNN or Scan.

    The copy is only for `torch.export`: it cannot run.

    Args:
        module: A layer or a model.
    """
    module = copy.deepcopy(module)
    for layer in module.modules():
        if has_native_operator(layer):
            layer.__class__ = NativeRecurrent
            cast(NativeRecurrent, layer).adopt_weights()
        elif isinstance(layer, Recurrent):
            layer.__class__ = ScannedRecurrent
    return module


@contextmanager
def _silence() -> Iterator[None]:
    """Hide the exporter's warnings and logs, which concern its internals."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


def export_onnx(
    module: nn.Module,
    arguments: Sequence[Any],
    file: Path | str,
    dynamic_shapes: Any,  # noqa: ANN401  # as torch.export takes it
    *,
    input_names: Sequence[str] | None = None,
    output_names: Sequence[str] | None = None,
) -> None:
    """Write a layer or a model to an ONNX file.

    GRU, LSTM and RNN layers become ONNX's operators of these names, with lengths, states, both directions and any
    number of layers. Other cells become a Scan.

    Args:
        module: The layer or model, in eval mode.
        arguments: Example arguments of its `forward`.
        file: The file to write.
        dynamic_shapes: Which dimensions may change, as `torch.export.export` takes it.
        input_names: Names of the inputs, in order.
        output_names: Names of the outputs, in order.

    Raises:
        UserError: If the extra `onnx` is not installed.

    Example:
        >>> from torch.export import Dim
        >>> layer = seqloom.GRU(3, 8, batch_first=True).eval()
        >>> B, T = Dim("B", min=1, max=256), Dim("T", min=1, max=4096)
        >>> x, h = torch.randn(2, 5, 3), torch.zeros(1, 2, 8)
        >>> seqloom.export_onnx(layer, (x, h), "gru.onnx", ({0: B, 1: T}, {1: B}))  # doctest: +SKIP
    """
    script = require("onnxscript", "ONNX", "onnx")
    require("onnx", "ONNX", "onnx")
    with torch.no_grad(), _silence():
        prepared = prepare(module)  # the program refers to its cells by number, so it must stay alive
        program = torch.export.export(prepared, tuple(arguments), dynamic_shapes=dynamic_shapes, strict=False)
        bodies = make_bodies(program)
        written = torch.onnx.export(
            program,
            input_names=None if input_names is None else list(input_names),
            output_names=None if output_names is None else list(output_names),
            custom_translation_table=make_translations(script.opset18) | make_scan_translation(bodies),
            dynamo=True,
            verbose=False,
        )
    assert written is not None
    _remove_traces(written.model)
    written.save(Path(file), external_data=False)


def _remove_traces(model: Any) -> None:  # noqa: ANN401  # a model of onnx_ir
    """Remove stack traces and names of modules, which contain local paths and make up half of a small file."""
    for graph in (model.graph, *model.graph.subgraphs()):
        graph.metadata_props.clear()
        for value in (*graph.inputs, *graph.outputs, *graph.initializers.values()):
            value.metadata_props.clear()
        for node in graph:
            node.metadata_props.clear()
            for value in node.outputs:
                value.metadata_props.clear()
