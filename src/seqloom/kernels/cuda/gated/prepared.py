"""One gated cell of a prepared call: its forward and backward pass over inputs of one shape.

A call is one node of the graph, its input product included. Short passes are recorded as CUDA graphs when they have
been made often enough (`runtime/recorded.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.checks import are_contiguous, read_moved, read_saved
from seqloom.core.heads import HeadsCell
from seqloom.core.job import ScanJob, reverse_steps
from seqloom.core.memory import empty_like, new_empty
from seqloom.core.precision import product_flags
from seqloom.kernels import heuristics
from seqloom.kernels.cuda.gated.backward import go_back
from seqloom.kernels.cuda.gated.centre import centre_weights
from seqloom.kernels.cuda.gated.code import arrange_weights, choose_kept, find_code
from seqloom.kernels.cuda.gated.heads import GatedHeads
from seqloom.kernels.cuda.gated.input_norm import normalise, undo_norm
from seqloom.kernels.cuda.gated.kernels import KINDS, Gated, pad_weight, round_up
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime.recorded import Recorder, list_addresses
from seqloom.kernels.current_stream import find_stream
from seqloom.kernels.stack import Stack

Maybe = Tensor | None
OWN = ("weight_ih", "bias_ih", "weight_hh", "bias_hh", "scale_hh", "scale_c", "bias_c", "scale_ih")


def read_head(cell: Cell) -> Cell:
    """Return the cell whose equations every head has; the cell itself if it has no heads."""
    one: Cell = cell.__dict__["one"] if isinstance(cell, HeadsCell) else cell
    return one


class PreparedGated:
    """One cell of a plan.

    Args:
        stack: All cells of the plan.
        index: Which of them it is; with two ways every second one reads backwards.
        code: Its kernel.
        weights: All weights of the stack.
        dtype: The type that the kernels compute in; that of the weights if omitted.
    """

    def __init__(
        self,
        stack: Stack,
        index: int,
        code: Gated | GatedHeads,
        weights: Sequence[Tensor],
        dtype: torch.dtype | None = None,
    ) -> None:
        cell, names, like = stack.cells[index], stack.names[index], weights[0].detach()
        one, self.heads = read_head(cell), cell.heads if isinstance(cell, HeadsCell) else 1
        self.B, self.T, self.dtype, self.device = stack.B, stack.T, dtype or like.dtype, like.device
        self.weight_dtype, self.is_cast = like.dtype, self.dtype != like.dtype
        self.has_autocast = dtype is not None
        self.units, self.H = one.hidden_size, round_up(one.hidden_size)  # of a head, and of the kernels
        self.more, self.rows = self.H - self.units, self.heads * self.B  # of the kernels
        self.places = [names.get(name) for name in OWN]
        own = [None if place is None else weights[place] for place in self.places]
        self.shapes = [None if w is None else w.shape for w in own]
        self.addresses = () if self.is_cast else list_addresses(own)  # a pass reads copies of weights that are cast
        self.is_backwards = stack.ways == 2 and index % 2 == 1
        self.is_time_first = len(stack.shape) == 3 and not stack.batch_first
        # kernels take the layer's order, but of heads one after the other
        self.keeps_time_first = self.is_time_first and self.heads == 1
        self.order = (self.T, self.B) if self.keeps_time_first else (self.B, self.T)
        self.lead = self.order if self.heads == 1 else (self.rows, self.T)  # first sizes of what the kernels take
        shape = torch.Size((*stack.shape[:-1], cell.input_size))
        mine = {name: i for i, name in enumerate(OWN) if name in names}
        self.stack = Stack([cell], [mine], shape, stack.batch_first, 1)
        self.last_shape = self.stack.state_shapes[0]
        job = ScanJob(new_empty(like, self.B, self.T, cell.input_size), ())
        gated = Gated(KINDS[one.name]) if isinstance(code, GatedHeads) else code
        setting = gated.read_setting(one, self.H, job, self.dtype)
        self.setting = choose_kept(setting, self.rows, self.device)
        self.kind = self.setting.kind
        self.forward = find_code(self.setting, "forward", self.rows, self.device)
        self.arguments: Any = self.forward.arguments
        numbers = {"B": self.rows, "T": self.T, "head_rows": self.B if self.heads > 1 else 0}
        numbers |= {"time_first": int(self.keeps_time_first)}
        self.filled = bytes(self.forward.pack(numbers))
        self.stream = find_stream(self.device)
        self.start = self._make_start()
        self.recorder, self.back_recorder = self._make_recorders(cell.input_size)

    def _make_recorders(self, width: int) -> tuple[Recorder, Recorder]:
        """Return those of the forward and the backward pass, for an input of `width` features."""
        kind, width, size = self.kind, width // self.heads, self.rows * self.T * self.dtype.itemsize
        gates = kind.gates * (1 + kind.norm) * self.H
        forward = size * (2 * gates + 2 * (1 + kind.states) * self.H + 2 * width)
        back = size * (4 * gates + (4 + kind.states) * self.H + 3 * width)
        return Recorder(self.device, forward, heuristics.RECORDED_FORWARD_SHARE), Recorder(self.device, back)

    def _make_start(self) -> list[Tensor]:
        """Return the states before the first step: zeros."""
        zeros = torch.zeros(self.rows, self.H, dtype=torch.float32, device=self.device)
        return [zeros] * self.kind.states

    def run(
        self, x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], train: bool, lengths: Maybe = None
    ) -> tuple[Tensor, ...]:
        """Return the outputs, and the last states (1, B, H), or (1, H) for a single sequence."""
        own = [None if place is None else weights[place] for place in self.places]
        if train:
            result: tuple[Tensor, ...] = _PreparedScan.apply(self, len(states), lengths, x, *states, *own)
            return result
        y, last, _, _ = self.find_outputs(x, states, own, False, lengths)
        return y, *last

    def find_outputs(
        self, x: Tensor, states: Sequence[Tensor], own: Sequence[Any], train: bool, lengths: Maybe
    ) -> tuple[Tensor, list[Tensor], list[Maybe], list[Maybe]]:
        """Return the outputs, the last states, what the backward pass reads, and the weights if they were cast.

        The third is the projected input (*lead, gates * H), to which some gates have added their product with the
        state (`GatedSetting.kept`), the states after all steps (state 0 before them, too, with `keeps_time_first`), the
        first states in float32, the products of the other gates, and with layer normalisation the centred weights, the
        product (*order, gates * H), what its normalisation and what the kernel saved.
        """
        stream, k = self._find_recording_stream(), self.kind.states

        def launch(tensors: Sequence[Any]) -> list[Maybe]:
            if not self.has_autocast:
                return self._launch_forward(tensors[0], tensors[1:-1], own, train, tensors[-1])
            with torch.autocast(self.device.type, enabled=False):  # it would normalise in float32
                return self._launch_forward(tensors[0], tensors[1:-1], own, train, tensors[-1])

        if stream is None:
            found = launch((x, *states, lengths))
        else:
            has_lengths = lengths is not None
            key = stream, product_flags(), train, x.dtype, len(states), has_lengths, list_addresses(own)
            found = self.recorder.run(launch, key, (x, *states, lengths))
        many, (y, *rest) = 6 + 2 * k, found
        return cast(Tensor, y), cast(list[Tensor], rest[:k]), rest[k : k + many], rest[k + many :]

    def _cast_weights(self, own: Sequence[Any]) -> list[Any]:
        """Return copies of the weights in the type of the kernels, in one launch."""
        present = [w.detach() for w in own if w is not None]
        flat = new_empty(present[0], sum(map(torch.numel, present)), dtype=self.dtype)
        copies = torch._C._nn.unflatten_dense_tensors(flat, present)
        torch._foreach_copy_(copies, present)
        each = iter(copies)
        return [None if w is None else next(each) for w in own]

    def _turn(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Return an input as (*order, D), in the type of the kernels; its memory may have another order.

        The first real step of a cell that reads backwards is the last of the input, and padding is 0.
        """
        x = x.to(self.dtype)
        x = x.transpose(0, 1) if self.is_time_first != self.keeps_time_first else x.view(*self.order, -1)
        return self._reverse(x if padding is None else padding.clear(x), padding)

    def _reverse(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Reverse the real steps of (*order, n) if the cell reads backwards."""
        if not self.is_backwards:
            return x
        return x.flip(1 - self.keeps_time_first) if padding is None else padding.reverse(x)

    def _find_padding(self, lengths: Maybe) -> Padding | None:
        return None if lengths is None else Padding(lengths, self.T, self.keeps_time_first, self.heads)

    def _launch_forward(
        self, x: Tensor, states: Sequence[Tensor], own: Sequence[Any], train: bool, lengths: Maybe
    ) -> list[Maybe]:
        """Do what `find_outputs` does, launch by launch."""
        copies = self._cast_weights(own) if self.is_cast else []
        H, kind, padding = self.H, self.kind, self._find_padding(lengths)
        inputs, own = self._turn(x, padding), self._pad_weights(copies or own)
        product, normed, spread, centred = None, None, None, None
        if kind.norm:
            product = exact.linear(inputs, own[0], None).view(*self.order, -1)
            u, normed = normalise(product, own[7], own[1], kind.gates, train)
            spread = new_empty(u, *self.order, kind.spread, dtype=torch.float32) if train else None
            centred = centre_weights(own[2], H)
        else:
            u = self._divide(exact.linear(inputs, own[0].view(-1, inputs.shape[-1]), _flatten(own[1])))
        weight = arrange_weights(self.setting, own[2].view(-1, H, H) if centred is None else centred)
        first = [self._divide_state(s).float() for s in states] or self._find_start()
        # padding is read from the path of state 0, by products, and from the outputs
        whole = () if padding is None else (0, kind.output)
        paths = [
            (Tensor.new_zeros if i in whole else new_empty)(u, (*self.lead, H)) if train or i == kind.output else None
            for i in range(kind.states)
        ]
        seen = paths[0]
        if train and self.keeps_time_first:  # the first state, too: products see all but the last
            seen = (new_empty if padding is None else Tensor.new_zeros)(u, (self.T + 1, self.B, H))
            seen[0], paths[0] = first[0], seen[1:]
        last = [empty_like(s) for s in first]
        arguments = self.arguments.from_buffer_copy(self.filled)
        arguments.x, arguments.weight = u.data_ptr(), weight.data_ptr()
        arguments.lengths = None if padding is None else padding.lengths.data_ptr()
        kept, arguments.keeps = None, int(train and self.setting.kept)
        if arguments.keeps and kind.gates > kind.summed:
            kept = new_empty(u, *self.lead, (kind.gates - kind.summed) * H)
            arguments.u = kept.data_ptr()
        arguments.spread = None if spread is None else spread.data_ptr()
        for name, w in zip(("bias", "scale", "scale_c", "bias_c"), own[3:7], strict=True):
            setattr(arguments, name, None if w is None else w.data_ptr())
        for i, path in enumerate(paths):
            setattr(arguments, f"c_{i - 1}" if i else "y", None if path is None else path.data_ptr())
            setattr(arguments, f"first_{i}", first[i].data_ptr())
            setattr(arguments, f"last_{i}", last[i].data_ptr())
        self.forward.start(arguments, self.rows, self.device)
        y = paths[kind.output]
        assert y is not None
        ends = [self._join_state(s).to(self.weight_dtype) for s in last]
        saved = [u, seen, *paths[1:], *first, kept, centred, product, normed, spread]
        y = self._join(y, padding)
        return [y, *ends, *(saved if train else [None] * len(saved)), *(copies if train else ())]

    def _find_start(self) -> list[Tensor]:
        """Return the first states, zeros that the current stream may read."""
        if self.stream is not None and self.stream == find_stream(self.device):
            return self.start
        return self._make_start()

    def _divide(self, t: Tensor) -> Tensor:
        """Put one head after the other: (B * T, heads * n) to (heads * B, T, n); one head keeps its order of time."""
        if self.heads == 1:
            return t.view(*self.order, -1)
        return t.view(self.B, self.T, self.heads, -1).permute(2, 0, 1, 3).reshape(self.rows, self.T, -1)

    def _pad_weights(self, own: Sequence[Any]) -> Sequence[Any]:
        """Return the weights with zeros for the units that only the kernels have."""
        if not self.more:
            return own
        gates = self.kind.gates
        return [None if w is None else pad_weight(n, w, gates, self.more) for n, w in zip(OWN, own, strict=True)]

    def _divide_state(self, t: Tensor) -> Tensor:
        """Map a state in torch's form to (rows, H)."""
        t = t.view(self.B, self.heads, self.units).transpose(0, 1).reshape(self.rows, self.units)
        return F.pad(t, (0, self.more)) if self.more else t

    def _join(self, t: Tensor, padding: Padding | None) -> Tensor:
        """Put the units of all heads side by side, in the order of the layer's outputs."""
        t = t[..., : self.units]
        if self.heads > 1:
            t = t.unflatten(0, (self.heads, self.B)).permute(1, 2, 0, 3)
        return self._restore(t, padding)

    def _restore(self, t: Tensor, padding: Padding | None) -> Tensor:
        """Map a tensor with B * T rows in the kernels' order to (.., n) in the order of the layer's input."""
        if self.is_backwards:
            t = self._reverse(t.reshape(*self.order, -1), padding)
        if self.is_time_first != self.keeps_time_first:
            t = t.reshape(self.B, self.T, -1).transpose(0, 1)
        return t.reshape(*self.stack.shape[:-1], -1)

    def _join_state(self, t: Tensor) -> Tensor:
        """Map (rows, H) to a state in torch's form."""
        return t.view(self.heads, self.B, self.H)[..., : self.units].transpose(0, 1).reshape(self.last_shape)

    def find_gradients(
        self, tensors: Sequence[Maybe], own: Sequence[Any], needs: tuple[bool, bool, bool]
    ) -> list[Maybe]:
        """Return the gradients of x, of the weights in OWN in their types, and of the first states in float32.

        Most launches are replayed when passes of this form have been made often enough.

        Args:
            tensors: The input, what the forward pass saved, the gradient of the outputs and those of the last states,
                contiguous, None for zeros; the lengths or None.
            own: The weights, as in OWN.
            needs: Whether the gradients of x, weight_ih and bias_ih are needed.
        """
        addresses = () if self.is_cast else list_addresses(own)
        if addresses != self.addresses or not are_contiguous(own):
            own = read_moved(own, self.shapes, self.weight_dtype, self.device)
            addresses = list_addresses(own)
        stream = self._find_recording_stream()
        if stream is None:
            return self._launch_back(tensors, own, needs)
        many = len(tensors)
        arguments = (*tensors, *own) if self.is_cast else tensors  # copies of weights are elsewhere in every pass

        def launch(arguments: Sequence[Maybe]) -> list[Maybe]:
            return self._launch_back(arguments[:many], arguments[many:] or own, needs)

        key = stream, product_flags(), needs, addresses, tuple(t is None for t in arguments)
        return self.back_recorder.run(launch, key, arguments)

    def differentiate_twice(
        self, x: Tensor, states: Sequence[Tensor], own: Sequence[Any], pulls: Sequence[Maybe], lengths: Maybe
    ) -> list[Maybe]:
        """Return the gradients of x, the states and the weights in a form that can be differentiated again."""
        if not self.is_backwards:
            return self.stack.differentiate(x, states, own, pulls, self.dtype, lengths)

        def reverse(t: Tensor) -> Tensor:  # of the form of the layer's input
            if self.is_time_first:
                return reverse_steps(t.transpose(0, 1), lengths).transpose(0, 1)
            return reverse_steps(t, lengths) if t.dim() == 3 else reverse_steps(t.unsqueeze(0), lengths).squeeze(0)

        with torch.enable_grad():
            dy, x = None if pulls[0] is None else reverse(pulls[0]), reverse(x)
        dx, *rest = self.stack.differentiate(x, states, own, (dy, *pulls[1:]), self.dtype, lengths)
        return [None if dx is None else reverse(dx), *rest]

    def _find_recording_stream(self) -> int | None:
        """Return the current stream if graphs can be recorded there now, else None."""
        return find_stream(self.device) if self.device.type == "cuda" else None

    def _launch_back(self, tensors: Sequence[Maybe], own: Sequence[Any], needs: tuple[bool, bool, bool]) -> list[Maybe]:
        """Do what `find_gradients` does, launch by launch."""
        many, x, padding = 7 + 2 * self.kind.states, tensors[0], self._find_padding(tensors[-1])
        assert x is not None
        halves: list[exact.SplitMatrix] = []
        du, *recurrent, ds = self._go_back(tensors[1:many], own, tensors[many:-1], padding, halves)
        dscale_ih: Maybe = None
        dbias_ih: Maybe = None
        if self.kind.norm:
            product, normed = tensors[many - 3 : many - 1]
            assert product is not None
            assert normed is not None
            du, dscale_ih, dbias_ih = undo_norm(du, product, normed, own[7], self.kind.gates)
            du = du.view(self.B * self.T, -1)
        elif needs[2]:
            dbias_ih = self._sum_bias(du, recurrent[1]).view_as(own[1])
        weight = own[0].view(du.shape[1], -1)
        found_x, dweight_ih = exact.differentiate_linear(du, self._turn(x, padding), weight, needs[:2], *halves)
        dx = None if found_x is None else self._restore(found_x, padding).to(x.dtype)
        dweight_ih = None if dweight_ih is None else dweight_ih.view_as(own[0])
        found = (dweight_ih, dbias_ih, *recurrent, dscale_ih)
        return [dx, *(None if d is None else d.to(self.weight_dtype) for d in found), *ds]

    def _sum_bias(self, du: Tensor, recurrent: Maybe) -> Tensor:
        """Return the gradient of bias_ih; the first gates have that of bias_hh."""
        if recurrent is None or not self.setting.kept or self.heads > 1:
            return du.sum(0)
        same, recurrent = self.kind.summed * self.units, recurrent.view(-1)
        if same == du.shape[1]:
            return recurrent.clone()
        return torch.cat([recurrent[:same], du[:, same:].sum(0)])

    def _go_back(
        self,
        saved: Sequence[Maybe],
        own: Sequence[Any],
        pulls: Sequence[Maybe],
        padding: Padding | None,
        halves: list[exact.SplitMatrix],
    ) -> tuple[Tensor, Maybe, Maybe, Maybe, Maybe, Maybe, list[Maybe]]:
        """Return the gradients of the projected input (B * T, ..), of OWN[2:7] and of the first states.

        `pulls` are the gradients of the outputs and of the last states; `halves` gets the first of those that are
        found in halves, if it was split.
        """
        k, n, g = self.kind.states, self.heads, self.kind.gates
        dy, *dlast = pulls
        u, paths, first = saved[0], saved[1 : 1 + k], saved[1 + k : 1 + 2 * k]
        assert u is not None
        weight, bias, *norms = self._pad_weights(own)[2:7]
        values: dict[str, Any] = {"x": u, "weight": weight.view(-1, self.H), "bias": _flatten(bias), "y": paths[0]}
        if self.keeps_time_first and paths[0] is not None:
            values |= {"y": paths[0][1:], "states": paths[0], "time_first": 1}
        values |= {f"c_{i}": path for i, path in enumerate(paths[1:])} | {f"first_{i}": s for i, s in enumerate(first)}
        values |= {"lengths": None if padding is None else padding.lengths}
        values |= {"mask": None, "reset": None, "spread": saved[-1], "u": saved[1 + 2 * k], "centred": saved[2 + 2 * k]}
        values |= dict(zip(("scale", "scale_c", "bias_c"), norms, strict=True))
        if dy is None:
            values["dy"] = u.new_zeros(*self.lead, self.H)
        else:
            rows = dy.transpose(0, 1) if self.is_time_first != self.keeps_time_first else dy.view(*self.order, -1)
            rows = self._reverse(rows, padding).contiguous().view(self.B * self.T, -1)
            values["dy"] = self._divide(F.pad(rows, (0, self.more)) if self.more else rows)
        ends = [None if d is None else self._divide_state(d.contiguous()) for d in dlast]
        du, dweight, dbias, *rest = go_back(self.setting, values, ends, n, None if self.more else halves)
        assert du is not None
        assert dweight is not None
        real, steps = slice(self.units), self.B * self.T
        du = du.view(n, steps, g, self.H)[..., real].transpose(0, 1).reshape(steps, -1)
        dweight = dweight.view(n, g, self.H, self.H)[..., real, real].reshape(own[2].shape)
        if dbias is not None:
            dbias = dbias.view(n, g, self.H)[..., real].reshape(own[3].shape)
        ds = [None if d is None else self._join_state(d) for d in rest[4:]]
        return du, dweight, dbias, rest[0], rest[1], rest[2], ds


class Padding:
    """Where the padding of a call is.

    Args:
        lengths: (B,), the real steps of each row.
        steps: T.
        time_first: Whether what `clear` and `reverse` take is (T, B, n), not (B, T, n).
        heads: How often the kernels see every row.
    """

    def __init__(self, lengths: Tensor, steps: int, time_first: bool, heads: int) -> None:
        own = lengths.clamp(0, steps)  # kernels write up to them
        self.lengths = own.repeat(heads) if heads > 1 else own
        self.t = torch.arange(steps, device=own.device).unsqueeze(int(time_first))
        self.last = own.unsqueeze(1 - int(time_first)) - 1
        self.time = 1 - int(time_first)

    def clear(self, x: Tensor) -> Tensor:
        """Set padding to 0."""
        return x.masked_fill((self.t > self.last).unsqueeze(-1), 0)

    def reverse(self, x: Tensor) -> Tensor:
        """Reverse the real steps of each row; padding stays in place."""
        index = torch.where(self.t <= self.last, self.last - self.t, self.t)
        return x.gather(self.time, index.unsqueeze(-1).expand(x.shape))


def _flatten(bias: Maybe) -> Maybe:
    return None if bias is None else bias.view(-1)


class _PreparedScan(torch.autograd.Function):
    """x, the first states (or none) and the weights of OWN -> the outputs and the last states."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401  # takes any attribute
        cell: PreparedGated,
        given: int,
        lengths: Maybe,
        x: Tensor,
        *tensors: Any,  # noqa: ANN401  # Tensor; None for a bias that the cell lacks
    ) -> tuple[Tensor, ...]:
        y, last, saved, copies = cell.find_outputs(x, tensors[:given], tensors[given:], True, lengths)
        ctx.cell, ctx.given, ctx.many = cell, given, len(saved)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(lengths, *saved, x, *tensors, *copies)
        return y, *last

    @staticmethod
    def backward(
        ctx: Any,  # noqa: ANN401  # has what forward set
        dy: Maybe,
        *dlast: Maybe,
    ) -> tuple[Maybe, ...]:
        device = ctx.cell.device.type
        if not torch.is_autocast_enabled(device):
            return _go_back(ctx, dy, dlast)
        with torch.autocast(device, enabled=False):
            return _go_back(ctx, dy, dlast)


def _go_back(
    ctx: Any,  # noqa: ANN401  # has what forward set
    dy: Maybe,
    dlast: Sequence[Maybe],
) -> tuple[Maybe, ...]:
    cell: PreparedGated = ctx.cell
    lengths, *kept = read_saved(ctx)
    saved, x, tensors = kept[: ctx.many], kept[ctx.many], kept[ctx.many + 1 :]
    states, own = tensors[: ctx.given], tensors[ctx.given : ctx.given + len(OWN)]
    if torch.is_grad_enabled():  # a second derivative is wanted
        return None, None, None, *cell.differentiate_twice(x, states, own, (dy, *dlast), lengths)
    gradients = (None if d is None else d.contiguous() for d in (dy, *dlast))
    needs = ctx.needs_input_grad[3], *ctx.needs_input_grad[4 + ctx.given : 6 + ctx.given]
    copies = tensors[ctx.given + len(OWN) :] or own
    dx, *rest = cell.find_gradients((x, *saved, *gradients, lengths), copies, needs)
    dweights, ds = rest[: len(OWN)], rest[len(OWN) :]
    dstates = [d.to(s.dtype).view(s.shape) for d, s in zip(ds, states, strict=False) if d is not None]
    return None, None, None, dx, *dstates, *dweights
