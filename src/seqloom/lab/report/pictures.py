"""Plots for reports and papers, drawn with matplotlib without a window."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, SupportsFloat

from seqloom.core.errors import UserError

if TYPE_CHECKING:  # matplotlib takes long to import
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

MARKS = "osD^vP*Xh"
COLOURS = ("#0072b2", "#56b4e9", "#d55e00", "#000000", "#7f7f7f", "#009e73", "#cc79a7", "#a6761d", "#e6ab02")


def plot_speed(rows: Sequence[Any], path: Path) -> None:
    """Plot microseconds per step against the hidden size: one panel per pass, batch and type, one line per layer."""
    plt = _import_pyplot()
    timed = [row for row in rows if row.us_per_step is not None]
    if not timed:
        raise UserError("there are no timings to plot")
    panels = list(dict.fromkeys((row.pass_, row.dtype, row.batch, row.length, row.threads) for row in timed))
    names = list(dict.fromkeys(_line_name(row.cell, row.kernel) for row in timed))
    torchs = {row.cell for row in timed if row.kernel == "torch"}
    columns = min(len(panels), 4)
    lines = -(-len(panels) // columns)
    figure, axes = plt.subplots(
        lines, columns, figsize=(3.6 * columns, 3 * lines + 0.5), squeeze=False, layout="constrained"
    )
    for panel, axis in zip(panels, axes.flat, strict=False):
        mine = [row for row in timed if (row.pass_, row.dtype, row.batch, row.length, row.threads) == panel]
        for n, name in enumerate(names):
            points = sorted((row.hidden, row.us_per_step) for row in mine if _line_name(row.cell, row.kernel) == name)
            look = {"marker": MARKS[n % len(MARKS)], "color": COLOURS[n % len(COLOURS)], "markersize": 4}
            look["linestyle"] = "--" if name in torchs else "-"
            axis.plot([hidden for hidden, _ in points], [us for _, us in points], **look, label=name)
        axis.set(xscale="log", yscale="log", xlabel="hidden size", ylabel="us per step")
        axis.set_title(f"{panel[0]}\n{panel[1]}, B={panel[2]}, T={panel[3]}, threads={panel[4]}", fontsize=9)
        axis.set_xticks(sorted({row.hidden for row in mine}), labels=sorted({row.hidden for row in mine}))
        axis.xaxis.minorticks_off()
        _use_plain_ticks(axis.yaxis)
        axis.grid(which="both", alpha=0.3)
    for axis in list(axes.flat)[len(panels) :]:
        axis.set_visible(False)
    figure.legend(
        *axes.flat[0].get_legend_handles_labels(), loc="outside lower center", ncols=4 if columns > 1 else 2, fontsize=8
    )
    _save_figure(figure, path)


def plot_latency(levels: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Plot the latencies of a server against its load: one line each for p50, p90 and p99."""
    plt = _import_pyplot()
    if not levels:
        raise UserError("there are no latencies to plot")
    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for n, name in enumerate(("p50", "p90", "p99")):
        points = [(level["per_second"], level[name]) for level in levels]
        look = {"marker": MARKS[n], "color": COLOURS[n], "markersize": 4}
        axis.plot([x for x, _ in points], [y for _, y in points], **look, label=name)
    axis.set(xlabel="requests per second", ylabel="milliseconds", yscale="log", xlim=(0, None))
    _use_plain_ticks(axis.yaxis)
    axis.grid(which="both", alpha=0.3)
    axis.legend()
    _save_figure(figure, path)


def _line_name(cell: str, kernel: str) -> str:
    if kernel == "torch":
        return cell
    return kernel if kernel.startswith(cell) else f"{cell}, {kernel}"


def _use_plain_ticks(axis: Axis) -> None:
    """Label 1, 2, 5, 10, 20, ..., so that an axis of less than a decade has labels too."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FormatStrFormatter("%g"))
    axis.set_minor_formatter(ticker.NullFormatter())


def plot_attention(
    weights: Iterable[Iterable[SupportsFloat]], rows: Sequence[str], columns: Sequence[str], path: Path
) -> None:
    """Plot attention weights as a grid; darker means more.

    Args:
        weights: (rows, columns); weights of at least 0.1 are also printed as numbers.
        rows: Labels of the queries.
        columns: Labels of the keys.
        path: A file that ends in .svg, .png or .pdf.
    """
    plt = _import_pyplot()
    grid = [[float(w) for w in line] for line in weights]
    if len(grid) != len(rows) or any(len(line) != len(columns) for line in grid):
        shape = f"{len(grid)} x {len(grid[0]) if grid else 0}"
        raise UserError(f"weights must be {len(rows)} x {len(columns)} to match their labels, got {shape}")
    long = max((len(word) for word in (*rows, *columns)), default=0)
    size = (1.2 + 0.07 * long + 0.42 * len(columns), 0.8 + 0.07 * long + 0.42 * len(rows))
    figure, axis = plt.subplots(figsize=size, layout="constrained")
    axis.imshow(grid, cmap="Blues", vmin=0, vmax=1, aspect="equal")
    axis.set_xticks(range(len(columns)), labels=columns, rotation=60, ha="left", rotation_mode="anchor")
    axis.set_yticks(range(len(rows)), labels=rows)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set_xticks([n - 0.5 for n in range(1, len(columns))], minor=True)
    axis.set_yticks([n - 0.5 for n in range(1, len(rows))], minor=True)
    axis.grid(which="minor", color="#dddddd", linewidth=0.5)
    axis.tick_params(which="minor", length=0)
    for i, line in enumerate(grid):
        for j, w in enumerate(line):
            if w >= 0.1:
                axis.text(j, i, f"{w:.1f}", ha="center", va="center", fontsize=7, color="w" if w > 0.5 else "k")
    _save_figure(figure, path)


def _import_pyplot() -> ModuleType:
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    return pyplot


def _save_figure(figure: Figure, path: Path) -> None:
    figure.savefig(path)
    _import_pyplot().close(figure)
