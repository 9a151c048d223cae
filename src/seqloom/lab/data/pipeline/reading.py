"""How a person's own file is to be read: one flat, validated record, all of it optional."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.data.task import Kind

Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, lt=1)]
Unit = Literal["auto", "words", "characters", "bytes", "bpe", "unigram"]


class Reading(BaseModel):
    """What `open_task` takes beside the path. What is not said is inferred from the data."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input: tuple[str, ...] = ()
    """Column that goes in; several columns of numbers, separated by commas."""
    target: tuple[str, ...] = ()
    """Column that comes out; several columns of numbers, separated by commas."""
    group: str | None = None
    """Column whose rows belong together: never on two sides of a split; one series of a long table."""
    time: str | None = None
    """Column of time stamps: rows are ordered by it, and later rows are tested on."""
    kind: Kind | None = None
    """classify, regress, tag, generate, translate, forecast or transcribe."""
    split: str | None = None
    """Column that says train, valid or test."""
    header: bool | None = None
    """Whether the first line of a table holds column names."""
    lines: bool = False
    """A plain text is one example a line, instead of one long text."""

    unpacked_gib: Annotated[float, Field(gt=0)] = 16.0
    """The most that packed files (.gz, .xz, .bz2, .zst, .npz) may unpack to, in GiB; also 1,000 times their size."""

    unit: Unit = "auto"
    """What text is taken apart into."""
    vocabulary: Annotated[int, Field(ge=5)] = 20_000
    """Most different units, the four special ones included."""
    min_count: Count = 2
    """A word seen less often in training is unknown."""
    lowercase: bool | None = None
    """Whether case is dropped; by default for words alone."""
    limit: Count = 5_000
    """Steps after which a sequence is cut, with a warning."""
    mels: Count = 40
    """Frequency bands of a recording, 100 times a second."""

    lookback: Count = 336
    """Steps that a forecast sees; the piece of a long text that is read at once."""
    horizon: Count = 96
    """Steps that are forecast."""
    borders: Annotated[str, Field(pattern=r"^(auto|ett|\d+(\.\d+)?/\d+(\.\d+)?/\d+(\.\d+)?)$")] = "auto"
    """Where a table is cut in time: ett (12, 4 and 4 months), or shares or rows such as 70/10/20."""

    valid: Share = 0.1
    """Share of examples held out for validation where no such split is given; by default 10,000 at most."""
    test: Share = 0.1
    """Share of examples held out for testing where no such split is given; by default 10,000 at most."""
    split_seed: int = 0
    """Which random split."""
    near_duplicates: bool = True
    """Texts that are nearly the same stay on one side of a split that is made."""

    @field_validator("input", "target", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        """Take "a,b" apart."""
        if value is None:
            return ()
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)


def reading(**options: Any) -> Reading:
    """A checked record, or one line that says which option is wrong."""
    for name in options:
        if name not in Reading.model_fields:
            hint = suggest(name, Reading.model_fields) or f"there are {', '.join(Reading.model_fields)}"
            raise UserError(f"no option {name!r}: {hint}")
    try:
        return Reading(**options)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"option {'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}") from None
