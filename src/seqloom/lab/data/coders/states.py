"""A saved coder, made again."""

from __future__ import annotations

from typing import Any

from pydantic import validate_call

from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import LabelCoder
from seqloom.lab.data.coders.series import SeriesCoder, ValuesCoder
from seqloom.lab.data.coders.subwords import SubwordCoder
from seqloom.lab.data.coders.text import TextCoder
from seqloom.lab.data.coders.times import TimesCoder

CODERS: dict[str, Any] = {
    "text": TextCoder,
    "subwords": SubwordCoder,
    "labels": LabelCoder,
    "series": SeriesCoder,
    "values": ValuesCoder,
    "audio": AudioCoder,
    "times": TimesCoder,
}


def restore(state: dict[str, Any] | None) -> Any:
    """The coder whose `state()` this was; None for None."""
    if state is None:
        return None
    rest = dict(state)
    made = object.__new__(CODERS[rest.pop("coder")])
    validate_call(type(made).__init__)(made, **rest)  # the types of what a file says
    return made
