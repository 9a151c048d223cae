"""One AttnRNN cell of a prepared call whose heads are padded to full tiles inside the kernels.

Both passes begin with padding and end with its removal: small launches that take the host longer than the GPU, so both
are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from seqloom.kernels.autograd import Gradients
from seqloom.kernels.cuda.attn_rnn.backward import WEIGHTS
from seqloom.kernels.cuda.attn_rnn.prepared_cell import CellSaved, Maybe, PreparedCell
from seqloom.kernels.cuda.attn_rnn.scan import AttnRNNWeights, Tier, cut_units, cut_weight, pad_units, pad_weight
from seqloom.kernels.cuda.runtime.recorded import Recorder
from seqloom.kernels.stack import Stack


class PaddedCell(PreparedCell):
    """One cell of a plan, with padded heads.

    Args:
        stack: All cells of the plan.
        index: Which of them it is.
        tier: How it is divided over the GPU.
        weights: All weights of the stack.
    """

    def __init__(self, stack: Stack, index: int, tier: Tier, weights: Sequence[Tensor]) -> None:
        super().__init__(stack, index, tier, weights)
        self.setting, self.is_whole = self.inputs.setting, False
        numbers = 4 * self.H + stack.cells[index].input_size  # values of a step that a forward pass reads or writes
        self.forward_recorder = Recorder(self.device, numbers * self.B * self.T * self.dtype.itemsize)

    def _make_start(self) -> Tensor:
        start = super()._make_start()[..., : self.inputs.setting.real_head * self.inputs.setting.heads]
        return pad_units(start, self.inputs.setting)

    def go_forward(self, x: Tensor, h0: Maybe, own: AttnRNNWeights) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Do what `PreparedCell.go_forward` does; the outputs and the last state have no padding."""

        def launch(tensors: Any) -> tuple[Tensor, ...]:  # noqa: ANN401  # a tree
            x, h0 = tensors
            return self._launch_forward(x, h0, self._pad_weights(own))

        found: tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
        found = self.record(self.forward_recorder, launch, (x, h0), own, (h0 is None,))
        return found

    def _launch_forward(self, x: Tensor, h0: Maybe, own: AttnRNNWeights) -> tuple[Tensor, ...]:
        x = self._pad(x) if own.weight_u is None else x
        y, last, *saved = super().go_forward(x, None if h0 is None else self._pad(h0), own)
        return cut_units(y, self.setting), cut_units(last, self.setting), *saved

    def fill_arguments(self, own: AttnRNNWeights) -> Any:  # noqa: ANN401  # a struct of C
        """Return the arguments of the forward kernel, with the addresses of the padded weights."""
        arguments = super().fill_arguments(own)
        for name, w in zip(WEIGHTS, own.recurrent, strict=True):
            setattr(arguments.w, name, None if w is None else w.data_ptr())
        return arguments

    def launch_back(
        self,
        x: Tensor,
        saved: CellSaved,
        grads: tuple[Maybe, ...],
        own: AttnRNNWeights,
        needs: tuple[bool, bool, bool, bool],
    ) -> Gradients:
        """Do what `PreparedCell.launch_back` does; only the input and all states of the kernel have padding."""
        is_direct = own.weight_u is None  # the kernel takes x itself
        ends = tuple(None if d is None else self._pad(d) for d in grads)
        found = super().launch_back(saved.u if is_direct else x, saved, ends, self._pad_weights(own), needs)
        dx = cut_units(found.x, self.setting) if is_direct and found.x is not None else found.x
        own_gradients = AttnRNNWeights(*found.weights)
        cut = AttnRNNWeights(*(None if d is None else cut_weight(d, self.setting) for d in own_gradients.recurrent))
        dweight, dbias = own_gradients.weight_u, own_gradients.bias_u
        if dweight is not None:
            dweight = cut_units(dweight.t(), self.setting).t()
        dbias = None if dbias is None else cut_weight(dbias, self.setting)
        states = tuple(cut_units(d, self.setting) for d in found.states)
        return Gradients(dx, states, cut._replace(weight_u=dweight, bias_u=dbias))

    def _pad(self, t: Tensor) -> Tensor:
        return pad_units(t, self.setting)

    def _pad_weights(self, own: AttnRNNWeights) -> AttnRNNWeights:
        """Return the weights with zeros at the end of each head."""
        padded = AttnRNNWeights(*(None if w is None else pad_weight(w, self.setting) for w in own.recurrent))
        weight = None if own.weight_u is None else self._pad(own.weight_u.t()).t().contiguous()
        bias = None if own.bias_u is None else pad_weight(own.bias_u, self.setting)
        return padded._replace(weight_u=weight, bias_u=bias)
