"""A gated cell over sequences of one form: its forward and its backward pass, launch by launch.

The only implementation: calls of a layer (`plan.py`), jobs (`kernels.py`, `heads.py`) and compiled cells
(`../../compiled/gated.py`) all run it. It includes the product of the input, unless the input is already projected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from seqloom.core.cell import Cell
from seqloom.core.checks import are_contiguous
from seqloom.core.job import ScanJob, reverse_steps, zero_padding
from seqloom.core.memory import empty_like, new_empty
from seqloom.core.precision import autocast_dtype
from seqloom.kernels import fused, loop
from seqloom.kernels.autograd import Call, Gradients, make_call, run_prepared
from seqloom.kernels.cuda.gated.backward import go_back
from seqloom.kernels.cuda.gated.centre import centre_weights
from seqloom.kernels.cuda.gated.code import GatedSetting, arrange_weights, choose_kept, find_code
from seqloom.kernels.cuda.gated.input_norm import normalise, undo_norm
from seqloom.kernels.cuda.gated.layout import Layout, Padding
from seqloom.kernels.cuda.products import exact
from seqloom.kernels.cuda.runtime.prepared_cell import Places

Maybe = Tensor | None
Results: TypeAlias = "tuple[tuple[Tensor, ...], GatedSaved | None]"  # the outputs, the last states, and what is saved
FORMS_KEPT = 256  # forms of calls whose scans a process keeps: only the arguments of launches, no tensors


class GatedWeights(NamedTuple):
    """The weights of a cell, or values in their places; None for those that it lacks.

    With heads they have one more dimension, the first. `vectors` are elementwise weights of a compiled cell.
    """

    weight_hh: Any
    bias_hh: Any = None
    weight_ih: Any = None  # None if the input is projected
    bias_ih: Any = None
    scale_ih: Any = None
    scale_hh: Any = None
    scale_c: Any = None
    bias_c: Any = None
    vectors: Any = None

    @classmethod
    def of(cls, named: dict[str, Any]) -> GatedWeights:
        """Return the weights of these names; the others are None."""
        return cls(*map(named.get, cls._fields))


@dataclass(frozen=True)
class GatedForm:
    """The form of a call.

    Attributes:
        setting: The cell and the options of the call.
        layout: The layout of its rows, steps and units.
        device: The device.
        is_projected: Whether the input is the result of `cell.project`, which the kernels must not overwrite.
    """

    setting: GatedSetting
    layout: Layout
    device: torch.device
    is_projected: bool = False


class GatedSaved(NamedTuple):
    """What a backward pass needs besides the call.

    Attributes:
        projected: The projected input (*lead, gates * H), to which some gates have added their product with the state
            (`GatedSetting.kept`).
        paths: The states after all steps; with `Layout.time_first` state 0 before them, too.
        first: The first states in float32, (rows, H).
        kept: The products of the other gates.
        centred: With layer normalisation, the centred weights.
        product: The products of the input before their normalisation, (*order, gates * H).
        normed: What the normalisation of the input saved.
        spread: What the normalisations of the steps saved.
        copies: The weights in the type of the kernels, if they were cast.
        places: Where the forward pass read the weights.
    """

    projected: Tensor
    paths: tuple[Maybe, ...]
    first: tuple[Tensor, ...]
    kept: Maybe
    centred: Maybe
    product: Maybe
    normed: Maybe
    spread: Maybe
    copies: tuple[Maybe, ...]
    places: Places | None = None


@lru_cache(FORMS_KEPT)
def prepare(form: GatedForm) -> GatedScan:
    """Return the scan of calls of one form."""
    return GatedScan(form)


class GatedScan:
    """The passes of a gated cell over inputs of one form; it holds no tensors."""

    def __init__(self, form: GatedForm) -> None:
        self.form, self.layout, self.device = form, form.layout, form.device
        setting, rows = form.setting, form.layout.rows
        # the sums of products would be written into the caller's input
        takes_kept = not form.is_projected or setting.kind.norm
        self.setting = choose_kept(setting, rows, form.device) if takes_kept else setting
        self.kind, self.dtype = setting.kind, setting.dtype
        self.forward_code = find_code(self.setting, "forward", rows, form.device)
        self.head_rows = form.layout.head_rows if form.layout.heads > 1 else 0
        numbers = {"B": rows, "T": form.layout.T, "time_first": int(form.layout.time_first)}
        self.arguments: Any = self.forward_code.arguments
        self.filled = bytes(self.forward_code.pack(numbers | {"head_rows": self.head_rows}))

    def make_start(self) -> tuple[Tensor, ...]:
        """Return the states before the first step: zeros."""
        zeros = torch.zeros(self.layout.rows, self.layout.hidden, dtype=torch.float32, device=self.device)
        return (zeros,) * self.kind.states

    def run_forward(self, call: Call, start: tuple[Tensor, ...] | None = None) -> Results:
        """Run the forward pass with autocast disabled.

        Args:
            call: The tensors of the call; the weights as in `GatedWeights`.
            start: The first states in the kernels' form, for a call that has none.
        """
        H, kind, layout, train = self.layout.hidden, self.kind, self.layout, call.train
        given = GatedWeights(*call.weights)
        copies = () if given.weight_hh.dtype == self.dtype else tuple(cast_weights(given, self.dtype))
        own = self._pad_weights(GatedWeights(*copies) if copies else given)
        padding = None if call.lengths is None else Padding(call.lengths, layout)
        u, product, normed = self._project(call.x.to(self.dtype), own, padding, train)
        spread = new_empty(u, *layout.lead, kind.spread, dtype=torch.float32) if train and kind.spread else None
        centred = centre_weights(own.weight_hh.reshape(-1, H), H) if kind.norm else None
        weight = arrange_weights(self.setting, own.weight_hh.reshape(-1, H, H) if centred is None else centred)
        first = tuple(layout.divide_state(s).float() for s in call.states) or start or self.make_start()
        # padding of the states is read by products and from the outputs
        whole = () if padding is None else (0, kind.output)
        paths = [
            (Tensor.new_zeros if i in whole else new_empty)(u, (*layout.lead, H))
            if train or i in (0, kind.output)
            else None
            for i in range(kind.states)
        ]
        seen = paths[0]
        if train and layout.time_first:  # the first state, too: products see all but the last
            seen = (new_empty if padding is None else Tensor.new_zeros)(u, (layout.T + 1, layout.B, H))
            seen[0], paths[0] = first[0], seen[1:]
        last = [empty_like(s) for s in first]
        arguments = self.arguments.from_buffer_copy(self.filled)
        arguments.x, arguments.weight = u.data_ptr(), weight.data_ptr()
        kept, arguments.keeps = None, int(train and self.setting.kept)
        if arguments.keeps and kind.gates > kind.summed:
            kept = new_empty(u, *layout.lead, (kind.gates - kind.summed) * H)
            arguments.u = kept.data_ptr()
        options = self._read_options(call, padding)
        values = options | {"spread": spread, "bias": own.bias_hh, "scale": own.scale_hh, "scale_c": own.scale_c}
        values |= {"bias_c": own.bias_c, "vectors": own.vectors}
        for name, t in values.items():
            if t is not None:
                setattr(arguments, name, t.data_ptr())
        for i, path in enumerate(paths):
            if path is not None:
                setattr(arguments, f"c_{i - 1}" if i else "y", path.data_ptr())
            setattr(arguments, f"first_{i}", first[i].data_ptr())
            setattr(arguments, f"last_{i}", last[i].data_ptr())
        self.forward_code.start(arguments, layout.rows, self.device)
        y = paths[kind.output]
        assert y is not None
        ends_in = [s.dtype for s in call.states] or [given.weight_hh.dtype] * kind.states
        ends = tuple(layout.join_state(s).to(dtype) for s, dtype in zip(last, ends_in, strict=True))
        y = layout.restore(layout.join(y[..., : layout.units]), padding)
        saved = (
            GatedSaved(u, (seen, *paths[1:]), first, kept, centred, product, normed, spread, copies) if train else None
        )
        return (y, *ends), saved

    def _project(
        self, x: Tensor, own: GatedWeights, padding: Padding | None, train: bool
    ) -> tuple[Tensor, Maybe, Maybe]:
        """Return the projected input, the products before their normalisation, and what the normalisation saved."""
        layout, inputs = self.layout, self.layout.take(x, padding)
        if self.form.is_projected:
            return layout.divide(inputs).contiguous(), None, None
        weight = own.weight_ih.reshape(-1, inputs.shape[-1])
        if not self.kind.norm:
            return layout.divide(exact.linear(inputs, weight, _flatten(own.bias_ih))), None, None
        product = exact.linear(inputs, weight, None).view(*layout.order, -1)
        u, normed = normalise(product, own.scale_ih, own.bias_ih, self.kind.gates, train)
        return u, product, normed

    def _read_options(self, call: Call, padding: Padding | None) -> dict[str, Any]:
        """Return the inputs without gradients, and the states after a reset, by the names of the kernels' arguments."""
        layout = self.layout
        options: dict[str, Any] = {"lengths": None if padding is None else padding.lengths}
        options["mask"] = None if call.mask is None else layout.divide_state(call.mask.to(self.dtype)).contiguous()
        options["reset"] = None if call.reset is None else layout.repeat(call.reset).contiguous()
        for i, share in enumerate(call.keep):
            options[f"keep_{i}"] = layout.divide(layout.pad_units(share.to(self.dtype))).contiguous()
        for i, s in enumerate(call.starts):
            options[f"start_{i}"] = layout.divide_state(s).float().contiguous()
        return options

    def _pad_weights(self, own: GatedWeights) -> GatedWeights:
        """Return the weights, contiguous, with zeros for the units that only the kernels have."""
        more = self.layout.hidden - self.layout.units
        if not more:
            return own if are_contiguous(own) else GatedWeights(*(None if w is None else w.contiguous() for w in own))
        padded = (None if w is None else pad_weight(n, w, self.kind.gates, more) for n, w in own._asdict().items())
        return GatedWeights(*padded)

    def run_backward(self, call: Call, saved: GatedSaved, grads: Sequence[Maybe], needs: Gradients) -> Gradients:
        """Return the gradients; those of weights have their types, those of states are float32 in the layer's form.

        Args:
            call: The tensors of the call.
            saved: What the forward pass saved.
            grads: The gradients of the outputs and of the last states; None for zeros.
            needs: Which gradients are needed; those of the recurrence are always returned.
        """
        layout, kind = self.layout, self.kind
        own, theirs = GatedWeights(*(saved.copies or call.weights)), GatedWeights(*call.weights)
        wanted = GatedWeights(*needs.weights)
        padding = None if call.lengths is None else Padding(call.lengths, layout)
        splits: list[exact.SplitMatrix] = []
        found = self._go_back(call, saved, grads, self._pad_weights(own), padding, splits)
        du = self._cut_planes(found.x, kind.planes)
        steps, units = layout.B * layout.T, slice(layout.units)
        gradients: dict[str, Any] = found.weights
        recurrent, bias = gradients["weight_hh"], gradients["bias_hh"]
        recurrent = recurrent.view(layout.heads, kind.gates, layout.hidden, layout.hidden)[..., units, units]
        if bias is not None:
            bias = bias.view(layout.heads, kind.gates, layout.hidden)[..., units].reshape(own.bias_hh.shape)
        gradients |= {"weight_hh": recurrent.reshape(own.weight_hh.shape), "bias_hh": bias}
        if self.form.is_projected:
            dx: Maybe = layout.restore(du, padding)
        else:
            if kind.norm:
                assert saved.product is not None
                assert saved.normed is not None
                undone = undo_norm(du, saved.product, saved.normed, own.scale_ih, kind.gates)
                du, gradients["scale_ih"], gradients["bias_ih"] = undone
                du = du.view(steps, -1)
            elif wanted.bias_ih:
                gradients["bias_ih"] = self._sum_bias(du, bias).view_as(own.bias_ih)
            weight, inputs = own.weight_ih.reshape(du.shape[1], -1), layout.take(call.x.to(self.dtype), padding)
            wanted_both = bool(needs.x), bool(wanted.weight_ih)
            dx, dweight = exact.differentiate_linear(du, inputs, weight, wanted_both, *splits)
            gradients["weight_ih"] = None if dweight is None else dweight.view_as(own.weight_ih)
            dx = None if dx is None else layout.restore(dx, padding)
        named = GatedWeights.of(gradients)
        typed = (
            None if d is None or w is None else d.view(w.shape).to(w.dtype) for d, w in zip(named, theirs, strict=True)
        )
        states, starts = (
            tuple(layout.join_state(d).to(s.dtype).view(s.shape) for d, s in zip(part, given, strict=False))
            for part, given in ((found.states, call.states), (found.starts, call.starts))
        )
        return Gradients(None if dx is None else dx.to(call.x.dtype), states, tuple(typed), starts)

    def _cut_planes(self, du: Tensor, planes: int) -> Tensor:
        """Map a gradient of the projected input, (*lead, planes * hidden), to (B * T, planes of all heads)."""
        layout = self.layout
        if layout.hidden > layout.units:
            du = du.unflatten(-1, (planes, layout.hidden))[..., : layout.units].flatten(-2)
        return layout.join(du)

    def _sum_bias(self, du: Tensor, recurrent: Maybe) -> Tensor:
        """Return the gradient of bias_ih; for the first gates it is that of bias_hh."""
        if recurrent is None or not self.setting.kept or self.layout.heads > 1:
            return du.sum(0)
        same, recurrent = self.kind.summed * self.layout.units, recurrent.view(-1)
        if same == du.shape[1]:
            return recurrent.clone()
        return torch.cat([recurrent[:same], du[:, same:].sum(0)])

    def _go_back(
        self,
        call: Call,
        saved: GatedSaved,
        grads: Sequence[Maybe],
        own: GatedWeights,
        padding: Padding | None,
        splits: list[exact.SplitMatrix],
    ) -> Any:  # noqa: ANN401  # GatedGradients
        """Run the backward steps; `splits` gets the hi/lo split of the projected input's gradient, if there is one."""
        layout, (dy, *dlast), u = self.layout, grads, saved.projected
        values: dict[str, Any] = {"mask": None, "reset": None} | self._read_options(call, padding)
        values |= {"x": u, "weight": own.weight_hh.reshape(-1, layout.hidden), "bias": _flatten(own.bias_hh)}
        values |= {"scale": _flatten(own.scale_hh), "scale_c": own.scale_c, "bias_c": own.bias_c}
        values |= {"vectors": own.vectors, "spread": saved.spread, "u": saved.kept, "centred": saved.centred}
        values |= {f"c_{i}": path for i, path in enumerate(saved.paths[1:])}
        values |= {f"first_{i}": s for i, s in enumerate(saved.first)}
        values["y"] = saved.paths[0]
        if layout.time_first and saved.paths[0] is not None:
            values |= {"y": saved.paths[0][1:], "states": saved.paths[0], "time_first": 1}
        if dy is None:
            values["dy"] = u.new_zeros(*layout.lead, layout.hidden)
        else:
            rows = layout.pad_units(layout.take(dy.to(u.dtype), padding))
            values["dy"] = layout.divide(rows).contiguous()
        ends = [None if d is None else layout.divide_state(d) for d in dlast]
        is_cut = layout.hidden > layout.units
        return go_back(self.setting, values, ends, layout.heads, None if is_cut else splits)

    def differentiate(self, call: Call, grads: Sequence[Maybe], bind: Callable[[dict[str, Tensor]], Cell]) -> Gradients:
        """Return the gradients in a form that can be differentiated again, computed by the loop.

        Args:
            call: The tensors of the call.
            grads: The gradients of the outputs and of the last states; None for zeros.
            bind: Returns the cell with these weights.
        """
        layout, dtype = self.layout, self.dtype
        tensors = call.tensors

        def arrange(t: Tensor) -> Tensor:  # (B, T, ..) in the cell's order of steps
            t = t.unsqueeze(0) if t.dim() == 2 else t.transpose(0, 1) if layout.is_time_first else t
            return reverse_steps(t, call.lengths) if layout.is_backwards else t

        with torch.enable_grad(), torch.autocast(self.device.type, enabled=False):
            typed = call.name([None if t is None else t.to(dtype) for t in tensors])
            x, named = arrange(typed.x), GatedWeights(*typed.weights)._asdict()
            view = bind({name: w for name, w in named.items() if w is not None})
            if self.form.is_projected:
                view.project = lambda x: x  # type: ignore[method-assign]
            states = tuple(s.reshape(layout.B, -1) for s in typed.states) or view.initial_state(x)
            if call.starts:
                view.start = lambda x: tuple(typed.starts)  # type: ignore[method-assign]  # noqa: ARG005
            mask = None if call.mask is None else call.mask.to(dtype)
            keep = tuple(share.to(dtype) for share in call.keep)
            job = ScanJob(zero_padding(x, call.lengths), states, call.lengths, call.reset, None, mask, keep)
            y, last = loop.run(view, job)
            dy = None if grads[0] is None else arrange(grads[0]).to(y.dtype)
            ends = [None if d is None else d.reshape(s.shape).to(s.dtype) for d, s in zip(grads[1:], last, strict=True)]
        return call.name(fused.differentiate(tensors, [y, *last], [dy, *ends], True, True))


