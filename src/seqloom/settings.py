"""The settings of a study: one flat, validated record, which is also the flags and the JSON."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Count = Annotated[int, Field(ge=1)]


class Compare(BaseModel):
    """What `seqloom compare` trains, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    models: tuple[str, ...] = ("rnn", "lstm", "gru", "attn_rnn", "ln_gru", "min_gru")
    """Cells, separated by commas: registered names, or path/to/file.py:MyCell."""
    reading: Literal["rows", "pixels"] = "rows"
    """How an image becomes a sequence: 8 steps of 8 features, or 64 steps of 1."""
    seeds: Count = 5
    """Trainings of each model, with seeds 0, 1, 2, ..."""
    epochs: Count = 20
    """Passes over the training images; the best one is chosen on the validation images."""
    parameters: Annotated[int, Field(ge=1, le=10_000_000)] = 10_000
    """About how many parameters each model gets; its hidden size follows."""
    hidden: Annotated[int, Field(ge=1, le=4096)] | None = None
    """One hidden size for all models, in place of a number of parameters."""
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.01
    """Adam's learning rate at its highest, the same for every model."""
    batch: Count = 64
    """Images in a training step."""

    @field_validator("models", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Take "gru,lstm" apart, and name no model twice."""
        given = [value] if isinstance(value, str) else value
        names = dict.fromkeys(name.strip() for part in given for name in part.split(","))
        names.pop("", None)
        if not names:
            raise ValueError("name at least one model")
        return tuple(names)

    def command(self) -> str:
        """The command line that makes the same study, defaults written out."""
        words = ["seqloom", "compare"]
        for name, value in self.model_dump(exclude_none=True).items():
            words += [f"--{name}", ",".join(value) if isinstance(value, tuple) else str(value)]
        return shlex.join(words)


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
    dtype: tuple[Literal["float32", "float64", "bfloat16", "float16"], ...] = ("float32",)
    """Types of weights and input."""
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
            raise ValueError(f"a picture ends in .svg, .png or .pdf, got {value.name!r}")
        if value is not None and not value.absolute().parent.is_dir():
            raise ValueError(f"there is no folder {value.parent}")
        return value

    @field_validator("cells", "kernels", "hidden", "batch", "length", "dtype", "threads", mode="before")
    @classmethod
    def _split(cls, value: Any) -> Any:
        """Take "64,128" apart, and name nothing twice."""
        given = value if isinstance(value, (list, tuple)) else [value]
        parts = dict.fromkeys(part.strip() for one in given for part in str(one).split(",") if part.strip())
        if not parts:
            raise ValueError("name at least one")
        return tuple(parts)

    def words(self, field: str) -> str:
        """The values of a list, as a flag takes them."""
        return ",".join(str(value) for value in getattr(self, field))

    def command(self) -> str:
        """The command line that takes the same times, defaults written out."""
        words = ["seqloom", "bench"]
        for name, value in self.model_dump(exclude={"ragged", "plot"}).items():
            words += [f"--{name}", self.words(name) if isinstance(value, tuple) else str(value)]
        return shlex.join([*words, "--ragged"] if self.ragged else words)
