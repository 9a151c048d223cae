"""ONNX's own GRU, LSTM and RNN for the layers that have their equations.

gates     torch: r z n, i f g o     ONNX: z r n, i o f g
steps     ONNX takes (T, B, D) and returns (T, directions, B, H)
lengths   ONNX's `sequence_lens`; a row of length 0 keeps its first state
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.cell import Cell, State
from seqloom.kernels.runner import run_job
from seqloom.layers.formats import SequencesT, read_input
from seqloom.layers.recurrent.layer import Recurrent

OPERATORS = {"gru": "GRU", "lstm": "LSTM", "rnn": "RNN"}
GATE_ORDER = {"gru": (1, 0, 2), "lstm": (0, 3, 1, 2), "rnn": (0,)}  # position of ONNX's gates among torch's
# Activations of an RNN, by ONNX's names.
ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "elu": "Elu"}

_library = torch.library.Library("seqloom_onnx", "DEF")
# What may be None has a default: the exporter of torch 2.8 accepts None for nothing else.
_library.define(
    "recurrent(Tensor x, Tensor w, Tensor r, str name, str activation, bool reset_after, Tensor? b=None, "
    "Tensor? lengths=None, Tensor? h=None) -> (Tensor, Tensor)"
)
_library.define(
    "lstm(Tensor x, Tensor w, Tensor r, Tensor? b=None, Tensor? lengths=None, Tensor? h=None, Tensor? c=None)"
    " -> (Tensor, Tensor, Tensor)"
)


def _recurrent(x: Tensor, w: Tensor, r: Tensor, *rest: object) -> State:
    """Return the shapes of y (T, B, directions * H) and the last state (directions, B, H)."""
    ways, _, H = r.shape
    return x.new_empty(x.shape[0], x.shape[1], ways * H), x.new_empty(ways, x.shape[1], H)


def _lstm(x: Tensor, w: Tensor, r: Tensor, *rest: object) -> State:
    y, end = _recurrent(x, w, r)
    return y, end, torch.empty_like(end)


torch.library.register_fake("seqloom_onnx::recurrent", _recurrent, lib=_library)
torch.library.register_fake("seqloom_onnx::lstm", _lstm, lib=_library)


class NativeRecurrent(Recurrent):
    """A recurrent layer that is written to ONNX as one operator for each layer. It exists only inside an export."""

    def adopt_weights(self) -> None:
        """Store the weights in ONNX's order: w (directions, gates * H, D), r, and b for each layer."""
        ways = 1 + self.bidirectional
        for layer in range(self.num_layers):
            cells = [self.cell_at(i) for i in range(layer * ways, (layer + 1) * ways)]
            self.register_buffer(f"onnx_w_{layer}", torch.stack([_reorder(c, c.weight_ih) for c in cells]))
            self.register_buffer(f"onnx_r_{layer}", torch.stack([_reorder(c, c.weight_hh) for c in cells]))
            biases = None
            if cells[0].bias_ih is not None:
                biases = torch.stack(
                    [torch.cat([_reorder(c, c.bias_ih), _reorder(c, c.bias_hh)]) for c in cells]
                )  # (directions, 2 * gates * H)
            self.register_buffer(f"onnx_b_{layer}", biases)

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
        """Do what `Recurrent.run_with` does, with one operator for each layer."""
        if run is not run_job or reset is not None or timespans is not None:
            return super().run_with(run, input, hx, lengths, reset=reset, timespans=timespans)
        batch = read_input(input, lengths, self.batch_first, self.input_size)
        states = batch.read_states(hx, [self.cell_at(i) for i in range(len(self.cells))])
        ways, x = 1 + self.bidirectional, batch.x.transpose(0, 1)
        ends: list[State] = []
        for layer in range(self.num_layers):
            cells = [self.cell_at(i) for i in range(layer * ways, (layer + 1) * ways)]
            start = None
            if states is not None:
                start = states[layer * ways : (layer + 1) * ways]
            elif cells[0].__dict__.get("learned_states"):
                start = [cell.start(batch.x) for cell in cells]
            x, last = self._run_layer(layer, x, start, batch.lengths)
            ends += [tuple(s[way] for s in last) for way in range(ways)]
        return batch.restore(x.transpose(0, 1)), batch.restore_states(ends)

    def _run_layer(
        self, layer: int, x: Tensor, start: list[State] | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """Return y (T, B, directions * H) and the last states, (directions, B, H) each."""
        cell = self.cell_at(0)
        w, r, b = (getattr(self, f"onnx_{name}_{layer}") for name in "wrb")
        first = None if start is None else [torch.stack(parts) for parts in zip(*start, strict=True)]
        ops = torch.ops.seqloom_onnx
        if cell.name == "lstm":
            y, *last = ops.lstm(x, w, r, b, lengths, *(first or (None, None)))
        else:
            activation = ACTIVATIONS[getattr(cell, "nonlinearity", "tanh")]
            reset_after = bool(getattr(cell, "reset_after", False))
            y, *last = ops.recurrent(
                x, w, r, OPERATORS[cell.name], activation, reset_after, b, lengths, *(first or (None,))
            )
        if lengths is not None and first is not None:  # ONNX's last state of a row without steps is 0
            last = [torch.where((lengths > 0).view(1, -1, 1), a, b) for a, b in zip(last, first, strict=True)]
        return y, tuple(last)


def _reorder(cell: Cell, weight: Tensor) -> Tensor:
    gates = weight.detach().chunk(len(GATE_ORDER[cell.name]))
    return torch.cat([gates[k] for k in GATE_ORDER[cell.name]])


def has_native_operator(layer: nn.Module) -> bool:
    """Return whether ONNX has an operator with the equations of a layer."""
    if not isinstance(layer, Recurrent):
        return False
    cell = layer.cell_at(0)
    if type(cell) is not Cell.registry.get(cell.name) or cell.name not in OPERATORS:
        return False
    return not getattr(cell, "proj_size", 0) and getattr(cell, "nonlinearity", "tanh") in ACTIVATIONS


def make_translations(op: Any) -> dict[Any, Any]:  # noqa: ANN401  # an opset of onnxscript
    """Return the functions that write the operators of this file to a graph, by operator."""

    def put_features_last(y: Any) -> Any:  # noqa: ANN401  # a value of onnxscript
        return op.Reshape(op.Transpose(y, perm=[0, 2, 1, 3]), op.Constant(value_ints=[0, 0, -1]))

    def get_common(r: Any, lengths: Any) -> tuple[Any, dict[str, Any]]:  # noqa: ANN401
        ways, H = r.shape[0], r.shape[2]
        direction = "bidirectional" if ways == 2 else "forward"
        steps = None if lengths is None else op.Cast(lengths, to=6)  # int32
        return steps, {"direction": direction, "hidden_size": int(H)}

    def write_recurrent(
        x: Any,  # noqa: ANN401
        w: Any,  # noqa: ANN401
        r: Any,  # noqa: ANN401
        name: str,
        activation: str,
        reset_after: bool,
        b: Any = None,  # noqa: ANN401
        lengths: Any = None,  # noqa: ANN401
        h: Any = None,  # noqa: ANN401
    ) -> Any:  # noqa: ANN401
        steps, common = get_common(r, lengths)
        if name == "GRU":
            y, end = op.GRU(x, w, r, b, steps, h, linear_before_reset=int(reset_after), **common)
        else:
            y, end = op.RNN(x, w, r, b, steps, h, activations=[activation] * int(r.shape[0]), **common)
        return put_features_last(y), end

    def write_lstm(x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None, c: Any = None) -> Any:  # noqa: ANN401
        steps, common = get_common(r, lengths)
        y, h, c = op.LSTM(x, w, r, b, steps, h, c, **common)
        return put_features_last(y), h, c

    ops = torch.ops.seqloom_onnx
    return {ops.recurrent.default: write_recurrent, ops.lstm.default: write_lstm}
