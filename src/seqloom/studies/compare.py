"""Recurrent cells side by side on one small task: same data, same budget, several seeds."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import torch

from seqloom import doctor
from seqloom.cell import Cell, find
from seqloom.layers.recurrent import Recurrent
from seqloom.measure import parameters
from seqloom.models.classify import Classify
from seqloom.settings import Compare
from seqloom.studies.table import Outcome, conclusion, table
from seqloom.tasks import digits
from seqloom.training.small import accuracy, small_models_on_cpu, train

MULTIPLE = 4  # of which hidden sizes are multiples, so that attention heads fit


def cells(models: Sequence[str]) -> dict[str, type[Cell]]:
    """The cell of every model, or an error before anything has been trained."""
    found = {}
    for model in models:
        try:
            found[model] = find(model)
        except ValueError:
            raise
        except Exception as error:  # a person's own file may fail in any way
            raise ValueError(f"cell {model!r} cannot be loaded: {type(error).__name__}: {error}") from error
    return found


def run(
    settings: Compare, kinds: dict[str, type[Cell]], task: digits.Digits, after_epoch: Callable[[str], None]
) -> Iterator[Outcome]:
    """The baselines, then every model with the first seed, with the second, and so on.

    A model that fails is an outcome too, and is not tried with further seeds.
    """
    for name, size, validation, test in digits.baselines(task):
        yield Outcome(name, None, size, validation=validation, test=test)
    failed = set()
    for seed in range(settings.seeds):
        for model in [m for m in kinds if m not in failed]:
            try:
                with small_models_on_cpu():
                    outcome = _train(settings, model, kinds[model], task, seed, after_epoch)
            except Exception as error:
                failed.add(model)
                outcome = Outcome(model, seed, failed=f"{type(error).__name__}: {' '.join(str(error).split())}")
            yield outcome


def _train(
    settings: Compare,
    model: str,
    kind: type[Cell],
    task: digits.Digits,
    seed: int,
    after_epoch: Callable[[str], None],
) -> Outcome:
    hidden = settings.hidden or hidden_size(kind, task, settings.parameters)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        classifier = _classifier(kind, task, hidden)
    record = train(
        classifier,
        task.train,
        task.validation,
        epochs=settings.epochs,
        lr=settings.lr,
        batch=settings.batch,
        seed=seed,
        after_epoch=lambda: after_epoch(f"{model}, seed {seed}"),
    )
    return Outcome(
        model,
        seed,
        parameters=parameters(classifier),
        hidden=hidden,
        validation=record.validation[record.best],
        test=accuracy(classifier, task.test),
        epoch=record.best + 1,
        seconds_per_epoch=statistics.median(record.seconds),
    )


def _classifier(kind: type[Cell], task: digits.Digits, hidden: int) -> Classify:
    return Classify(Recurrent(kind, task.features, hidden, batch_first=True), task.classes)


def hidden_size(kind: type[Cell], task: digits.Digits, budget: int) -> int:
    """The multiple of 4 whose layer and head come nearest to this many parameters."""

    def count(k: int) -> int:
        return parameters(_classifier(kind, task, k * MULTIPLE))

    low, high = 1, 2
    while count(high) < budget:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(middle) < budget else (low, middle)
    return MULTIPLE * min(low, high, key=lambda k: abs(count(k) - budget))


def document(settings: Compare, task: digits.Digits, outcomes: Sequence[Outcome], finished: bool) -> dict[str, Any]:
    """Everything that a reader needs to believe the table, and to build it again."""
    return {
        "command": settings.command(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": settings.model_dump(),
        "seeds": list(range(settings.seeds)),
        "task": {"name": "digits", "steps": task.steps, "features": task.features, "images": task.sizes},
        "versions": doctor.versions(),
        "hardware": doctor.hardware() | {"training_threads": 1, "denormals": "flushed"},
        "finished": finished,
        "rows": [asdict(row) for row in table(outcomes)],
        "conclusion": conclusion(outcomes, digits.LINEAR) if finished else "Interrupted: no conclusion.",
        "trainings": [asdict(outcome) for outcome in outcomes],
    }


def caption(settings: Compare, task: digits.Digits) -> str:
    """How the numbers were made."""
    images = ", ".join(f"{count} {part}" for part, count in task.sizes.items())
    return (
        f"digits by {task.reading} ({task.steps} steps of {task.features}); images: {images}; "
        f"epochs: {settings.epochs}; lr: {settings.lr}, not tuned for each model\n"
        "+- is the 95% t-interval over seeds on these test images; other images would move all numbers"
    )
