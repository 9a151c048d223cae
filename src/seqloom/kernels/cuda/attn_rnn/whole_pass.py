"""A backward pass of AttnRNN over few steps, most of whose launches are replayed as two CUDA graphs.

A pass over few steps takes the GPU less time than its twenty launches take the host. All but three of the launches use
memory at fixed addresses and are recorded.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from seqloom.core.memory import new_empty
from seqloom.kernels.cuda.attn_rnn.backward import WEIGHTS, DividedChunk, align
from seqloom.kernels.cuda.runtime import launch
from seqloom.kernels.cuda.runtime.graphs import Recording
from seqloom.kernels.cuda.runtime.launch import CudaCode
from seqloom.kernels.cuda.runtime.recorded import list_addresses

Maybe = Tensor | None


class WholePass:
    """The memory and the launches of a backward pass over all steps of inputs of one shape.

    Args:
        chunk: A new chunk of all steps.
        u: An input of the cell: (B, T, H) or, with `is_time_first`, (T, B, H).
        T: Steps.
        is_time_first: Whether inputs and outputs are (T, B, H).
        weights: The cell's, as in WEIGHT_NAMES.
    """

    def __init__(self, chunk: DividedChunk, u: Tensor, T: int, is_time_first: bool, weights: Sequence[Maybe]) -> None:
        B, H = chunk.B, chunk.setting.hidden
        self.chunk, self.rows, self.device = chunk, B * T, u.device
        self.names = [name for name, w in zip(WEIGHTS, weights, strict=True) if w is not None]
        self.take_weights(weights)
        self.count = sum(map(torch.numel, self.present))
        self.u, self.dy, self.du = new_empty(u, 3, B, T, H)
        self.dh = new_empty(u, B, H, dtype=torch.float32)
        self.before, self.back = chunk.arguments["before"], chunk.arguments["reverse"]
        row, step = (H, B * H) if is_time_first else (T * H, H)
        self.before.x_row = self.before.y_row = row
        self.before.x_step = self.before.y_step = step
        self.before.held = self.back.dy = self.dy.data_ptr()
        self.before.u = self.back.x = chunk.arguments["attend"].u = self.u.data_ptr()
        for arguments in (self.before, self.back):
            arguments.T, arguments.from_, arguments.steps = T, 0, T
        self.back.B = B
        # Strides of those arguments that have them.
        launch.fill(self.back, {"x_row": T * H, "x_step": H, "y_row": T * H, "y_step": H})
        products = {"products": chunk.products, "partial": chunk.partial, "pieces": chunk.pieces, "parts": chunk.parts}
        self.finish = chunk.setting.finish.pack(products)
        self.sums = Recording(self._add_products)
        self.flags: tuple[object, ...] | None = None
        self.reverse: CudaCode = chunk.reverse

    def take_weights(self, weights: Sequence[Maybe]) -> None:
        """Set the addresses of the weights; launches that were recorded with other addresses are discarded."""
        self.weights = [None if w is None else align(w.detach()) for w in weights]
        self.present = [w for w in self.weights if w is not None]
        # an aligned copy has an address that no weight has, so that the next pass copies it again
        self.addresses = list_addresses(self.weights)
        self.chunk.prepare(self.weights)
        self.inside = Recording(self._find_inside)

    def reads(self, weights: Sequence[Maybe]) -> bool:
        """Return whether the launches read these (contiguous) weights at their current addresses."""
        return list_addresses(weights) == self.addresses

    def _find_inside(self) -> None:
        self.chunk.turn_weights()
        self.chunk.find_inside()

    def _add_products(self) -> None:
        self.chunk.first = True
        self.chunk.add_products(self.rows)

    def count_bytes(self) -> int:
        """Return the approximate size of its memory: that of the planes and the products."""
        return self.chunk.count_bytes() + 3 * self.u.nbytes

    def run(
        self,
        tensors: tuple[Tensor, Tensor, Tensor, Maybe, Maybe],
        du: Maybe,
        dh: Maybe,
        flags: tuple[object, ...],
        is_alone: bool,
    ) -> list[Maybe]:
        """Return the gradients of the weights, views of one tensor.

        Args:
            tensors: The input and all states of the forward pass, the first state in float32, and the gradients of the
                outputs and of the last state, contiguous; None for zeros.
            du: Buffer for the gradient of the input, (B, T, H); None if it is not needed.
            dh: Buffer for the gradient of the first state, (B, H) in float32; None if it is not needed.
            flags: Torch's flags that change results.
            is_alone: Whether graphs may be recorded and replayed, because the caller does not capture one.
        """
        if flags != self.flags:
            self.flags, self.reverse = flags, self.chunk.find_reverse()
        before, back = self.before, self.back
        before.x, before.y, before.h0, before.dy, before.dlast = (None if t is None else t.data_ptr() for t in tensors)
        before.carried = back.dh = (self.dh if dh is None else dh).data_ptr()
        back.du = (self.du if du is None else du).data_ptr()
        setting = self.chunk.setting
        setting.pointwise["before"].launch(before, self.rows, self.device)
        self.inside.run(flags, is_alone)
        self.reverse.start(back, self.chunk.B, self.device)
        self.sums.run(flags, is_alone)
        grads = self._make_gradients()
        for name, d in zip(self.names, grads, strict=True):
            setattr(self.finish, name, d.data_ptr())
        setting.finish.launch(self.finish, 4 * setting.hidden + 5, self.device)
        found = iter(grads)
        return [None if w is None else next(found) for w in self.weights]

    def _make_gradients(self) -> Sequence[Tensor]:
        """Allocate the gradients in one piece, as cuDNN's layers do."""
        flat = new_empty(self.present[0], self.count)
        views: Sequence[Tensor] = torch._C._nn.unflatten_dense_tensors(flat, self.present)
        return views
