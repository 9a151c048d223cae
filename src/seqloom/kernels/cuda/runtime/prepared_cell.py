"""One cell of a prepared call on a GPU, whose passes are recorded as CUDA graphs once they have run often enough.

The kernels, their arguments and the indices of the weights are determined when the call is prepared. Its owner compares
what it depends on at every call (`layers/recurrent/plans.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from seqloom.core.checks import are_contiguous, read_moved
from seqloom.core.precision import product_flags
from seqloom.kernels import heuristics
from seqloom.kernels.autograd import Call, Gradients, Maybe, Prepared
from seqloom.kernels.cuda.runtime.recorded import Recorder, list_addresses
from seqloom.kernels.current_stream import find_stream


@dataclass(frozen=True)
class Places:
    """The addresses at which a forward pass read its weights, and their shapes; only compared in the backward pass.

    FSDP and ZeRO-3 free a weight after the forward pass and bring it back elsewhere.
    """

    addresses: tuple[int, ...]
    shapes: list[torch.Size | None]

    @classmethod
    def of(cls, weights: Sequence[Any]) -> Places:
        """Read the tensors that the forward pass saved."""
        return cls(list_addresses(weights), [None if w is None else w.shape for w in weights])

    def find_weights(self, call: Call, dtype: torch.dtype) -> None:
        """Replace the weights of a backward pass with contiguous ones if they have moved since the forward pass.

        Raises:
            RuntimeError: If they were freed, or have another shape, type or device.
        """
        if list_addresses(call.weights) != self.addresses:
            call.weights = read_moved(call.weights, self.shapes, dtype, call.x.device)


class CellScan(Prepared, Protocol):
    """The passes of a cell over inputs of one form."""

    def forward(self, call: Call, start: tuple[Tensor, ...] | None = None) -> tuple[tuple[Tensor, ...], Any]:
        """Do what `Prepared.forward` does; `start` are the first states of a call that has none."""

    def make_start(self) -> tuple[Tensor, ...]:
        """Return the states before the first step, as the kernels read them."""


class PreparedCell:
    """One cell of a prepared stack, a `Prepared` (`../../autograd.py`).

    Args:
        scan: The passes of the cell.
        indices: The index of each of its weights among those of the stack; None for those that it lacks.
        weights: All weights of the stack.
        sizes: Bytes of the arguments, results and temporaries of the forward and the backward pass; None for a pass
            that is not recorded.
        is_cast: Whether a pass reads copies of the weights, which it saves for the backward pass.
    """

    def __init__(
        self,
        scan: CellScan,
        indices: Sequence[int | None],
        weights: Sequence[Tensor],
        sizes: tuple[int | None, int],
        is_cast: bool = False,
    ) -> None:
        self.scan, self.indices, self.is_cast = scan, indices, is_cast
        self.dtype, self.device = weights[0].dtype, weights[0].device
        self.places = Places.of(self.find_weights(weights))
        self.stream, self.start = find_stream(self.device), scan.make_start()
        forward, back = sizes
        share = heuristics.RECORDED_FORWARD_SHARE
        self.recorder = None if forward is None else Recorder(self.device, forward, share)
        self.back_recorder = Recorder(self.device, back)

    def find_weights(self, weights: Sequence[Tensor]) -> tuple[Maybe, ...]:
        """Return those of this cell."""
        return tuple(None if i is None else weights[i] for i in self.indices)

    def forward(self, call: Call) -> tuple[tuple[Tensor, ...], Any]:
        """Return the outputs, the last states, and what the backward pass reads."""
        stream = None if self.recorder is None else self._find_recording_stream()
        if self.recorder is None or stream is None:
            return self.scan.forward(call, self._find_start())
        has = len(call.states), call.lengths is not None
        key = stream, product_flags(), call.train, call.x.dtype, has, list_addresses(call.weights)

        def launch(tensors: Any) -> Any:  # noqa: ANN401  # trees
            x, states, lengths = tensors
            own = Call(x, states, call.weights, lengths=lengths, train=call.train)
            return self.scan.forward(own, self._find_start())

        outputs, saved = self.recorder.run(launch, key, (call.x, tuple(call.states), call.lengths))
        return outputs, saved

    def _find_start(self) -> tuple[Tensor, ...]:
        """Return the first states, in memory that the current stream may read."""
        if self.stream is not None and self.stream == find_stream(self.device):
            return self.start
        return self.scan.make_start()

    def backward(self, call: Call, saved: Any, grads: Sequence[Maybe], needs: Gradients) -> Gradients:  # noqa: ANN401
        """Return the gradients; the launches are replayed once passes of this form have been made often enough."""
        addresses = () if self.is_cast else list_addresses(call.weights)
        if not self.is_cast and (addresses != self.places.addresses or not are_contiguous(call.weights)):
            call.weights = read_moved(call.weights, self.places.shapes, self.dtype, self.device)
            addresses = list_addresses(call.weights)
        stream = self._find_recording_stream()
        grads = tuple(None if d is None else d.contiguous() for d in grads)
        if stream is None:
            return self.scan.backward(call, saved, grads, needs)

        def launch(tensors: Any) -> Any:  # noqa: ANN401  # trees
            x, saved, grads, lengths = tensors
            own = Call(x, call.states, call.weights, lengths=lengths, train=True)
            return self.scan.backward(own, saved, grads, needs)

        wanted = bool(needs.x), *map(bool, needs.weights)
        given = tuple(t is None for t in (*grads, *saved, call.lengths)), len(call.states)
        key = stream, product_flags(), wanted, addresses, given
        found: Gradients = self.back_recorder.run(launch, key, (call.x, saved, grads, call.lengths))
        return found

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        """Return the gradients by the loop."""
        return self.scan.differentiate(call, grads)

    def _find_recording_stream(self) -> int | None:
        """Return the current stream if graphs can be recorded there now, else None."""
        return find_stream(self.device) if self.device.type == "cuda" else None
