"""The settings of a benchmark: one flat, validated record that defines the CLI flags and the JSON."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from seqloom.core.errors import UserError

Count = Annotated[int, Field(ge=1)]


def check_plot(value: Path | None) -> Path | None:
    """Check that a chart can be written to a file, and return it."""
    if value is not None and value.suffix not in (".svg", ".png", ".pdf"):
        raise UserError(f"the file name of a chart must end in .svg, .png or .pdf, got {value.name!r}")
    if value is not None and not value.absolute().parent.is_dir():
        raise UserError(
            f"the chart cannot be written: there is no folder {value.parent}; create it or choose another file"
        )
    return value


def split_values(value: object) -> tuple[str, ...]:
    """Split "64,128" and drop duplicates."""
    values = value if isinstance(value, (list, tuple)) else [value]
    parts = dict.fromkeys(part.strip() for one in values for part in str(one).split(",") if part.strip())
    if not parts:
        raise UserError("name at least one")
    return tuple(parts)


class BenchSettings(BaseModel):
    """Settings of `seqloom bench`; every combination of the listed values is timed."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    cells: tuple[str, ...] = ("attn_rnn", "gru", "lstm")
    """Cells, separated by commas: registered names, or path/to/file.py:MyCell."""
    kernels: tuple[str, ...] = ("auto",)
    """Kernels, separated by commas: backends such as cpu,aten,loop, full names, or auto for the fastest."""
    hidden: tuple[Count, ...] = (64, 128)
    """Hidden sizes; the input size is the same."""
    batch: tuple[Count, ...] = (1, 32)
    """Batch sizes."""
    length: tuple[Count, ...] = (128,)
    """Sequence lengths in time steps."""
    dtype: tuple[Literal["float32", "float64", "bfloat16", "float16", "tf32"], ...] = ("float32",)
    """Types of weights and input; tf32 is float32 with matrix products in TensorFloat-32 on the GPU."""
    threads: tuple[Annotated[int, Field(ge=1, le=1024)], ...] = (1,)
    """Numbers of torch threads."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device that runs the layers."""
    ragged: bool = False
    """Use rows of different lengths, spread evenly from the longest to a single step."""
    rounds: Count = 5
    """Rounds in which every layer is timed; the fastest round counts."""
    plot: Path | None = None
    """Also draw a chart to this file, which must end in .svg, .png or .pdf."""

    _check_plot = field_validator("plot")(check_plot)
    _split_values = field_validator("cells", "kernels", "hidden", "batch", "length", "dtype", "threads", mode="before")(
        split_values
    )

    @model_validator(mode="after")
    def _check_dtype(self) -> BenchSettings:
        if self.device == "cpu" and "tf32" in self.dtype:
            raise UserError("tf32 works on GPUs only; use --dtype float32 or --device cuda")
        return self

    def join(self, field: str) -> str:
        """Return the values of a list as its flag takes them: "64,128"."""
        return ",".join(str(value) for value in getattr(self, field))

    def command(self) -> str:
        """Return the command line that repeats this benchmark, with all defaults written out."""
        words = ["seqloom", "bench"]
        for name, value in self.model_dump(exclude={"ragged", "plot"}).items():
            words += [f"--{name}", self.join(name) if isinstance(value, tuple) else str(value)]
        return shlex.join([*words, "--ragged"] if self.ragged else words)
