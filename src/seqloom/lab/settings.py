"""The settings of a study: one flat, validated record, which is also the flags and the JSON."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from seqloom.core.errors import UserError

Count = Annotated[int, Field(ge=1)]


class Compare(BaseModel):
    """What `seqloom compare` trains, and for how long."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    models: tuple[str, ...] = ()
    """Layers by name (`seqloom list layers`), gru:2 for two on each other, path/to/file.py:MyCell, or all; separated
    by commas. By default those that fit the task, as many as there is time for."""
    seeds: Count = 3
    """Trainings of each of the best models, with seeds 0, 1, 2, ..."""
    budget: str | None = None
    """Time for all of it, such as 90s, 10m or 2h; 10m by default, 90s for the embedded digits."""
    tune: Count | None = None
    """Settings of each model that are tried: first its usual learning rates, then what Optuna proposes of learning
    rates, dropouts and sizes. By default one to three learning rates, as time allows."""
    parameters: Annotated[int, Field(ge=100, le=100_000_000)] | None = None
    """About how many parameters each model gets, tables of tokens left out; its width follows."""
    steps: Count | None = None
    """Steps of the longest trainings, in place of a budget: the same table on every machine."""
    workers: Count | None = None
    """Processes of this machine that train at the same time; by default one for each core."""
    ray: str | None = None
    """The address of a Ray cluster that trains in their place, or auto."""

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Take "gru,lstm" apart, and name no model twice."""
        given = [value] if isinstance(value, str) else value
        names = dict.fromkeys(name.strip() for part in given for name in part.split(","))
        names.pop("", None)
        if given and not names:
            raise UserError("name at least one model")
        return tuple(names)

    @field_validator("budget")
    @classmethod
    def _time(cls, value: str | None) -> str | None:
        if value is not None and not seconds_of(value):
            raise UserError("a time is written as 90s, 10m, 2h or 1h30m")
        return value

    @property
    def seconds(self) -> float:
        return seconds_of(self.budget or "10m")

    def words(self) -> list[str]:
        """As flags, those that were given."""
        given = {name: value for name, value in self.model_dump(exclude_none=True).items() if value != ()}
        pairs = [(f"--{n}", ",".join(v) if isinstance(v, tuple) else str(v)) for n, v in given.items()]
        return [word for pair in pairs for word in pair]


def seconds_of(text: str) -> float:
    """90s, 10m, 2h, 1h30m; 0 for anything else."""
    if not re.fullmatch(r"(\d+(\.\d+)?[hms])+", text):
        return 0.0
    sizes = {"h": 3600, "m": 60, "s": 1}
    return sum(float(number) * sizes[unit] for number, unit in re.findall(r"([\d.]+)([hms])", text))


class Bench(BaseModel):
    """What `seqloom bench` times; of everything that is a list, every combination."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    cells: tuple[str, ...] = ("attn_rnn", "gru", "lstm")
    """Cells, separated by commas: registered names, or path/to/file.py:MyCell."""
    kernels: tuple[str, ...] = ("auto",)
    """Kernels, separated by commas: backends such as cpu,aten,loop, full names, or auto for the fastest."""
    hidden: tuple[Count, ...] = (64, 128)
    """Hidden sizes, which are the input sizes too."""
    batch: tuple[Count, ...] = (1, 32)
    """Batch sizes."""
    length: tuple[Count, ...] = (128,)
    """Time steps."""
    dtype: tuple[Literal["float32", "float64", "bfloat16", "float16", "tf32"], ...] = ("float32",)
    """Types of weights and input; tf32 is float32 whose products on a GPU may see 19 of its bits."""
    threads: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = (1,)
    """Threads that torch may use."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the layers run."""
    ragged: bool = False
    """Rows of different lengths, evenly from the longest to a single step."""
    rounds: Count = 5
    """Times that every layer has its turn; the fastest counts."""
    plot: Path | None = None
    """A picture of it, too: a file that ends in .svg, .png or .pdf."""

    @field_validator("plot")
    @classmethod
    def _drawable(cls, value: Path | None) -> Path | None:
        if value is not None and value.suffix not in (".svg", ".png", ".pdf"):
            raise UserError(f"a picture ends in .svg, .png or .pdf, got {value.name!r}")
        if value is not None and not value.absolute().parent.is_dir():
            raise UserError(f"there is no folder {value.parent}")
        return value

    @field_validator("cells", "kernels", "hidden", "batch", "length", "dtype", "threads", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Take "64,128" apart, and name nothing twice."""
        given = value if isinstance(value, (list, tuple)) else [value]
        parts = dict.fromkeys(part.strip() for one in given for part in str(one).split(",") if part.strip())
        if not parts:
            raise UserError("name at least one")
        return tuple(parts)

    @model_validator(mode="after")
    def _known_there(self) -> Bench:
        if self.device == "cpu" and "tf32" in self.dtype:
            raise UserError("tf32 is a way of GPUs to multiply; use --dtype float32, or --device cuda")
        return self

    def words(self, field: str) -> str:
        """The values of a list, as a flag takes them."""
        return ",".join(str(value) for value in getattr(self, field))

    def command(self) -> str:
        """The command line that takes the same times, defaults written out."""
        words = ["seqloom", "bench"]
        for name, value in self.model_dump(exclude={"ragged", "plot"}).items():
            words += [f"--{name}", self.words(name) if isinstance(value, tuple) else str(value)]
        return shlex.join([*words, "--ragged"] if self.ragged else words)
