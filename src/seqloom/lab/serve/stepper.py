"""One step of many streams in one call of the model, with the state of each stream kept between calls.

After t steps, the result of a stream matches the prediction for a row of these t steps.

The states of all streams lie in one set of tensors, a slot for each stream; a call gathers the slots of its streams,
runs the layer and writes them back. What the readout needs from earlier steps is part of the state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.coders.series import SeriesCoder, check_range
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.task import START, Batch, Task
from seqloom.lab.kinds.for_task import ForTask, join_attributes
from seqloom.lab.kinds.forms import describe_kind
from seqloom.lab.kinds.layers import list_states
from seqloom.lab.kinds.registry import kind_of
from seqloom.lab.serve.row_format import WIDE
from seqloom.lab.serve.running_readout import RunningReadout
from seqloom.lab.training.predict import NOT_FINITE, encode_rows, is_finite, predict_pieces
from seqloom.lab.web.problems import RequestError
from seqloom.models.classify import Classify

FIRST_SLOTS = 64  # initial rows of the tensors of states, which double when they are full

Result = dict[str, Any]


class Slot:
    """The state of one stream."""

    def __init__(self) -> None:
        self.steps = 0  # since the start or the last reset
        self.index = -1  # row in the tensors of a RecurrentStepper
        self.state: Any = None  # the state, if it has no fixed size


class StreamStepper:
    """Base class: runs steps of streams; `open`, `reset` and `close` manage their states."""

    reads = 1  # time steps that the model reads for each step

    def open(self) -> Slot:
        return Slot()

    def reset(self, slot: Slot) -> None:
        slot.steps, slot.state = 0, None

    def close(self, slot: Slot) -> None:
        slot.state = None

    def run(self, jobs: Sequence[tuple[Slot, list[Any]]], probabilities: bool) -> list[list[Result]]:
        """Run one step for each of several distinct streams, and return the results.

        Raises:
            RequestError: 422 if a step cannot be read; then no stream has advanced.
        """
        raise NotImplementedError


def build_stepper(task: Task, model: ForTask, max_steps: int) -> StreamStepper | str:
    """Return the stepper of a model, or the reason why it has no streams."""
    if isinstance(task, WindowsTask):
        if task.input.known:  # type: ignore[union-attr]
            return "its forecast needs the future of some columns, which a step does not have"
        return WindowStepper(task, model)
    inner: Any = model.model if model.streams else None
    layer = getattr(inner, "layer", None)
    if layer is None:
        return (
            f"a model that was trained to {describe_kind(task.kind)} reads the whole row"
            if inner is None
            else "it is a baseline"
        )
    if not getattr(layer, "causal", True) or getattr(layer, "bidirectional", False):
        return "its layer reads both ways and needs the whole row"
    if getattr(inner, "crf", None) is not None:
        return "its CRF chooses the tags of the whole row together"
    if model.timed:
        return "its steps have irregular time stamps"
    return LayerStepper(task, model, max_steps)


class WindowStepper(StreamStepper):
    """A forecast after each step, from the last steps of the stream."""

    def __init__(self, task: WindowsTask, model: ForTask) -> None:
        self.task, self.model, self.reads = task, model, task.lookback

    def run(self, jobs: Sequence[tuple[Slot, list[Any]]], probabilities: bool) -> list[list[Result]]:
        rows, windows, counts = [], [], []
        names = self.task.encoding.x.columns
        for slot, steps in jobs:
            window = deque(slot.state or (), maxlen=self.task.lookback)
            for step in steps:
                window.append(step)
                rows.append({name: [one[name] for one in window] for name in names})
            windows.append(window)
            counts.append(len(steps))
        try:
            results = iter(list(predict_pieces(self.model, self.task, [rows], probabilities)) if rows else [])
        except UserError as error:
            raise RequestError(422, str(error)) from None
        for (slot, _), window, n in zip(jobs, windows, counts, strict=True):
            slot.state, slot.steps = window, slot.steps + n
        return [[next(results) for _ in range(n)] for n in counts]


class LayerStepper(StreamStepper):
    """A causal layer whose state is kept."""

    def __init__(self, task: Task, model: ForTask, max_steps: int) -> None:
        self.task, self.model, self.max_steps = task, model, max_steps
        self.layer: Any = model.model.layer
        self.readout = RunningReadout(model.model.readout if isinstance(model.model, Classify) else None)
        self.device = next(model.parameters()).device
        self.dims, self.is_tensor = _probe_state(self.layer, self.device)
        self.pool: list[Tensor] = []  # the state of the layer and of the readout; the first call makes them
        self.slots = 0  # rows of the tensors in `pool`
        self.free: deque[int] = deque()  # another thread may append
        self.has_ends = kind_of(task).continues_text and not task.lookback

    def close(self, slot: Slot) -> None:
        slot.state = None
        if slot.index >= 0:
            self.free.append(slot.index)
            slot.index = -1

    def _assign_index(self, slot: Slot) -> None:
        """Assign a row of the pool to a stream; the pool doubles if it is full."""
        if not self.free:
            before, self.slots = self.slots, max(FIRST_SLOTS, 2 * self.slots)
            self.free.extend(range(before, self.slots))
            self.pool = [_lengthen(tensor, self._dim(i), self.slots) for i, tensor in enumerate(self.pool)]
        slot.index = self.free.popleft()

    def _dim(self, i: int) -> int:
        """Return the dimension of the rows of a tensor in the pool; those of the readout follow the layer's."""
        assert self.dims is not None
        return self.dims[i] if i < len(self.dims) else 0

    @torch.no_grad()
    def run(self, jobs: Sequence[tuple[Slot, list[Any]]], probabilities: bool) -> list[list[Result]]:
        batch = self._encode([steps for _, steps in jobs])
        if self.dims is None:
            return self._run_each(jobs, batch, probabilities)
        results: list[list[Result]] = [[] for _ in jobs]
        counts = batch.lengths.tolist()
        starts = [n for n, (slot, _) in enumerate(jobs) if slot.steps == 0 and counts[n]]
        others = [n for n, (slot, _) in enumerate(jobs) if slot.steps and counts[n]]
        for numbers in (starts, others):
            if not numbers:
                continue
            slots = [jobs[n][0] for n in numbers]
            for slot in slots:
                if slot.index < 0:
                    self._assign_index(slot)
            part = batch if len(numbers) == len(jobs) else batch.select(torch.tensor(numbers))
            lists, state = self._advance(part, self._gather(slots) if numbers is others else None, probabilities)
            self._scatter(slots, state)
            for n, items in zip(numbers, lists, strict=True):
                results[n] = items
                jobs[n][0].steps += counts[n]
        return results

    def _run_each(
        self, jobs: Sequence[tuple[Slot, list[Any]]], batch: Batch, probabilities: bool
    ) -> list[list[Result]]:
        """Run streams one by one: states that grow have different sizes."""
        results: list[list[Result]] = []
        counts = batch.lengths.tolist()
        if any(slot.steps + n > self.max_steps for (slot, _), n in zip(jobs, counts, strict=True)):  # before one moves
            raise RequestError(413, f"the stream would have more than {self.max_steps:,} steps; reset it first")
        for number, (slot, _) in enumerate(jobs):
            n = counts[number]
            if n == 0:
                results.append([])
                continue
            part = batch.select(torch.tensor([number]))
            lists, slot.state = self._advance(part, slot.state, probabilities)
            slot.steps += n
            results.append(lists[0])
        return results

    def _encode(self, steps: list[list[Any]]) -> Batch:
        """Encode the steps of each stream as a row."""
        encoding = self.task.encoding
        try:
            if encoding is not None and isinstance(encoding.x, SeriesCoder) and encoding.attributes is None:
                return _encode_numbers(encoding.x, steps)
            return encode_rows(self.task, [self._join(one) for one in steps])
        except UserError as error:
            raise RequestError(422, str(error)) from None

    def _join(self, rows: list[dict[str, Any]]) -> Any:  # noqa: ANN401  # a row
        """Return a row with these steps."""
        encoding = self.task.encoding
        if encoding is None:
            return [row["input"] for row in rows]
        column = getattr(encoding.x, "column", None) or encoding.x.columns[0]
        if isinstance(encoding.x, SeriesCoder):
            joined: dict[str, Any] = {name: [row[name] for row in rows] for name in encoding.x.columns}
        elif getattr(encoding.x, "unit", "tokens") != "tokens":  # a text
            gap = "" if encoding.x.unit in ("characters", "bytes") else " "
            joined = {column: gap.join(row[column] or "" for row in rows)}
        else:
            joined = {column: [row[column] for row in rows]}
        names = encoding.attributes.columns if encoding.attributes is not None else ()
        return joined | {name: rows[-1][name] for name in names}

    def _advance(
        self, batch: Batch, state: list[Tensor] | None, probabilities: bool
    ) -> tuple[list[list[Result]], list[Tensor]]:
        """Run the layer over the steps of a batch and return the results of each step, and the state."""
        x = batch.x.to(self.device)
        if self.model.attributed and batch.attributes is not None:
            x = join_attributes(x, batch.attributes.to(self.device))
        starts = self.has_ends and state is None
        if starts:
            x = torch.cat([torch.full_like(x[:, :1], START), x], 1)
        vectors = self._embed(x, batch)
        inner, extra = self._split_state(state)
        if vectors.shape[1] == 1:  # every row has one step, as rows without any are left out
            y, inner = self.layer.step(vectors[:, 0], inner)
            summary, after = self.readout.read_step(y, extra)
            results = [[result] for result in self._build(self.model.model.head(summary), probabilities)]
            return results, [*list_states(inner), *after]
        lengths = batch.lengths.to(self.device)
        y, inner = self.layer(vectors, inner, lengths=lengths + starts)
        summary, after = self.readout.read_steps(y[:, int(starts) :], lengths, extra)
        results = self._choose(self.model.model.head(summary), lengths, probabilities)
        return results, [*list_states(inner), *after]

    def _split_state(self, state: list[Tensor] | None) -> tuple[Any, list[Tensor] | None]:
        """Return the state of the layer, in the form that it takes, and that of the readout."""
        if state is None:
            return None, None
        count = len(state) - self.readout.states
        return state[0] if self.is_tensor else tuple(state[:count]), state[count:]

    def _embed(self, x: Tensor, batch: Batch) -> Tensor:
        inner = self.model.model
        vectors: Tensor = x if getattr(inner, "embed", None) is None else inner.embed(x)
        if getattr(inner, "reads_letters", False):
            assert batch.letters is not None
            vectors = torch.cat([vectors, inner.characters(batch.letters.to(self.device))], -1)
        return vectors

    def _choose(self, scores: Tensor, lengths: Tensor, probabilities: bool) -> list[list[Result]]:
        """Return the results of scores (B, T, K), for each real step of each row."""
        T, ends = scores.shape[1], lengths.tolist()
        real = (torch.arange(T, device=scores.device) < lengths.unsqueeze(1)).flatten()
        flat = scores.flatten(0, 1)[real]  # (steps, K)
        results = iter(self._build(flat, probabilities))
        return [[next(results) for _ in range(n)] for n in ends]

    def _build(self, scores: Tensor, probabilities: bool) -> list[Result]:
        return _check(kind_of(self.task).build_step_results(self.task, self.model, scores, probabilities), scores)

    def _gather(self, slots: Sequence[Slot]) -> list[Tensor]:
        index = torch.tensor([slot.index for slot in slots], device=self.device)
        return [tensor.index_select(self._dim(i), index) for i, tensor in enumerate(self.pool)]

    def _scatter(self, slots: Sequence[Slot], state: list[Tensor]) -> None:
        index = torch.tensor([slot.index for slot in slots], device=self.device)
        if not self.pool:
            self.pool = [_lengthen(tensor, self._dim(i), self.slots) for i, tensor in enumerate(state)]
        for i, (tensor, new) in enumerate(zip(self.pool, state, strict=True)):
            tensor.index_copy_(self._dim(i), index, new)


