"""How long the windows of a forecast are, where the table is too short for the usual ones."""

from __future__ import annotations

from collections.abc import Mapping

from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.task import Notes

USUAL = Reading()


def fitted(options: Reading, sides: Mapping[str, int], notes: Notes) -> Reading:
    """Shorter windows where the usual ones have no room; `sides` are the rows of the longest series in each split.

    A horizon is at most half of the shortest side, and a window half of the training rows. What was asked for stays.
    """
    back, ahead, train = options.lookback, options.horizon, sides["train"]
    shortest = min(sides.values())
    if back + ahead <= train and ahead <= shortest:
        return options
    if ahead == USUAL.horizon:
        ahead = min(ahead, max(1, shortest // 2))
    if back == USUAL.lookback:
        back = min(back, max(1, train // 2 - ahead))
    if (back, ahead) != (options.lookback, options.horizon):
        told = f"the usual window of {options.lookback} + {options.horizon} rows does not fit in"
        notes.say(f"{told}: {back} steps say {ahead}; lookback=... and horizon=... take others")
    return options.model_copy(update={"lookback": back, "horizon": ahead})
