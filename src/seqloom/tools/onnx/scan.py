"""ONNX's Scan for cells that ONNX has no operator for.

torch can export a loop over its scan operator, but it traces the body several times for every layer and direction
(half a minute for two layers of AttnRNN). Here the body is one exported step, which layers and directions share.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from seqloom.core.cell import Cell, State, by_handle
from seqloom.core.job import ScanJob, advance
from seqloom.core.weights import bind_weights, weights
from seqloom.kernels.dispatch import choose
from seqloom.kernels.runner import run_job
from seqloom.layers.formats import SequencesT
from seqloom.layers.recurrent.layer import Recurrent

NOT_SETTINGS = ("handle", "input_size", "training")  # attributes of a cell that its step does not read

_library = torch.library.Library("seqloom_onnx_scan", "DEF")
_library.define("scan(Tensor x, Tensor[] state, Tensor[] now, Tensor[] own, int cell, str names) -> Tensor[]")
_scan = torch.ops.seqloom_onnx_scan.scan.default


def _shapes(
    x: Tensor, state: list[Tensor], now: list[Tensor], own: list[Tensor], cell: int, names: str
) -> list[Tensor]:
    """Return the shapes of the last state and of the outputs (T, B, H)."""
    y = x.new_empty(x.shape[0], x.shape[1], by_handle[cell].output_size)
    return [*(torch.empty_like(s, memory_format=torch.contiguous_format) for s in state), y]


torch.library.register_fake("seqloom_onnx_scan::scan", _shapes, lib=_library)


class ScannedRecurrent(Recurrent):
    """A recurrent layer that is written to ONNX as one Scan for each layer and direction. It cannot run."""

    def run_with(
        self,
        run: Callable[..., tuple[Tensor, State]],
        input: SequencesT,
        hx: Tensor | State | None = None,
        lengths: Tensor | Sequence[int] | None = None,
        *,
        reset: Tensor | None = None,
        timespans: Tensor | None = None,
    ) -> tuple[SequencesT, Any]:
        """Do what `Recurrent.run_with` does, with our Scan in place of torch's."""
        run = _run_as_scan if run is run_job else run
        return super().run_with(run, input, hx, lengths, reset=reset, timespans=timespans)


def _run_as_scan(cell: Cell, job: ScanJob, kernel: str, values: Mapping[str, Tensor]) -> tuple[Tensor, State]:
    """Put a Scan into the graph, unless the job resets states or torch would not scan."""
    if values or job.reset is not None or choose(cell, job, "auto").kernel.backend != "scan":
        return run_job(cell, job, kernel, values)
    now = job.per_step()
    x = cell.project(job.x).transpose(0, 1)
    *state, y = _scan(x, list(job.state), list(now.values()), list(weights(cell).values()), cell.handle, ",".join(now))
    return y.transpose(0, 1), tuple(state)


class _Step(nn.Module):
    """One step of a cell: states, input, what belongs to the step, and weights in; states and output out."""

    def __init__(self, cell: Cell, names: list[str]) -> None:
        super().__init__()
        cell = copy.copy(cell)
        del cell.__dict__["input_size"]  # layers share a step, so reading it is an error
        self.__dict__["cell"] = cell  # not a submodule: its weights are arguments
        self.names = names

    def forward(self, state: list[Tensor], x: Tensor, now: list[Tensor], own: list[Tensor]) -> list[Tensor]:
        cell = cast(Cell, self.cell)
        view = bind_weights(cell, dict(zip(weights(cell), own, strict=True)))
        y, after = advance(view, x, tuple(state), dict(zip(self.names, now, strict=True)), ())
        return [*(s.clone() for s in after), y.clone()]


