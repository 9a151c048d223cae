"""The learning curves of RecurrentPPO, from the newest records of research/speed/ppo_curves.py.

Records are named <machine>-ppo-curves-<units>.json; one has the trainings of both policies with several seeds.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from research.pages.records import RESULTS, import_pyplot
from seqloom.lab.stats.intervals import mean_interval

POLICIES = {"sb3-contrib": "#7f7f7f", "seqloom": "#d55e00"}
SPEEDS = ("frames_per_s", "frames_per_processor_s")
SMOOTH = 3  # rollouts: one has about twenty episodes


def read_records() -> Iterator[dict[str, Any]]:
    """Yield the newest record for each number of units."""
    newest: dict[int, dict[str, Any]] = {}
    for path in sorted(RESULTS.rglob("*-ppo-curves-*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        units = record["rows"][0]["units"]
        if units not in newest or newest[units]["date"] < record["date"]:
            newest[units] = record
    yield from (newest[units] for units in sorted(newest))


def rows_of(record: dict[str, Any], policy: str) -> list[dict[str, Any]]:
    """Return the trainings of a policy, by seed."""
    return sorted((row for row in record["rows"] if row["policy"] == policy), key=lambda row: row["seed"])


def policy_curves() -> str:
    """Return the table of RecurrentPPO: frames per second, when the game was learned, and the reward at the end.

    The reward is the mean of ten rollouts before the number of frames that every training of the record has reached.
    """
    lines = [
        "| units | policy | frames a second | per second of processor time | reward 0.9 after frames | after seconds "
        "| reward at the end |",
        "|--:|---|--:|--:|--:|--:|--:|",
    ]
    for record in read_records():
        frames = min(row["frames"] for row in record["rows"])
        for policy in POLICIES:
            rows = rows_of(record, policy)
            cells = [
                *(show_mean([row[key] for row in rows], ",.0f") for key in SPEEDS),
                *(show_learned(rows, which) for which in (0, 1)),
                show_mean([reward_at(row, frames) for row in rows], ".3f"),
            ]
            lines.append(f"| {rows[0]['units']} | {policy} | {' | '.join(cells)} |")
    lines.append("")
    for record in read_records():
        wall, processor = (list_ratios(record, key) for key in SPEEDS)
        lines.append(
            f"- {record['rows'][0]['units']} units: ratios by seed {show_ratios(wall)}, "
            f"of processor time {show_ratios(processor)}; {describe(record)}"
        )
    return "\n".join([*lines, ""])


def list_ratios(record: dict[str, Any], key: str) -> list[float]:
    """Return our frames per second over theirs, by seed."""
    theirs, ours = (rows_of(record, policy) for policy in POLICIES)
    return [our[key] / their[key] for their, our in zip(theirs, ours, strict=True)]


def show_ratios(ratios: list[float]) -> str:
    return ", ".join(f"{ratio:.1f}" for ratio in ratios)


def reward_at(row: dict[str, Any], frames: int) -> float:
    """Return the mean reward of ten rollouts up to a number of frames."""
    return statistics.mean([reward for here, _, reward in row["curve"] if here <= frames][-10:])


def show_mean(values: list[float], form: str) -> str:
    """Return a mean with its 95 % interval over seeds."""
    interval = mean_interval(values)
    return f"{interval.mean:{form}}" + ("" if interval.half is None else f" +- {interval.half:{form}}")


def show_learned(rows: list[dict[str, Any]], which: int) -> str:
    """Return the mean of the frames (0) or seconds (1) after which the game was learned, or how many seeds were."""
    times = [row["learned_at"][which] for row in rows if row["learned_at"]]
    if len(times) < len(rows):
        return f"{len(times)} of {len(rows)} seeds" if times else "not reached"
    return f"{statistics.mean(times):,.0f}"


def describe(record: dict[str, Any]) -> str:
    """Return the date, hardware, packages and frames of a record."""
    hardware, packages = record["hardware"], record["packages"] | {"torch": record["versions"]["torch"]}
    names = ", ".join(f"{name} {version}" for name, version in packages.items())
    frames = min(row["frames"] for row in record["rows"])
    return f"{record['date'][:10]}, {hardware['cpu']} ({hardware['instructions']}), {names}, {frames:,} frames"


def draw_curves(file: Path) -> None:
    """Draw the mean reward and its 95 % interval over seeds against frames and against seconds."""
    plt = import_pyplot()
    records = list(read_records())
    figure, axes = plt.subplots(
        len(records), 2, figsize=(9, 2.9 * len(records)), sharey=True, squeeze=False, layout="constrained"
    )
    for pair, record in zip(axes, records, strict=True):
        for policy, colour in POLICIES.items():
            curves = [np.array(row["curve"]) for row in rows_of(record, policy)]
            for which, axis in enumerate(pair):
                x, middle, half = average(curves, which)
                x = x if which else x / 1000
                axis.plot(x, middle, color=colour, label=policy)
                axis.fill_between(x, (middle - half).clip(-1), (middle + half).clip(max=1), color=colour, alpha=0.2)
        units = record["rows"][0]["units"]
        for axis, name in zip(pair, ("thousand frames", "seconds on one core"), strict=True):
            axis.set(xlabel=name, xlim=(0, None), title=f"{units} units")
            axis.grid(alpha=0.25)
        pair[0].set(ylabel="reward of an episode")
        pair[0].legend()
    figure.savefig(file, metadata={"Date": None})
    plt.close(figure)


def average(curves: list[Any], which: int) -> tuple[Any, Any, Any]:
    """Return frames (0) or seconds (1), the mean reward of the seeds there, and half of its 95 % interval."""
    window = np.ones(SMOOTH) / SMOOTH
    first, last = max(c[SMOOTH - 1, which] for c in curves), min(c[-1, which] for c in curves)
    x = np.linspace(first, last, 80)
    rewards = [np.interp(x, c[SMOOTH - 1 :, which], np.convolve(c[:, 2], window, "valid")) for c in curves]
    intervals = [mean_interval(list(map(float, values))) for values in zip(*rewards, strict=True)]
    return x, np.array([i.mean for i in intervals]), np.array([i.half or 0.0 for i in intervals])


PARTS = (policy_curves,)
