"""Write a model to a folder in one of the formats of `seqloom export`."""

from __future__ import annotations

import ast
import copy
import logging
import warnings
from pathlib import Path
from typing import Any

import torch

from seqloom.core.errors import UserError, require
from seqloom.lab.data.task import Task
from seqloom.lab.export.check import Predict, compare_predictions
from seqloom.lab.export.description import write_description
from seqloom.lab.export.graph import ExportGraph, make_graph
from seqloom.lab.export.int8 import compress_onnx, store_as_int8
from seqloom.lab.export.runner.model import BATCH_STEPS, Model
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.training.predict import predict_pieces
from seqloom.tools.onnx.export import export_onnx

PARTS = ("rows", "results", "model")  # in the order of their use


def write_onnx(model: ForTask, task: Task, folder: Path, int8: bool) -> dict[str, Any]:
    """Write model.onnx, model.json and run.py, and compare them with the run.

    Args:
        model: The trained model; with `int8`, the one with rounded weights.
        task: Its task.
        folder: An existing folder.
        int8: Whether to store matrices as int8.

    Returns:
        {"difference", "rows"} of the comparison.
    """
    onnx = require("onnx", "export --to onnx", "onnx")
    require("onnxruntime", "export --to onnx", "onnx")
    graph, file = make_graph(model, task), folder / "model.onnx"
    _refuse(
        lambda: export_onnx(
            graph.module,
            tuple(graph.inputs.values()),
            file,
            _name_shapes(graph),
            input_names=list(graph.inputs),
            output_names=[graph.output],
        ),
        "ONNX",
    )
    if int8:
        written = onnx.load(file)
        compress_onnx(written)
        onnx.save(written, file)
    about = write_description(model, task, folder, file=file.name, **_limit_batches(graph, task))
    write_runner(folder)
    runner = Model(folder)
    return _compare(model, task, graph, about, lambda rows: runner.predict(list(rows), probabilities=True))


def _limit_batches(graph: ExportGraph, task: Task) -> dict[str, int]:
    """Return the number of steps in a batch of the runner, for baselines whose tensors are much larger than a step."""
    module = graph.module.inner.model
    steps = getattr(module, "batch_steps", None) or getattr(module, "batch_rows", 0) * task.lookback
    return {"batch_steps": steps} if 0 < steps < BATCH_STEPS else {}


def write_pt2(model: ForTask, task: Task, folder: Path, int8: bool) -> dict[str, Any]:
    """Write model.pt2, which torch loads without seqloom, and model.json; compare them with the run.

    Args and returns are those of `write_onnx`.
    """
    graph, file = make_graph(copy.deepcopy(model), task), folder / "model.pt2"
    if int8:
        store_as_int8(graph.module)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            program = _refuse(
                lambda: torch.export.export(
                    graph.module, tuple(graph.inputs.values()), dynamic_shapes=_name_shapes(graph), strict=False
                ),
                "pt2",
            )
            for module in program.graph_module.modules():
                for node in module.graph.nodes if isinstance(module, torch.fx.GraphModule) else ():
                    node.meta.pop("stack_trace", None)  # has paths of this machine
            torch.export.save(program, file)
            loaded = torch.export.load(file).module()
        finally:
            logging.disable(logging.NOTSET)
    about = write_description(model, task, folder, file=file.name, inputs=list(graph.inputs), output=graph.output)
    return _compare(model, task, graph, about, _Loaded(model, task, loaded, graph).predict)


def _compare(model: ForTask, task: Task, graph: ExportGraph, about: dict[str, Any], predict: Predict) -> dict[str, Any]:
    difference, rows = compare_predictions(model, task, predict)
    facts = {"inputs": list(graph.inputs), "output": graph.output, "example": about["example"]}
    return {"difference": difference, "rows": rows, **facts}


class _Loaded:
    """Predict with a program that was read back, with the run's own encoding."""

    def __init__(self, model: ForTask, task: Task, program: Any, graph: ExportGraph) -> None:  # noqa: ANN401
        self.model, self.task, self.program, self.graph = copy.copy(model), task, program, graph

    def predict(self, rows: Any) -> list[dict[str, Any]]:  # noqa: ANN401  # a sequence of any rows
        """Return the results of rows."""
        from seqloom.lab.kinds.forecast import pad_to_segments

        segment = getattr(self.model, "segment", 0)

        def scores(batch: Any, state: object = None) -> tuple[torch.Tensor, None]:  # noqa: ANN401  # a Batch
            x, lengths = batch.x, batch.lengths
            if segment:
                x, padded = pad_to_segments(x, lengths, segment)
                lengths = lengths if padded is None else padded
            more = [getattr(batch, name) for name in list(self.graph.inputs)[2:]]
            y = self.program(x, lengths, *more)
            return self.model.invert_output(y), None

        self.model.__dict__["scores"] = scores
        return list(predict_pieces(self.model, self.task, [list(rows)], probabilities=True))


def _name_shapes(graph: ExportGraph) -> tuple[Any, ...]:
    """Return the dynamic shapes as `ExportedModel.forward` takes its arguments: x, lengths, and the rest in a tuple."""
    first, second, *more = graph.shapes
    return (first, second, tuple(more)) if more else (first, second)


def _refuse(write: Any, form: str) -> Any:  # noqa: ANN401  # a function and its result
    """Call a function; turn errors of torch's exporter into one sentence."""
    try:
        return write()
    except (torch.fx.experimental.symbolic_shapes.ConstraintViolationError, torch._dynamo.exc.UserError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"this model does not export to {form} for every length ({reason}); try another --to") from None


def write_runner(folder: Path) -> None:
    """Write run.py to a folder."""
    (folder / "run.py").write_text(join_modules(), encoding="utf-8")


def join_modules() -> str:
    """Return the modules of `runner` as one: the docstring of the last, all imports, then the code of each."""
    imports: dict[str, None] = {}
    bodies: list[str] = []
    docstring = ""
    for name in PARTS:
        text = (Path(__file__).parent / "runner" / f"{name}.py").read_text(encoding="utf-8")
        lines, tree = text.splitlines(), ast.parse(text)
        docstring = "\n".join(lines[: tree.body[0].end_lineno])
        statements = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
        for node in statements:
            if not (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("seqloom")):
                imports["\n".join(lines[node.lineno - 1 : node.end_lineno])] = None
        bodies.append("\n".join(lines[statements[-1].end_lineno or 0 :]).strip("\n"))
    first, *others = sorted(imports, key=lambda line: ("__future__" not in line, "numpy" in line, line))
    return "\n\n".join([docstring, first, "\n".join(others), "\n\n\n".join(bodies)]) + "\n"
