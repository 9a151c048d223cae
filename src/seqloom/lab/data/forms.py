"""What reading a file must know of each kind of task: one hint for each; all else is in `lab.kinds`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from seqloom.lab.data.names import Kind

INPUTS = ("text", "tokens", "series", "audio")
SEQUENCE = "a text, a list of tokens, a series or a recording"


@dataclass(frozen=True)
class Form:
    """The columns and the targets of a kind of task.

    Attributes:
        target: What a target is: a class, labels or numbers of a row, a tag of each step, a text, the series itself
            or the next token of the input.
        needs: What the columns must be, for messages.
        roles: The roles of an input and a target column that make such a task.
        rank: Which kind is chosen if columns allow several: the lowest.
        is_translated: Whether input and target are texts with lengths of their own.
    """

    target: Literal["class", "labels", "numbers", "tags", "text", "series", "next"]
    needs: str
    roles: tuple[tuple[str, str], ...] = ()
    rank: int = 0
    is_translated: bool = False

    @property
    def is_per_row(self) -> bool:
        """Whether a row has a target of its own."""
        return self.target in ("class", "labels", "numbers")


FORMS: dict[Kind, Form] = {
    "classify": Form(
        "class",
        f"needs {SEQUENCE}, or columns of numbers, and a target with one label for each of them",
        tuple((i, "label") for i in INPUTS),
    ),
    "multilabel": Form(
        "labels",
        f"needs {SEQUENCE}, and a target with a list of labels, or a text such as a|b, for each of them",
        tuple((i, "labels") for i in INPUTS),
        rank=1,
    ),
    "regress": Form(
        "numbers",
        f"needs {SEQUENCE}, and a target with a number for each of them",
        tuple((i, "number") for i in INPUTS),
    ),
    "tag": Form(
        "tags",
        "needs a list of tokens or numbers and a list of as many labels, or a table with a label in each row",
        (("tokens", "tags"), ("series", "tags")),
    ),
    "generate": Form("next", "needs a text, and has no other target", rank=2),
    "translate": Form(
        "text",
        "needs a text as input and a text as target",
        (("text", "text"), ("tokens", "tokens")),
        is_translated=True,
    ),
    "forecast": Form("series", "needs columns of numbers in time, and the target among them", rank=1),
    "transcribe": Form(
        "text",
        "needs a recording or a series as input and a text as target",
        tuple((i, o) for i in ("audio", "series") for o in ("text", "tokens")),
    ),
}
