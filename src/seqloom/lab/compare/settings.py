"""The settings of a comparison: one flat, validated record that defines the CLI flags and the JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from seqloom.core.errors import UserError
from seqloom.lab.console import format_flags

Count = Annotated[int, Field(ge=1, lt=2**31)]
SECONDS = {"h": 3600, "m": 60, "s": 1}


class CompareSettings(BaseModel):
    """Settings of `seqloom compare`; each field is a flag of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    models: tuple[str, ...] = ()
    """Models to compare, separated by commas: layer names (`seqloom list layers`), gru:2 for two stacked layers,
    path/to/file.py:MyCell, or all. Default: those that suit the task, as many as the budget allows."""
    seeds: Count = 3
    """Trainings of each of the best models, with seeds 0, 1, 2, ..."""
    folds: Annotated[int, Field(ge=1, le=50)] | None = None
    """Parts of the rows for cross-validation: each is tested by models that were trained on the others. 1 for a single
    split. Default: 5 with fewer than 500 rows, otherwise 1."""
    budget: str | None = None
    """Time for the whole comparison, such as 90s, 10m or 2h. Default: 10m, or 90s for the built-in digits."""
    tune: Count | None = None
    """Configurations to try for each model: first its usual learning rates, then learning rates, dropouts and sizes
    proposed by Optuna. Default: one to three learning rates, as the budget allows."""
    parameters: Annotated[int, Field(ge=100, le=100_000_000)] | None = None
    """Approximate number of parameters of each model, not counting token embeddings; sets the hidden size."""
    margin: Annotated[float, Field(ge=0, le=100)] = 1.0
    """Lead in percentage points up to which a simpler or faster model is preferred; for errors and perplexities, in
    percent of the best one."""
    metric: str | None = None
    """Metric that ranks the models: accuracy, balanced_accuracy, macro_f1, f1, auroc, average_precision, loss; span_f1;
    rmse, mae, mse; bleu, chrf, exact, cer, wer; ... Default: the usual one of the kind of task, or average_precision or
    balanced_accuracy if one class has 90 % of the rows."""
    class_weights: Literal["none", "balanced"] | None = None
    """Weights of the classes in the loss; balanced gives all classes the same total weight. Default: balanced if one
    class has 90 % of the rows and the metric treats classes alike, otherwise none."""
    positive: str | None = None
    """Class that counts as positive, of two. Default: the rarer one."""
    threshold: str | None = None
    """Least probability to predict the positive class: a number, or a goal on the validation rows such as recall=0.9,
    precision=0.9 or f1. Default: the likelier class, or f1 if the classes are imbalanced."""
    reject: str | None = None
    """Least probability to predict a class at all: a number, or accuracy=0.95, the accuracy of the predictions that
    are left on the validation rows. Default: always predict."""
    steps: Count | None = None
    """Steps of the longest trainings, instead of a time budget. The table is then the same on every machine."""
    workers: Count | None = None
    """Processes on this machine that train at the same time. Default: one per core."""
    ray: str | None = None
    """Train on the Ray cluster at this address instead; auto finds a running one."""

    @field_validator("models", mode="before")
    @classmethod
    def _split_names(cls, value: str | Sequence[str]) -> tuple[str, ...]:
        """Split "gru,lstm" and drop duplicates."""
        parts = [value] if isinstance(value, str) else value
        names = dict.fromkeys(name.strip() for part in parts for name in part.split(","))
        names.pop("", None)
        if parts and not names:
            raise UserError("name at least one model")
        return tuple(names)

    @field_validator("budget")
    @classmethod
    def _check_budget(cls, value: str | None) -> str | None:
        if value is not None and not parse_seconds(value):
            raise UserError("write a time as 90s, 10m, 2h or 1h30m")
        return value

    @property
    def seconds(self) -> float:
        return parse_seconds(self.budget or "10m")

    def to_flags(self) -> list[str]:
        """Return the settings that differ from the defaults as command-line flags."""
        values = self.model_dump(exclude_defaults=True)
        return format_flags({name: value for name, value in values.items() if value is not None})


def parse_seconds(text: str) -> float:
    """Convert 90s, 10m, 2h or 1h30m to seconds; anything else gives 0."""
    if not re.fullmatch(r"(\d+(\.\d+)?[hms])+", text):
        return 0.0
    return sum(float(number) * SECONDS[unit] for number, unit in re.findall(r"([\d.]+)([hms])", text))
