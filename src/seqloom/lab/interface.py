"""The lab in Python: `compare`, `advise`, `train` and `load`, with the options of the commands of the same name.

An option is the command's flag with `_` for `-`: `seqloom compare my.csv --budget 2m` is `seqloom.compare("my.csv",
budget="2m")`. Data are given as for the command, or as a polars or pandas DataFrame.
"""

from __future__ import annotations

import html
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from seqloom.core.errors import UserError
from seqloom.lab import console
from seqloom.lab.advise import output
from seqloom.lab.advise.advice import SECONDS, Advice
from seqloom.lab.advise.advice import advise as find_advice
from seqloom.lab.compare.execution import open_comparison, read_document, run_comparison, write_report
from seqloom.lab.compare.folder import BEST, next_folder
from seqloom.lab.compare.settings import CompareSettings
from seqloom.lab.data.registry import open_data
from seqloom.lab.data.task import DataSource, Frame, Task, is_frame, make_frame
from seqloom.lab.files import scratch
from seqloom.lab.training.fit import fit, validate_settings
from seqloom.lab.training.layout import COMPARISON_FILE
from seqloom.lab.training.run import Run

DATA_FILE = "data.parquet"  # the rows of a frame, in the folder of its comparison
MEGABYTE = 1e6


class Comparison:
    """The results of `seqloom.compare`; a notebook shows the verdict and the table.

    Attributes:
        folder: The folder on disk, with a report and a run for every model.
        verdict: Which model to use and why, in a sentence or two.
        page: The report, one HTML file.
        document: Everything that was measured, as `seqloom compare --json` prints it.
    """

    def __init__(self, folder: Path | str, like: object = None) -> None:
        self.folder = Path(folder)
        if not (self.folder / "study.json").is_file():
            raise UserError(f"{self.folder} holds no finished comparison; continue it with resume=True")
        self.document = read_document(self.folder)
        self.verdict: str = self.document["verdict"]
        self.page = self.folder / "report.html"
        self._like = like

    @cached_property
    def table(self) -> Frame:
        """One row for each baseline and model, sorted by the validation score.

        A DataFrame of the library of the data; for data from files pandas if it is installed, otherwise polars.
        """
        return make_frame(self._rows(), self._like)

    def _rows(self) -> list[dict[str, Any]]:
        metric, chosen = self.document["metric"], self.document["recommended"]
        rows = []
        for row in self.document["rows"]:
            test, behind = row["test"] or {}, row["behind"] or {}
            one, many = row["latency"] or (None, None)
            rows.append(
                {
                    "model": row["label"],
                    "is_baseline": row["baseline"],
                    "is_recommended": row["name"] == chosen,
                    metric: test.get("mean"),
                    "interval": test.get("half"),
                    "difference": behind.get("mean"),
                    "difference_interval": behind.get("half"),
                    "validation": row["valid"],
                    "seeds": row["seeds"],
                    "parameters": row["parameters"],
                    "training_s": row["seconds"],
                    "latency_1_ms": None if one is None else 1000 * one,
                    "latency_64_ms": None if many is None else 1000 * many,
                    "memory_mb": None if row["memory"] is None else row["memory"] / MEGABYTE,
                    "note": row["note"],
                }
            )
        return rows

    @cached_property
    def best(self) -> Run:
        """The recommended model, as a run."""
        return self.load(BEST)

    def load(self, model: str) -> Run:
        """Return the run of a model or baseline, by the name of its folder, such as "gru"."""
        if not (self.folder / model).is_dir():
            folders = [row["folder"] for row in self.document["rows"] if row["folder"]]
            raise UserError(f"{self.folder} holds no model {model!r}; it holds {', '.join(folders) or 'none'}")
        return Run.load(self.folder / model)

    def __repr__(self) -> str:
        return f"{self.verdict}\n{self.table}"

    def _repr_html_(self) -> str:
        about = f"interval, difference_interval: half of a 95 % interval. Report: {self.page}"
        return _format_html(self.verdict, self._rows(), about)


