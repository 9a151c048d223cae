"""The tables of docs/results/speed.md from the stored times: python benchmarks/kernels_page.py.

Every benchmarks/results/*/h200-bench-<type>*.json (`seqloom bench --device cuda --json`) is a table, without what a
later one has measured again; what stands between the two marks of the page is written anew.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "results" / "speed.md"
MARKS = ("<!-- made by benchmarks/kernels_page.py -->", "<!-- end -->")
TYPES = ("bfloat16", "float16", "float32", "tf32")
PASSES = ("forward", "forward+backward")
GRU = "torch.nn.GRU"


def main() -> None:
    text = PAGE.read_text()
    before, rest = text.split(MARKS[0])
    _, after = rest.split(MARKS[1])
    PAGE.write_text(f"{before}{MARKS[0]}\n{tables()}{MARKS[1]}{after}")


def tables() -> str:
    found = []
    for kind in TYPES:
        seen: set[tuple[Any, ...]] = set()
        for file in sorted((HERE / "results").glob(f"*/h200-bench-{kind}*.json"), key=_date, reverse=True):
            document = json.loads(file.read_text())
            new = [row for row in document["rows"] if not row["cell"].startswith("torch.nn") and _what(row) not in seen]
            shapes = {_what(row)[1:] for row in new}
            document["rows"] = new + [r for r in document["rows"] if r["cell"] == GRU and _what(r)[1:] in shapes]
            if new:
                found += [*_table(kind, document), ""]
            seen |= {_what(row) for row in new}
    return "\n".join(["", *found])


def _date(file: Path) -> str:
    return json.loads(file.read_text())["date"]


def _what(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("cell", "hidden", "batch", "length"))


def _table(kind: str, document: dict[str, Any]) -> Iterator[str]:
    """A line for each cell and shape: microseconds a step, and how many times as fast as torch.nn.GRU."""
    rows = document["rows"]
    gpu, versions = document["hardware"]["gpus"][0]["name"], document["versions"]
    end = "" if document["finished"] else ", stopped before its end"
    yield f"{kind}, {gpu}, torch {versions['torch']}, {document['date'][:10]}; `{document['command']}`{end}:"
    yield ""
    columns = [f"{pass_}{way}" for pass_ in ("forward", "both passes") for way in ("", ", graph")]
    yield f"| layer | H | B | T | {' | '.join(columns)} |"
    yield "|---|---|---|---|" + "---|" * len(columns)
    for shape in sorted({(row["hidden"], row["length"], row["batch"]) for row in rows}):
        hidden, length, batch = shape
        here = [row for row in rows if (row["hidden"], row["length"], row["batch"]) == shape]
        for cell, kernel in dict.fromkeys((row["cell"], row["kernel"]) for row in here):
            line = [row for row in here if (row["cell"], row["kernel"]) == (cell, kernel)]
            name = cell if cell == GRU else f"`{kernel}`"
            yield f"| {name} | {hidden} | {batch} | {length} | {' | '.join(_cells(line))} |"


def _cells(line: Sequence[dict[str, Any]]) -> Iterator[str]:
    for pass_ in PASSES:
        row = next((row for row in line if row["pass"] == pass_), {})
        for prefix in ("", "graph_"):
            time, ratio = row.get(f"{prefix}us_per_step"), row.get(f"{prefix}ratio_to_gru")
            times = "" if not ratio or row["cell"] == GRU else f" ({ratio:.1f}x)"
            yield "" if time is None else f"{time:.3g}{times}"


if __name__ == "__main__":
    main()
