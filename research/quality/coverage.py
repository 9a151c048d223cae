"""How often the 95% interval of a mean of overlapping windows contains the true mean, in simulated series.

python -m research coverage --series 400
"""

from __future__ import annotations

import numpy as np

from research.record import build_parser
from seqloom.lab.stats.resampling import count_blocks, draw_weights, find_interval

RESAMPLES = 400
WARM_UP = 50  # steps before a series that has forgotten its start


def measure_coverage(horizon: int, horizons: int, memory: float, series: int, seed: int = 0) -> float:
    """Return the share of simulated series whose interval contains the true mean, 0.

    Args:
        horizon: Steps of a window; each begins a step after the one before.
        horizons: Number of windows, in units of the horizon.
        memory: Correlation of an error with the one before it.
        series: Number of simulated series.
        seed: Seed of the simulation.
    """
    random = np.random.default_rng(seed)
    n = horizon * horizons
    weights = np.concatenate(list(draw_weights(n, horizon, RESAMPLES)))
    inside = 0
    for _ in range(series):
        errors = random.standard_normal(n + horizon - 1 + WARM_UP)
        for i in range(1, len(errors)):
            errors[i] += memory * errors[i - 1]
        windows = np.convolve(errors[WARM_UP:], np.ones(horizon) / horizon, "valid")
        resampled = weights @ windows / weights.sum(1)
        low, high = find_interval(float(windows.mean()), resampled, count_blocks(n, horizon))
        inside += low < 0 < high
    return inside / series


def main() -> None:
    parser = build_parser(__doc__, record=False)
    parser.add_argument("--series", type=int, default=400)
    series = parser.parse_args().series
    for memory in (0.0, 0.5):
        for horizon in (6, 24):
            shares = {k: measure_coverage(horizon, k, memory, series) for k in (3, 5, 10, 40)}
            listed = ", ".join(f"{k} horizons {share:.1%}" for k, share in shares.items())
            print(f"memory {memory}, horizon {horizon}: {listed}", flush=True)
