"""One step of training: gradients of a batch, in as many parts as memory asks for, and the update."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from seqloom.core.errors import UserError
from seqloom.lab import console
from seqloom.lab.data.task import Batch
from seqloom.lab.training import finite
from seqloom.lab.training.distributed import ProcessGroup
from seqloom.lab.training.for_task import ForTask
from seqloom.lab.training.optimiser import Average, build_optimiser
from seqloom.lab.training.settings import TrainSettings

PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Stepper:
    """The model, its optimiser and all that changes from step to step."""

    def __init__(self, model: ForTask, settings: TrainSettings, processes: ProcessGroup) -> None:
        self.model, self.settings, self.processes = model, settings, processes
        self.weights = list(model.parameters())
        self.device = self.weights[0].device
        if settings.precision == "fp16" and self.device.type != "cuda":
            raise UserError("precision='fp16' needs a GPU; take bf16 or fp32 on a CPU")
        self.optimiser = build_optimiser(model, settings)
        self.average = Average(model, settings.ema) if settings.ema else None
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=settings.precision == "fp16")
        self.parts = 1  # in which each batch is taken, one after the other
        self.carried: dict[int, Any] = {}  # part -> the state it ended in
        if settings.compile:
            model.compile(dynamic=True)
        self.wrapped = processes.wrap(model, self.device)

    def autocast(self) -> Any:
        dtype = PRECISIONS.get(self.settings.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype)

    def step(self, batches: Sequence[Batch], number: int, lr: float) -> tuple[float, int]:
        """Train on all of these at once; the sum of their losses here and how many targets they all have."""
        for group in self.optimiser.param_groups:
            group["lr"] = lr
        while True:
            seed_step(self.settings.seed, number, self.processes.rank)
            try:
                loss, count = self._gradients(batches)
                break
            except RuntimeError as error:
                if not _memory(error):
                    raise
                self._halve(batches, error)
            if self.device.type == "cuda":  # now that the error lets go of its tensors
                torch.cuda.empty_cache()
        if self.scaler.is_enabled():
            self.scaler.unscale_(self.optimiser)
        norm = nn.utils.clip_grad_norm_(self.weights, self.settings.clip or torch.inf)
        whole = float(loss)
        self._check(float(norm), whole, batches, number)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.model)
        return whole, count

    def _gradients(self, batches: Sequence[Batch]) -> tuple[Tensor, int]:
        rank, n = self.processes.rank, self.processes.count
        count = sum(int(self.model.count_targets(batch).sum()) for batch in batches)
        pieces = [(k, _part(_part(batch, rank, n), k, self.parts)) for batch in batches for k in range(self.parts)]
        pieces = [(k, piece) for k, piece in pieces if len(piece)] if n == 1 else pieces
        losses = []
        for i, (k, piece) in enumerate(pieces):
            last = i == len(pieces) - 1
            with nullcontext() if last or n == 1 else self.wrapped.no_sync():  # type: ignore[operator]
                loss = self._loss(k, piece, batches[0])
                # the processes' gradients are averaged, and together must make the mean over all targets
                self.scaler.scale(loss).backward(torch.full_like(loss, n / max(1, count)))
            losses.append(loss.detach())
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum(), count

    def _loss(self, k: int, piece: Batch, stand_in: Batch) -> Tensor:
        empty = not len(piece)
        # every process has to take part, one without rows too
        piece = stand_in.shard(0, len(stand_in)) if empty else piece
        if piece.x.device != self.device:
            piece = piece.to(self.device, non_blocking=True)
        with self.autocast():
            state = self.carried.get(k) if piece.carry and not empty else None
            loss, self.carried[k] = self.wrapped(piece, state)
        return loss * 0.0 if empty else loss

    def _halve(self, batches: Sequence[Batch], error: Exception) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        largest = max(len(batch) for batch in batches)
        if self.processes.count > 1 or self.parts >= largest:
            longest = max(batch.x.shape[1] for batch in batches)
            raise MemoryError(
                f"a batch of {-(-largest // self.parts)} rows of {longest} steps does not fit into memory; "
                "take fewer examples in a batch, shorter sequences or a smaller model"
            ) from error
        self.parts *= 2
        self.carried = {}
        console.note(
            f"a batch of {largest} rows does not fit into memory; it is taken in {self.parts} parts from now on"
        )

    def _check(self, norm: float, loss: float, batches: Sequence[Batch], number: int) -> None:
        """Stop before a number that is not finite reaches the weights."""
        # of several processes all must stop, and only the norm is the same everywhere
        fine = math.isfinite(norm) and (self.processes.count > 1 or math.isfinite(loss))
        if fine or (self.scaler.is_enabled() and math.isfinite(loss) and self.scaler.get_scale() > 1):
            return  # the scaler leaves out a step that it scaled too far
        for batch in batches:
            place = batch.shard(self.processes.rank, self.processes.count).to(self.device)

            def again(place: Batch = place) -> Tensor:
                seed_step(self.settings.seed, number, self.processes.rank)
                with self.autocast():
                    return self.model(place)[0]

            found = finite.find(self.model, again, place.x)
            if found != finite.NOTHING or batch is batches[-1]:
                break
        what = "gradient" if math.isfinite(loss) else "loss"
        lr = self.optimiser.param_groups[0]["lr"]
        raise FloatingPointError(
            f"the {what} is not finite in step {number + 1}, in the batch of rows {finite.rows(batch.rows)}; "
            f"first not finite: {found}. The learning rate was {lr:.2g}, clip {self.settings.clip}: lower them, "
            "or look at these rows"
        )


def seed_step(*key: int) -> None:
    """All noise of a step follows from its number, so that a resumed training draws the same."""
    digest = hashlib.sha256(repr(key).encode()).digest()
    number = int.from_bytes(digest[:4], "little")
    torch.default_generator.manual_seed(number)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(number)


def _part(batch: Batch, k: int, n: int) -> Batch:
    return batch if n == 1 else batch.shard(k, n)


def _memory(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