def _encode_numbers(coder: SeriesCoder, steps: list[list[dict[str, Any]]]) -> Batch:
    """Encode steps of numbers as `coder` does, without a frame, which takes ten times as long for single steps."""
    names = (WIDE,) if coder.wide else coder.columns
    flat = [row[name] for some in steps for row in some for name in names]
    if len(names) == 1 and coder.width > 1:
        flat = [value for step in flat for value in step]
    values = np.array([np.nan if v is None else v for v in flat], dtype=np.float64)
    values = values.reshape(-1, max(coder.width, 1) if len(names) == 1 else len(names))
    space = names if len(names) == values.shape[1] else tuple(map(str, range(values.shape[1])))
    encoded = torch.from_numpy(coder.scale.encode(check_range(values, space)))
    lengths = [len(some) for some in steps]
    if len(encoded) == len(steps):
        x = encoded.unsqueeze(1)
    else:
        x = torch.nn.utils.rnn.pad_sequence(list(encoded.split(lengths)), batch_first=True)
    return Batch(x, torch.tensor(lengths), torch.arange(len(steps)))


def _check(results: list[Result], scores: Tensor) -> list[Result]:
    """Replace results that are not finite with an error, as `predict` does."""
    if bool(torch.isfinite(scores).all()):
        return results
    return [one if is_finite(one) else dict.fromkeys(one) | {"error": NOT_FINITE} for one in results]


