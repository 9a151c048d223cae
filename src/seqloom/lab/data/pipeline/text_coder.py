"""The coder of a text column: words, characters or subwords."""

from __future__ import annotations

from seqloom.lab.data.coders.subwords import SubwordCoder
from seqloom.lab.data.coders.text import TextCoder, guess_unit
from seqloom.lab.data.pipeline.reading import Reading
from seqloom.lab.data.pipeline.source import Source
from seqloom.lab.data.task import Notes
from seqloom.lab.kinds.forms import FORMS, Kind

SAMPLE_ROWS = 2_000  # rows of a text column from which its unit is guessed


def make_text_coder(
    source: Source, column: str, kind: Kind, options: Reading, notes: Notes, end: bool
) -> TextCoder | SubwordCoder:
    """Create a coder for a text column, with the unit from the options or a guess."""
    sample = source.frame().select(column).head(SAMPLE_ROWS).collect().to_series()
    lower, form = options.lowercase, FORMS[kind]
    if sample.dtype.is_nested():
        return TextCoder(column, "tokens", options.vocabulary, options.min_count, bool(lower), end)
    unit: str = options.unit
    if unit == "auto":
        is_spoken = form.target == "text" and not form.is_translated
        unit = "characters" if is_spoken or source.stream else guess_unit(sample)
        notes.say(f"{column!r} is split into {unit}; choose another unit with unit=...")
    if unit in ("bpe", "unigram"):
        return SubwordCoder(column, unit, options.vocabulary, bool(lower), end)
    if lower is None:
        lower = unit == "words" and form.is_per_row
    min_count = options.min_count if unit == "words" else 1
    return TextCoder(column, unit, options.vocabulary, min_count, lower, end)