def make_bodies(program: ExportedProgram) -> dict[tuple[int, str], Any]:
    """Return the ONNX graph of one step of every cell that a program scans, by the cell's handle and what a step reads.

    A cell that is scanned both with lengths and without them has two graphs. Cells with the same settings share a graph
    if the weights that a step reads have the same shapes.
    """
    known: dict[object, list[tuple[list[object], Any]]] = {}
    bodies: dict[tuple[int, str], Any] = {}
    for node in program.graph.nodes:
        if node.target is not _scan:
            continue
        x, _, _, own, handle, names = node.args
        cell = by_handle[handle]
        shapes: list[object] = [tuple(w.meta["val"].shape) for w in own]
        similar = known.setdefault((_list_settings(cell), x.meta["val"].shape[2], names), [])
        body = next((graph for read, graph in similar if _fits(shapes, read)), None)
        if body is None:
            body = _export_step(cell, names.split(",") if names else [], node)
            inputs = body.inputs[-len(shapes) :] if shapes else []
            similar.append(([s if v.uses() else None for s, v in zip(shapes, inputs, strict=True)], body))
        bodies[handle, names] = body
    return bodies


def _list_settings(cell: Cell) -> tuple[object, ...]:
    """Return what distinguishes a cell from others of its class, except for its weights."""
    plain = (int, float, str, bool, tuple, type(None))
    own = {k: v for k, v in vars(cell).items() if not k.startswith("_") and k not in NOT_SETTINGS}
    return type(cell), *((k, v if isinstance(v, plain) else id(v)) for k, v in sorted(own.items()))


def _fits(shapes: list[object], read: list[object]) -> bool:
    """Return whether weights have the shapes that a graph reads; None for one that it does not read."""
    return len(shapes) == len(read) and all(b is None or a == b for a, b in zip(shapes, read, strict=True))


def _export_step(cell: Cell, names: list[str], node: torch.fx.Node) -> Any:  # noqa: ANN401  # a graph of onnx_ir
    x, state, now, own = (torch.utils._pytree.tree_map(lambda n: n.meta["val"], part) for part in node.args[:4])
    B = Dim("B", min=1, max=65_536)
    rows = 3  # rows of the example; any number except 0 and 1, which torch would treat as fixed

    def make(value: Tensor, skip: int) -> Tensor:
        return torch.ones(rows, *(int(n) for n in value.shape[skip:]), dtype=value.dtype)

    arguments = (
        [make(s, 1) for s in state],
        make(x, 2),
        [make(t, 2) for t in now],
        [t.detach().clone() for t in weights(cell).values()],
    )
    shapes = ([{0: B} for _ in state], {0: B}, [{0: B} for _ in now], [None for _ in own])
    step = torch.export.export(_Step(cell, names), arguments, dynamic_shapes=shapes, strict=False)
    written = torch.onnx.export(step, dynamo=True, verbose=False)
    assert written is not None
    return written.model.graph


def make_scan_translation(bodies: Mapping[tuple[int, str], Any]) -> dict[Any, Any]:
    """Return the function that writes a Scan, by its operator.

    Args:
        bodies: The graph of a step by the handle of its cell and what it reads, as `make_bodies` returns them.
    """
    count = 0

    def write_scan(
        x: Any,  # noqa: ANN401  # values of onnx_ir, here and below
        state: Sequence[Any],
        now: Sequence[Any],
        own: Sequence[Any],
        cell: int,
        names: str,
    ) -> Any:  # noqa: ANN401
        import onnx_ir as ir
        from torch.onnx._internal.exporter._torchlib.ops.hop import call_op

        nonlocal count
        count += 1
        body = bodies[cell, names].clone()
        for value in [*body.inputs, *body.initializers.values(), *(v for n in body for v in n.outputs)]:
            value.name = f"scan_{count}.{value.name}"
        for node in body:
            node.name = f"scan_{count}.{node.name}"
        inner = len(state) + 1 + len(now)
        for value, outer in zip(list(body.inputs[inner:]), own, strict=True):
            ir.convenience.replace_all_uses_with(value, outer)
        del body.inputs[inner:]
        body.name = f"step_{count}"
        return call_op("Scan", *state, x, *now, _num_outputs=len(state) + 1, body=body, num_scan_inputs=1 + len(now))

    return {_scan: write_scan}