def _lengthen(tensor: Tensor, dim: int, size: int) -> Tensor:
    """Pad a tensor with zeros to `size` rows in a dimension."""
    shape = list(tensor.shape)
    shape[dim] = size
    longer = tensor.new_zeros(shape)
    longer.narrow(dim, 0, min(size, tensor.shape[dim])).copy_(tensor.narrow(dim, 0, min(size, tensor.shape[dim])))
    return longer


@torch.no_grad()
def _probe_state(layer: Any, device: torch.device) -> tuple[list[int] | None, bool]:  # noqa: ANN401  # any layer
    """Inspect a layer's state.

    Returns:
        The dimension of the rows in each tensor, None if the state has no fixed size; whether it is a single tensor
        instead of a tuple.
    """
    small, large = (layer(torch.zeros(rows, T, layer.input_size, device=device))[1] for rows, T in ((2, 1), (3, 4)))
    dims = []
    for a, b in zip(list_states(small), list_states(large), strict=True):
        changed = [d for d in range(a.dim()) if a.shape[d] != b.shape[d]] if a.dim() == b.dim() else []
        if len(changed) != 1 or (a.shape[changed[0]], b.shape[changed[0]]) != (2, 3):
            return None, isinstance(small, Tensor)
        dims.append(changed[0])
    return dims, isinstance(small, Tensor)
