"""One AttnRNN cell of a prepared call whose heads are padded to whole tiles inside the kernels.

Both passes begin and end with padding and cutting, small launches that take the host longer than the GPU, so both are
recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from seqloom.kernels.cuda.attn_rnn.backward import WEIGHTS
from seqloom.kernels.cuda.attn_rnn.prepared_cell import Maybe, PreparedCell
from seqloom.kernels.cuda.attn_rnn.scan import Tier, cut_units, cut_weight, pad_units, pad_weight
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
        numbers = 4 * self.H + stack.cells[index].input_size  # of a step that a forward pass reads or writes
        self.forward_recorder = Recorder(self.device, numbers * self.B * self.T * self.dtype.itemsize)

    def _make_start(self) -> Tensor:
        start = super()._make_start()[..., : self.inputs.setting.real_head * self.inputs.setting.heads]
        return pad_units(start, self.inputs.setting)

    def go_forward(self, x: Tensor, h0: Maybe, own: Sequence[Any]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Do what `PreparedCell.go_forward` does: the outputs and the last state have no padding."""

        def launch(tensors: Sequence[Maybe]) -> list[Maybe]:
            return list(self._launch_forward(tensors[0], tensors[1], self._pad_weights(own)))

        y, last, u, states, first = self.record(self.forward_recorder, launch, (x, h0), own)
        assert y is not None
        assert last is not None
        assert u is not None
        assert states is not None
        assert first is not None
        return y, last, u, states, first

    def _launch_forward(self, x: Maybe, h0: Maybe, own: Sequence[Any]) -> tuple[Tensor, ...]:
        assert x is not None
        x = self._pad(x) if own[8] is None else x
        y, last, u, states, first = super().go_forward(x, None if h0 is None else self._pad(h0), own)
        return cut_units(y, self.setting), cut_units(last, self.setting), u, states, first

    def fill_arguments(self, own: Sequence[Any]) -> Any:  # noqa: ANN401  # a struct of C
        """Return the arguments of the forward kernel, with the addresses of the padded weights."""
        arguments = super().fill_arguments(own)
        for name, w in zip(WEIGHTS, own, strict=False):
            setattr(arguments.w, name, None if w is None else w.data_ptr())
        return arguments

    def launch_back(
        self, tensors: Sequence[Maybe], own: Sequence[Any], needs: tuple[bool, bool, bool, bool]
    ) -> list[Maybe]:
        """Do what `PreparedCell.launch_back` does: only the input and all states of the kernel have padding."""
        x, u, states, first, *ends = tensors
        is_direct = own[8] is None  # the kernel takes x itself
        given = (u if is_direct else x, u, states, first, *(None if d is None else self._pad(d) for d in ends))
        dx, dh, *gradients = super().launch_back(given, self._pad_weights(own), needs)
        if is_direct and dx is not None:
            dx = cut_units(dx, self.setting)
        *eight, dweight, dbias = gradients
        found = [None if d is None else cut_weight(d, self.setting) for d in (*eight, dbias)]
        if dweight is not None:
            dweight = cut_units(dweight.t(), self.setting).t()
        return [dx, None if dh is None else cut_units(dh, self.setting), *found[:8], dweight, found[8]]

    def _pad(self, t: Tensor) -> Tensor:
        return pad_units(t, self.setting)

    def _pad_weights(self, own: Sequence[Any]) -> list[Any]:
        """Return the weights, as in OWN, with zeros at the end of each head."""
        padded = [None if w is None else pad_weight(w, self.setting) for w in (*own[:8], own[9])]
        weight = None if own[8] is None else self._pad(own[8].t()).t().contiguous()
        return [*padded[:8], weight, padded[8]]
