"""The table of the rules that choose a kernel on a GPU, for the README of the kernels."""

from __future__ import annotations

from seqloom.kernels.heuristics import CUDNN_FASTER, GPU_RULES, NO_LIMIT


def kernel_rules() -> str:
    """Return the rules as a table."""
    lines = ["| cell | type | units | rows | steps | gradients | fastest first |", "|---|---|---|---|---|---|---|"]
    for rule in (*CUDNN_FASTER, *GPU_RULES):
        sizes = (_write_range(*size) for size in (rule.hidden, rule.rows, rule.steps))
        wanted = {None: "", True: "yes", False: "no"}[rule.trains]
        kernels = ", ".join(f"`{kernel}`" for kernel in rule.kernels)
        cells = [", ".join(rule.cells), ", ".join(rule.types), *sizes, wanted, kernels]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _write_range(least: int, most: int) -> str:
    if most == NO_LIMIT:
        return "" if least == 1 else f"from {least:,}"
    return f"up to {most:,}" if least == 1 else f"{least:,} to {most:,}"


PARTS = (kernel_rules,)