class Recommendation:
    """The results of `seqloom.advise`; a notebook shows the sentence and the table.

    Attributes:
        sentence: Which models to try first.
        rules: Which rules apply, with their evidence.
        commands: The commands that compare the first models, and that train the best sequence model.
        document: All of it, as `seqloom advise --json` prints it.
    """

    def __init__(self, advice: Advice, data: str, options: Mapping[str, Any], like: object) -> None:
        self.sentence = output.summarise(advice)
        self.rules = output.describe_rules(advice)
        self.commands = output.build_commands(advice, data, options)
        self.document = output.build_document(advice) | {"sentence": self.sentence, "commands": self.commands}
        self._rows, self._like = output.ranking_table(advice), like
        self._facts = output.facts_table(advice.facts, advice.gradient_steps)

    @cached_property
    def table(self) -> Frame:
        """The models, the best first, with size, cost and reasons; see `Comparison.table` for its type."""
        return make_frame(self._rows, self._like)

    @cached_property
    def facts(self) -> Frame:
        """Facts about the data."""
        return make_frame(self._facts, self._like)

    def __repr__(self) -> str:
        return f"{self.sentence}\n{self.table}"

    def _repr_html_(self) -> str:
        return _format_html(self.sentence, self._rows, "\n".join(self.rules))


def compare(
    data: DataSource | None = None,
    *,
    out: Path | str | None = None,
    resume: bool = False,
    trust: bool = False,
    **options: object,
) -> Comparison:
    """Train baselines and models on data within a time budget and rank them, as `seqloom compare` does.

    A notebook shows a progress bar meanwhile. The rows of a DataFrame are written to the folder of the comparison, from
    which the processes that train read them.

    Args:
        data: A file, a folder, a DataFrame of polars or pandas, or the name of a task. Default: handwritten digits.
        out: The folder of the comparison. Default: a new one in comparisons/.
        resume: Whether to continue the comparison in `out`, which was interrupted.
        trust: With `resume`, whether Python code stored in the folder may be executed.
        **options: Any option of `seqloom compare`, such as budget="2m", models="gru,lstm", seeds=3, steps=500,
            target="stars" or group="patient".

    Returns:
        The verdict, the table, the report and the trained models.

    Raises:
        UserError: If an option is unknown or invalid, or the data cannot be read.

    Example:
        >>> import polars
        >>> texts = [f"{word} film {n}" for n in range(40) for word in ("good", "bad")]
        >>> films = polars.DataFrame({"text": texts, "stars": ["5", "1"] * 40})
        >>> compared = seqloom.compare(films, target="stars", models="gru", steps=8, seeds=1, folds=1)
        >>> compared.table.shape[0] > 2
        True
        >>> compared.best.predict(polars.DataFrame({"text": ["good film"]})).shape
        (1, 2)
    """
    began = time.time(), time.process_time()
    settings, reading = validate_settings(CompareSettings, options)
    folder = None if out is None else Path(out)
    if is_frame(data) and not resume:
        folder = folder or next_folder("frame")
        source: Any = _store_frame(data, folder)
    else:
        source = None if resume and is_frame(data) else data
    if isinstance(source, Path):
        source = str(source)
    comparison = open_comparison(source, reading, settings, folder, resume=resume, trust=trust, began=began)
    finished = run_comparison(comparison, settings, resume=resume)
    if not finished:
        console.note(f"interrupted; continue with: seqloom.compare(out={str(comparison.folder)!r}, resume=True)")
    with console.show_status("writing the report"):
        write_report(comparison, finished)
    return Comparison(comparison.folder, data)


def _store_frame(frame: Frame, folder: Path) -> str:
    """Write a DataFrame to the folder of a comparison; return the file."""
    table = frame if isinstance(frame, pl.DataFrame) else pl.from_pandas(frame)
    if (folder / COMPARISON_FILE).exists():
        raise UserError(f"out={str(folder)!r} already holds a comparison; give resume=True, or another folder")
    folder.mkdir(parents=True, exist_ok=True)
    with scratch.write_atomically(folder / DATA_FILE) as work:
        table.write_parquet(work)
    return str(folder / DATA_FILE)


