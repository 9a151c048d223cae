"""One step of training: gradients of a batch, split into parts if memory is short, and the update.

Also: the state of a `Stepper` for checkpoints, and the search for the first number that is not finite.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.core.plurals import count
from seqloom.lab import console
from seqloom.lab.data.task import Batch
from seqloom.lab.files.checkpoint import load_weights, weights_of
from seqloom.lab.kinds.for_task import ForTask
from seqloom.lab.kinds.settings import TrainSettings
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.optimiser import (
    Average,
    CheckpointAverage,
    build_optimiser,
    optimiser_state,
    restore_optimiser,
)
from seqloom.lab.training.update import Update

NAMED_ROWS = 8  # rows of a batch that an error names
MAX_SKIPPED_IN_A_ROW = 20  # in studies, a training with more steps in a row without a finite gradient did not recover
NOT_REPEATED = "nothing that happens again"
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Stepper:
    """The model, its optimiser and everything that changes from step to step."""

    def __init__(self, model: ForTask, settings: TrainSettings, processes: ProcessGroup) -> None:
        self.model, self.settings, self.processes = model, settings, processes
        self.weights = list(model.parameters())
        self.device = self.weights[0].device
        if settings.precision == "fp16" and self.device.type != "cuda":
            raise UserError("precision='fp16' needs a GPU; use bf16 or fp32 on a CPU")
        self.optimiser = build_optimiser(model, settings)
        self.average = Average(model, settings.ema) if settings.ema else None
        self.checkpoints = CheckpointAverage(model) if settings.average_checkpoints else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.precision == "fp16")
        self.update = Update(self.weights, self.optimiser, settings.clip or math.inf, self.scaler)
        self.parts = 1  # into which each batch is split to save memory
        self.carried: dict[int, Any] = {}  # part -> its last state
        self.skipped = self.skipped_in_a_row = 0  # steps whose gradient was not finite
        if settings.compile:
            model.compile(dynamic=True)
        self.wrapped = processes.wrap(model, self.device)

    def weights_to_predict(self) -> dict[str, Tensor]:
        """Return the weights that predictions use: the moving average, if there is one, or the model's."""
        return weights_of(self.model) if self.average is None else self.average.weights

    def autocast(self) -> AbstractContextManager[object]:
        dtype = PRECISIONS.get(self.settings.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def step(self, batches: Sequence[Batch], number: int, lr: float) -> tuple[float, int]:
        """Take one step on the batches.

        Args:
            batches: The batches whose gradients are summed.
            number: The number of the step, which seeds its noise.
            lr: The learning rate.

        Returns:
            The sum of the losses in this process, and the number of targets in all processes.

        Raises:
            FloatingPointError: If the loss is not finite, or the gradient in many steps in a row.
            MemoryError: If a single row does not fit into memory.
        """
        self.update.set_rate(lr)
        while True:
            seed_step(self.settings.seed, number, self.processes.rank)
            try:
                loss, count = self._compute_gradients(batches)
                break
            except RuntimeError as error:
                if not _is_out_of_memory(error):
                    raise
                self._split_further(batches, error)
            if self.device.type == "cuda":  # the error no longer holds its tensors
                torch.cuda.empty_cache()
        finite = bool(self.update.clip_gradients())
        whole = float(loss)
        if finite or self._is_scaled_too_far(whole):
            self.skipped_in_a_row = 0
            self.update.apply(True)
            if self.average is not None:
                self.average.update(self.model)
        else:
            self._skip(whole, batches, number)
        self.update.discard_gradients()
        return whole, count

    def _compute_gradients(self, batches: Sequence[Batch]) -> tuple[Tensor, int]:
        rank, n = self.processes.rank, self.processes.count
        count = sum(int(self.model.count_targets(batch).sum()) for batch in batches)
        pieces = [(k, _shard(_shard(batch, rank, n), k, self.parts)) for batch in batches for k in range(self.parts)]
        pieces = [(k, piece) for k, piece in pieces if len(piece)] if n == 1 else pieces
        losses = []
        for i, (k, piece) in enumerate(pieces):
            last = i == len(pieces) - 1
            with nullcontext() if last or n == 1 else self.wrapped.no_sync():  # type: ignore[operator]
                loss = self._compute_loss(k, piece, batches[0])
                # gradients are averaged over processes and must become the mean over all targets
                self.scaler.scale(loss).backward(torch.full_like(loss, n / max(1, count)))
            losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(), count

    def _compute_loss(self, k: int, piece: Batch, stand_in: Batch) -> Tensor:
        empty = not len(piece)
        # every process must take part, even without rows
        piece = stand_in.shard(0, len(stand_in)) if empty else piece
        if piece.x.device != self.device:
            piece = piece.to(self.device, non_blocking=True)
        with self.autocast():
            state = self.carried.get(k) if piece.carry and not empty else None
            loss, self.carried[k] = self.wrapped(piece, state)
        return loss * 0.0 if empty else loss

    def _split_further(self, batches: Sequence[Batch], error: Exception) -> None:
        self.update.discard_gradients()
        largest = max(len(batch) for batch in batches)
        if self.processes.count > 1 or self.parts >= largest:
            longest = max(batch.x.shape[1] for batch in batches)
            raise MemoryError(
                f"a batch of {count(-(-largest // self.parts), 'row')} of {count(longest, 'step')} does not fit "
                "into memory; use smaller batches, shorter sequences or a smaller model"
            ) from error
        self.parts *= 2
        self.carried = {}
        console.note(
            f"a batch of {largest} rows does not fit into memory; from now on it is split into {self.parts} parts"
        )

    def _is_scaled_too_far(self, loss: float) -> bool:
        """Return whether a gradient that is not finite comes from the scale of float16."""
        return self.scaler.is_enabled() and math.isfinite(loss) and self.scaler.get_scale() > 1

    def _skip(self, loss: float, batches: Sequence[Batch], number: int) -> None:
        """Count a step whose gradient is not finite, and leave the weights as they are.

        Raises:
            FloatingPointError: If the loss is not finite, or if the training does not recover.
        """
        self.skipped += 1
        self.skipped_in_a_row += 1
        # every process has the same gradient and reaches this point
        losses = self.processes.sum(torch.tensor(float(not math.isfinite(loss)), device=self.device))
        what = "loss" if float(losses) else "gradient"
        if what == "gradient" and self.skipped_in_a_row < MAX_SKIPPED_IN_A_ROW:
            if self.skipped == 1 and self.processes.is_first:
                console.note(f"the gradient is not finite in step {number + 1}: such steps are skipped and counted")
            return
        for batch in batches:
            place = batch.shard(self.processes.rank, self.processes.count).to(self.device)

            def again(place: Batch = place) -> Tensor:
                seed_step(self.settings.seed, number, self.processes.rank)
                with self.autocast():
                    return self.model(place)[0]

            cause = find_not_finite(self.model, again, place.x)
            if cause != NOT_REPEATED or batch is batches[-1]:
                break
        times = "" if what == "loss" else f" and the {self.skipped_in_a_row - 1} steps before"
        lr = self.optimiser.param_groups[0]["lr"]
        raise FloatingPointError(
            f"the {what} is not finite in step {number + 1}{times}, in the batch of rows {_format_rows(batch.rows)}; "
            f"first not finite: {cause}. The learning rate was {lr:.2g}, clip {self.settings.clip}: lower them, "
            "or check these rows"
        )


def seed_step(*key: int) -> None:
    """Seed torch from the number of a step, so that a resumed training draws the same noise."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    number = int.from_bytes(digest[:4], "little")
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)


def _shard(batch: Batch, k: int, n: int) -> Batch:
    return batch if n == 1 else batch.shard(k, n)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def stepper_facts(stepper: Stepper) -> dict[str, Any]:
    """Return the JSON-serialisable state of a stepper."""
    averaged = stepper.average.steps if stepper.average else 0
    facts = {"skipped": stepper.skipped, "skipped_in_a_row": stepper.skipped_in_a_row}
    facts |= {"averaged_checkpoints": stepper.checkpoints.count} if stepper.checkpoints else {}
    return {"parts": stepper.parts, "scaler": stepper.scaler.state_dict(), "averaged": averaged} | facts


def stepper_tensors(stepper: Stepper, carried: Sequence[dict[int, Any]]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the weights that predictions use, and all other tensors of the training.

    Args:
        stepper: The stepper of the first process.
        carried: The carried states of each process.
    """
    state = optimiser_state(stepper.optimiser, stepper.model)
    training = {f"optimiser/{key}": tensor for key, tensor in state.items()}
    if stepper.average:
        training |= {f"weights/{name}": w for name, w in weights_of(stepper.model).items()}
    if stepper.checkpoints and stepper.checkpoints.count:
        training |= {f"checkpoints/{name}": w for name, w in stepper.checkpoints.weights.items()}
    for rank, states in enumerate(carried):
        training |= {f"carried/{rank}/{key}": tensor for key, tensor in _flatten_states(states).items()}
    return stepper.weights_to_predict(), training


def restore_stepper(
    stepper: Stepper, facts: dict[str, Any], weights: dict[str, Tensor], training: dict[str, Tensor]
) -> None:
    """Restore what `stepper_facts` and `stepper_tensors` returned."""
    stepper.parts = facts["parts"]
    stepper.skipped, stepper.skipped_in_a_row = facts.get("skipped", 0), facts.get("skipped_in_a_row", 0)
    stepper.scaler.load_state_dict(facts["scaler"])
    if stepper.checkpoints:
        stepper.checkpoints.count = facts.get("averaged_checkpoints", 0)
        for name, w in _select_prefix("checkpoints/", training).items():
            stepper.checkpoints.weights[name].copy_(w)
    if stepper.average:
        stepper.average.steps = facts["averaged"]
        for name, w in weights.items():
            stepper.average.weights[name].copy_(w)
        weights = _select_prefix("weights/", training)
    load_weights(stepper.model, weights)
    restore_optimiser(stepper.optimiser, stepper.model, _select_prefix("optimiser/", training))
    stepper.carried = _unflatten_states(_select_prefix(f"carried/{stepper.processes.rank}/", training), stepper.device)


def _select_prefix(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): t for key, t in tensors.items() if key.startswith(prefix)}