class BoundScan(NamedTuple):
    """A scan with the cell of a call: a `Prepared` (`../../autograd.py`)."""

    scan: GatedScan
    bind: Callable[[dict[str, Tensor]], Cell]

    def make_start(self) -> tuple[Tensor, ...]:
        return self.scan.make_start()

    def forward(self, call: Call, start: tuple[Tensor, ...] | None = None) -> Results:
        with _pause_autocast(self.scan.device):
            outputs, saved = self.scan.run_forward(call, start)
        return outputs, None if saved is None else saved._replace(places=Places.of(call.weights))

    def backward(self, call: Call, saved: GatedSaved, grads: Sequence[Maybe], needs: Gradients) -> Gradients:
        if not saved.copies and saved.places is not None:
            saved.places.find_weights(call, saved.projected.dtype)
        with _pause_autocast(self.scan.device):
            return self.scan.run_backward(call, saved, grads, needs)

    def differentiate(self, call: Call, grads: Sequence[Maybe]) -> Gradients:
        return self.scan.differentiate(call, grads, self.bind)


def run_job(
    setting: GatedSetting,
    job: ScanJob,
    weights: GatedWeights,
    bind: Callable[[dict[str, Tensor]], Cell],
    starts: Sequence[Tensor],
    heads: int = 1,
    units: int = 0,
    is_projected: bool = False,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run a job.

    Args:
        setting: The cell and the options of the job.
        job: Its input, projected or not.
        weights: Of the cell.
        bind: Returns the cell with these weights; the loop runs it for second derivatives.
        starts: The states after a reset; empty without resets.
        heads: Number of heads.
        units: Of a head; those of the setting if omitted.
        is_projected: Whether the input is what `cell.project` returns.

    Returns:
        The outputs (B, T, H), and the last states in the types of the first.
    """
    layout = Layout(job.x.shape, True, heads, units or setting.hidden, setting.hidden)
    scan = prepare(GatedForm(setting, layout, job.x.device, is_projected))
    call = make_call(job, job.x, job.state, weights, starts)
    y, *last = run_prepared(BoundScan(scan, bind), call)
    return y, tuple(s.squeeze(0) for s in last)


def cast_weights(own: GatedWeights, dtype: torch.dtype) -> GatedWeights:
    """Return copies of the weights in another type, in one launch."""
    present = [w.detach() for w in own if w is not None]
    flat = new_empty(present[0], sum(map(torch.numel, present)), dtype=dtype)
    copies = torch._C._nn.unflatten_dense_tensors(flat, present)
    torch._foreach_copy_(copies, present)
    each = iter(copies)
    return GatedWeights(*(None if w is None else next(each) for w in own))


def pad_weight(name: str, w: Tensor, gates: int, more: int) -> Tensor:
    """Return a weight padded with zeros for `more` units, whose state a GRU then halves at every step.

    An LSTM halves their memory. So they stay 0 and do not affect other units.
    """
    columns = (0, more if name == "weight_hh" else 0) if w.dim() == 2 else ()
    return F.pad(w.unflatten(0, (gates, -1)), (*columns, 0, more)).flatten(0, 1)


def _pause_autocast(device: torch.device) -> AbstractContextManager[Any]:
    """Disable autocast, which would cast and normalise by its own rules."""
    if autocast_dtype(device.type) is None:
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


def _flatten(bias: Maybe) -> Maybe:
    return None if bias is None else bias.reshape(-1)