def advise(data: DataSource | Task, *, seconds: float = SECONDS, models: str = "", **reading: object) -> Recommendation:
    """Recommend models for data, with reasons and costs, as `seqloom advise` does.

    Args:
        data: A file, a folder, a DataFrame of polars or pandas, or the name of a task.
        seconds: Time limit, including reading the data.
        models: Models to rank instead of the usual dozen, separated by commas, or "all".
        **reading: How the data are read: the options of `seqloom look`, such as target="stars".

    Returns:
        The sentence, the table, the facts and the commands.

    Raises:
        UserError: If an option is wrong, or the data cannot be read.

    Example:
        >>> advice = seqloom.advise("adding", seconds=4, models="gru")
        >>> advice.sentence.startswith("Try gru")
        True
    """
    start = time.perf_counter()
    if not 4 <= seconds <= 3600:
        raise UserError(f"seconds must be between 4 and 3600, got {seconds:g}")
    task, _ = open_data(data, reading)
    chosen = [name.strip() for name in models.split(",") if name.strip()]
    advice = find_advice(task, seconds - (time.perf_counter() - start), chosen)
    return Recommendation(advice, str(data) if isinstance(data, str | Path) else "DATA", reading, data)


def train(data: DataSource | Task, model: str = "gru", *, out: Path | str | None = None, **settings: object) -> Run:
    """Train a model on data and return the finished run, as `seqloom train` does.

    Args:
        data: A file, a folder, a DataFrame of polars or pandas, a dict of splits, the name of a task, or a `Task`.
        model: A layer by name, or path/to/file.py:MyCell.
        out: The folder of the run. Default: runs/DATA-MODEL.
        **settings: Any option of `seqloom train`: how the data are read, and how the model is built and trained.

    Returns:
        The run on disk, with the best weights.

    Raises:
        UserError: If a setting is unknown or invalid, the data cannot be read, or the folder is taken.

    Example:
        >>> import polars
        >>> texts = [f"{word} film {n}" for n in range(50) for word in ("good", "bad")]
        >>> films = polars.DataFrame({"text": texts, "stars": ["5", "1"] * 50})
        >>> run = seqloom.train(films, model="gru", target="stars", hidden=8, epochs=1, out="runs/films")
        >>> run.predict(["good film"])[0].keys()
        dict_keys(['prediction', 'probability'])
    """
    both = [name for name in ("name", "runs") if out is not None and name in settings]
    if both:
        raise UserError(f"train takes out or {both[0]}, not both; out is the folder of the run")
    place = {} if out is None else {"name": Path(out).name, "runs": Path(out).parent}
    options: dict[str, Any] = {**settings, **place}
    return fit(data, model, **options)


def load(folder: Path | str, *, trust: bool | str = False) -> Run | Comparison:
    """Open a run or a finished comparison.

    Args:
        folder: The folder of `seqloom train` or `seqloom compare`.
        trust: For a run, whether Python code stored in the folder may be executed; or the SHA-256 of that code.

    Raises:
        UserError: If the folder holds neither.

    Example:
        >>> seqloom.train("adding", steps=2, hidden=8, out="runs/sums").folder.name
        'sums'
        >>> seqloom.load("runs/sums").settings.model
        'gru'
    """
    if (Path(folder) / COMPARISON_FILE).is_file():
        return Comparison(folder)
    return Run.load(folder, trust=trust)


def _format_html(headline: str, rows: Sequence[Mapping[str, Any]], about: str) -> str:
    """Return a headline, a table and a note as HTML, for a notebook."""
    columns = [name for name in (rows[0] if rows else ()) if any(row[name] not in (None, "") for row in rows)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    lines = ("".join(f"<td>{html.escape(_format_cell(row[name]))}</td>" for name in columns) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if columns else ""
    return f"<p><b>{html.escape(headline)}</b></p>{table}<p style='white-space:pre-line'>{html.escape(about)}</p>"


def _format_cell(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)