def _flatten_states(states: dict[int, Any]) -> dict[str, Tensor]:
    """Name the tensors of states "part/number"; a state that is one tensor has no number."""
    named = {}
    for part, state in states.items():
        if isinstance(state, Tensor):
            named[f"{part}/"] = state
        else:
            named |= {f"{part}/{i}": tensor for i, tensor in enumerate(state or ())}
    return named


def _unflatten_states(named: dict[str, Tensor], device: torch.device) -> dict[int, Any]:
    """Invert `_flatten_states`; a file does not keep the order of its tensors."""
    states: dict[int, Any] = {}
    for key, tensor in sorted(named.items(), key=lambda item: int(item[0].partition("/")[2] or 0)):
        part, _, number = key.partition("/")
        here = tensor.to(device)
        states[int(part)] = (*states.get(int(part), ()), here) if number else here
    return states


def find_not_finite(model: nn.Module, again: Callable[[], Tensor], batch_x: Tensor) -> str:
    """Describe what was not finite first: a weight, the input, an output or a gradient; `again` recomputes the loss."""
    for name, p in model.named_parameters():
        if not _is_finite(p):
            return f"weight {name!r}"
    if batch_x.is_floating_point() and not _is_finite(batch_x):
        row = int((~batch_x.isfinite()).flatten(1).any(1).nonzero()[0])
        return f"the input, in row {row} of the batch"
    outputs: list[str] = []

    def watch(name: str, kind: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: object, output: object) -> None:
            if not all(_is_finite(t) for t in _list_tensors(output)):
                outputs.append(f"the output of {name!r} ({kind})")

        return hook

    with ExitStack() as stack:
        for name, module in model.named_modules():
            if name:
                stack.enter_context(module.register_forward_hook(watch(name, type(module).__name__)))
        model.zero_grad(set_to_none=True)
        loss = again()
        if not outputs and bool(loss.isfinite()):
            loss.backward()
    if outputs:
        return outputs[0]
    if not bool(loss.isfinite()):
        return "the loss itself"
    # gradients flow backwards: the last parameter of the model is the first to go wrong
    for name, p in reversed(list(model.named_parameters())):
        if p.grad is not None and not _is_finite(p.grad):
            return f"the gradient of {name!r}"
    return NOT_REPEATED


def _format_rows(numbers: Tensor) -> str:
    first = ", ".join(str(n) for n in numbers[:NAMED_ROWS].tolist())
    return first if len(numbers) <= NAMED_ROWS else f"{first} and {len(numbers) - NAMED_ROWS} more"


def _is_finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(torch.isfinite(tensor).all())


def _list_tensors(output: object) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output]
    return [t for part in output for t in _list_tensors(part)] if isinstance(output, tuple | list) else []
