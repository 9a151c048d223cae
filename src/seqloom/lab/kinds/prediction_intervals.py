"""Intervals of forecasts: split conformal prediction on the validation windows.

The score of a value is its error divided by the unit of its window, u = mean |x_t - x_(t-m)| over the past, with the
season m. A series that moves more thus has wider intervals, even if it did not occur in training. The interval of a
forecast p is p +- q u, with the conformal quantile q of the validation scores for each step and target.

    split conformal prediction     Lei et al. 2018
    scores relative to a unit      Papadopoulos et al. 2008
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqloom.core.errors import UserError
from seqloom.lab.data.task import Batch, Task
from seqloom.lab.files import checkpoint, sealed
from seqloom.lab.kinds.for_task import get_targets
from seqloom.lab.kinds.settings import Sizes
from seqloom.lab.stats.forecasts import LEVELS, fit_widths

FILE, FORMAT = "intervals.json", 1
LEAST_UNIT = 0.1  # minimum unit relative to the median; a window without any change would otherwise have no width


@dataclass(frozen=True, eq=False)
class PredictionIntervals:
    """The width of a forecast's intervals in units of each window."""

    season: int  # m, in steps
    floor: Tensor  # (K,) the least unit
    widths: dict[int, Tensor]  # by level in percent, (S, K); infinite where the validation has too few windows
    windows: int  # how many validation windows there were

    def describe(self) -> dict[str, Any]:
        """Return season, least unit and widths as JSON types; None for an infinite width."""
        widths = {
            str(level): [[v if math.isfinite(v) else None for v in row] for row in width.tolist()]
            for level, width in self.widths.items()
        }
        return {"season": self.season, "floor": self.floor.tolist(), "widths": widths}

    def find_bounds(self, values: Tensor, past: Tensor, lengths: Tensor) -> dict[int, tuple[Tensor, Tensor]]:
        """Return the lower and upper ends by level, each (B, S, K).

        Args:
            values: The forecast (B, S, K).
            past: The targets before it (B, T, K).
            lengths: (B,) steps of the past.
        """
        unit = torch.maximum(measure_units(past, lengths, self.season), self.floor.to(past.device))
        halves = {level: width.to(values) * unit.unsqueeze(1) for level, width in self.widths.items()}
        return {level: (values - half, values + half) for level, half in halves.items()}


def measure_units(past: Tensor, lengths: Tensor, season: int) -> Tensor:
    """Return mean |x_t - x_(t-m)| of each row and target, (B, K), with m = 1 for rows of up to two seasons."""
    is_long = (lengths > 2 * season).unsqueeze(1)
    return torch.where(is_long, _mean_change(past, lengths, season), _mean_change(past, lengths, 1))


def _mean_change(past: Tensor, lengths: Tensor, m: int) -> Tensor:
    if past.shape[1] <= m:
        return past.new_zeros(past.shape[0], past.shape[2])
    change = (past[:, m:] - past[:, :-m]).abs()
    real = (torch.arange(m, past.shape[1], device=past.device) < lengths.unsqueeze(1)).unsqueeze(-1)
    return (change * real).sum(1) / real.sum(1).clamp(min=1)


@torch.no_grad()
def fit_intervals(model: Any, task: Task, sizes: Sizes) -> PredictionIntervals | None:  # noqa: ANN401
    """Fit the intervals of a trained forecast on the validation windows; None if there are none.

    Args:
        model: A `ForForecast`.
    """
    calendar = getattr(task.encoding, "times", None)
    seasons = getattr(calendar, "seasons", ())
    season = next((m for m in seasons if 2 * m < task.lookback), 1)
    device, training = next(model.parameters()).device, model.training
    errors, units = [], []
    model.eval()
    try:
        for batch in (one.to(device) for one in task.batches("valid", **sizes)):
            errors.append((model.scores(batch)[0].float() - get_targets(batch)).abs().cpu())
            units.append(measure_units(get_past(model, batch, task.target.size), batch.lengths, season).cpu())
    finally:
        model.train(training)
    if not errors:
        return None
    unit = torch.cat(units)
    floor = (LEAST_UNIT * unit.median(0).values).clamp(min=1e-6)
    scores = (torch.cat(errors) / torch.maximum(unit, floor).unsqueeze(1)).numpy()
    widths = {level: torch.from_numpy(fit_widths(scores, level / 100)).float() for level in LEVELS}
    return PredictionIntervals(season, floor, widths, len(scores))


def get_past(model: Any, batch: Batch, count: int) -> Tensor:  # noqa: ANN401  # a ForForecast
    """Return the past of the targets, (B, T, K)."""
    return batch.x[..., :count] if model.order is None else batch.x[..., model.order[:count]]


def save(folder: Path, intervals: PredictionIntervals) -> None:
    """Write intervals.json to the folder of a run."""
    record = {"format": FORMAT, "windows": intervals.windows} | intervals.describe()
    checkpoint.write_file(folder / FILE, sealed.dumps(record))


def load(folder: Path, steps: int, targets: int) -> PredictionIntervals | None:
    """Read intervals.json from the folder of a run; None if there is none.

    Args:
        steps: S, the steps of a forecast.
        targets: K, the number of forecast series.

    Raises:
        DamagedError: If the file was changed, or does not fit.
    """
    file = folder / FILE
    if not file.is_file():
        return None
    record = sealed.loads(file.read_bytes(), file, FORMAT)
    with sealed.interpret(file):
        widths = {
            int(level): torch.tensor([[np.inf if v is None else float(v) for v in row] for row in width])
            for level, width in record["widths"].items()
        }
        season, floor = int(record["season"]), torch.tensor(record["floor"])
        if season < 1 or not floor.isfinite().all():
            raise UserError("the season counts steps, and the least units are numbers")
        if floor.shape != (targets,) or any(width.shape != (steps, targets) for width in widths.values()):
            raise UserError(f"the widths do not fit {steps} steps of {targets} targets")
        return PredictionIntervals(season, floor, widths, int(record["windows"]))
