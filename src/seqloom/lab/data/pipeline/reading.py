"""Options for reading a user's file: one flat, validated record in which everything is optional."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from seqloom.core.errors import UserError
from seqloom.core.suggest import suggest
from seqloom.lab.kinds.forms import Form, Kind, form_of

Count = Annotated[int, Field(ge=1, lt=2**31)]
Share = Annotated[float, Field(gt=0, lt=1)]
Unit = Literal["auto", "words", "characters", "bytes", "bpe", "unigram"]


class Reading(BaseModel):
    """The options of `open_task` for files. Options that are not set are inferred from the data."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    input: tuple[str, ...] = ()
    """Input column; several, also of different kinds, are separated by commas."""
    target: tuple[str, ...] = ()
    """Column to predict; several columns of numbers are separated by commas."""
    known: tuple[str, ...] = ()
    """Inputs of a forecast whose future is known, such as promotions or holidays, separated by commas."""
    group: str | None = None
    """Column that groups rows: a group is never divided by a split, and is one series of a long table."""
    time: str | None = None
    """Column of time stamps: rows are sorted by it, and the latest are held out for testing."""
    kind: Kind | None = None
    """classify, multilabel, regress, tag, generate, translate, forecast, transcribe or pairs."""
    split: str | None = None
    """Column that assigns each row to train, valid or test."""
    rows: Count | None = None
    """Use only this many rows of each file, drawn at random; of a table in time, the latest ones of each series."""
    header: bool | None = None
    """Whether the first line of a table holds the column names."""
    sheet: str | None = None
    """Sheet of a workbook, by its name or number; by default the first."""
    encoding: str | None = None
    """Encoding of text files that are neither UTF-8 nor marked as UTF-16, such as cp1252."""
    lines: bool = False
    """Read a plain text file as one example per line instead of one long text."""

    unpacked_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 16.0
    """Largest unpacked size of compressed files in GiB; above 16, also over 1,000 times the file's size."""

    unit: Unit = "auto"
    """Unit into which text is split."""
    vocabulary: Annotated[int, Field(ge=5, lt=2**31)] = 20_000
    """Largest vocabulary, including the four special tokens."""
    min_count: Count = 2
    """Words that occur less often in training are treated as unknown."""
    lowercase: bool | None = None
    """Whether to convert text to lower case; by default only for words in classification and regression."""
    limit: Count = 5_000
    """Longest sequence in steps; longer ones are cut, with a warning."""
    mels: Count = 40
    """Mel frequency bands of a recording, computed 100 times a second."""

    merge_labels: bool = True
    """Treat class names that differ only by case or blanks as one class."""

    lookback: Count = 336
    """Steps that a forecast sees; length of the pieces in which a long text is read."""
    horizon: Count = 96
    """Steps to forecast."""
    borders: Annotated[str, Field(pattern=r"^(auto|ett|\d+(\.\d+)?/\d+(\.\d+)?/\d+(\.\d+)?)$")] = "auto"
    """Where a table is split in time: ett (12, 4 and 4 months), or shares or rows such as 70/10/20."""

    valid: Share = 0.1
    """Share of examples held out for validation if the data have no such split; by default at most 10,000 examples."""
    test: Share = 0.1
    """Share of examples held out for testing if the data have no such split; by default at most 10,000 examples."""
    fold: Annotated[str, Field(pattern=r"^\d+/\d+$")] | None = None
    """Test on one of several parts of the rows instead of a random share: 2/5 is the second of five."""
    valid_part: Annotated[str, Field(pattern=r"^\d+/\d+$")] | None = None
    """Validate on one of several parts of the rows that are not for testing instead of a random share: 2/5."""
    split_seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] = 0
    """Seed of the random split."""
    near_duplicates: bool = True
    """Keep texts that are nearly the same on one side of a random split."""

    @property
    def form(self) -> Form:
        """Hints about the requested kind of task."""
        return form_of(self.kind)

    @field_validator("encoding")
    @classmethod
    def _check_encoding(cls, value: str | None) -> str | None:
        try:
            if value is not None:
                codecs.lookup(value)
        except LookupError:
            raise ValueError("unknown encoding; examples are cp1252, latin-1, utf-16, gb18030, shift_jis") from None
        return value

    @field_validator("input", "target", "known", mode="before")
    @classmethod
    def _split_names(cls, value: str | Iterable[str] | None) -> tuple[str, ...]:
        """Split "a,b" into two names."""
        if value is None:
            return ()
        return tuple(name.strip() for name in value.split(",")) if isinstance(value, str) else tuple(value)


def make_reading(**options: object) -> Reading:
    """Validate options; a mistake raises a UserError of one line that names the option."""
    for name in options:
        if name not in Reading.model_fields:
            hint = suggest(name, Reading.model_fields) or f"the options are {', '.join(Reading.model_fields)}"
            raise UserError(f"no option {name!r}: {hint}")
    try:
        return Reading.model_validate(options)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(f"option {'.'.join(map(str, first['loc']))}={first['input']!r}: {first['msg']}") from None
