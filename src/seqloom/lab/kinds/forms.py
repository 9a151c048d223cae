"""What reading a file must know of each kind of task: one hint for each; all else is in the file of the kind.

`lab.data` imports this module, which therefore imports nothing of the lab and needs no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol, get_args

Kind = Literal["classify", "multilabel", "regress", "tag", "generate", "translate", "forecast", "transcribe", "pairs"]
# What a target is: a class, labels or numbers of a row, a tag of each step, a text, the series itself, or the next
# token of the input.
Target = Literal["class", "labels", "numbers", "tags", "text", "series", "next"]

INPUTS = ("text", "tokens", "series", "audio")
SEQUENCE = "a text, a list of tokens, a series or a recording"
# Names of columns that say that they are the target.
TARGETS = ("label", "labels", "target", "class", "y", "output", "sentiment", "category", "tag", "tags")
MOST_LABELS = 200  # a list of names with more distinct ones is a target only if it is named


class ColumnFacts(Protocol):
    """What a form asks of a column; see `data.task.Column`."""

    @property
    def role(self) -> str: ...

    @property
    def distinct(self) -> int: ...

    @property
    def is_numeric(self) -> bool: ...


@dataclass(frozen=True)
class Form:
    """The columns and the targets of a kind of task."""

    target: Target | None  # what a target is; None if no kind was asked for
    needs: str  # what the columns must be, for messages
    roles: tuple[tuple[str, str], ...] = ()  # the roles of an input and a target column that make such a task
    asked: tuple[str, ...] = ()  # the roles of columns that are also a target if this kind is asked for
    # The roles of columns that are also a target if this kind is asked for and the column is named.
    named: tuple[str, ...] = ()
    rank: int = 0  # which kind is chosen if columns allow several: the lowest
    is_translated: bool = False  # whether input and target are texts with lengths of their own
    reads_groups: bool = False  # whether a group of rows of a table may be one example
    inputs: int = 1  # how many sequences of a row are compared with each other
    verb: str = ""  # what the kind does if its name is no verb, for messages

    @property
    def is_per_row(self) -> bool:
        """Whether a row has a target of its own."""
        return self.target in ("class", "labels", "numbers")

    def list_target_roles(self, column: ColumnFacts, is_named: bool) -> list[str]:
        """List the roles that a column may have as the target if this kind is asked for."""
        is_number = self.target == "numbers" and column.is_numeric
        if is_number or column.role in self.asked or (is_named and column.role in self.named):
            return [self.roles[0][1]]
        return [column.role]


@dataclass(frozen=True)
class AnyForm(Form):
    """The form if no kind is requested: a repeated name or a list of names is a target on request."""

    def list_target_roles(self, column: ColumnFacts, is_named: bool) -> list[str]:
        """List the roles that a column may have as the target."""
        if is_named and column.role in ("category", "id", "constant"):
            return [column.role, "label"]
        if column.role == "tokens" and (is_named or column.distinct <= MOST_LABELS):
            return [column.role, "labels"]
        return [column.role]


FORMS: Mapping[Kind, Form] = {
    "classify": Form(
        "class",
        f"needs {SEQUENCE}, or columns of numbers, and a target with one label for each of them",
        tuple((i, "label") for i in INPUTS),
        named=("category", "id", "number", "text", "constant", "time"),
        reads_groups=True,
    ),
    "multilabel": Form(
        "labels",
        f"needs {SEQUENCE}, and a target with a list of labels, or a text such as a|b, for each of them",
        tuple((i, "labels") for i in INPUTS),
        asked=("tokens", "tags", "label", "category"),
        named=("series", "text", "id"),
        rank=1,
    ),
    "regress": Form(
        "numbers",
        f"needs {SEQUENCE}, and a target with a number for each of them",
        tuple((i, "number") for i in INPUTS),
        reads_groups=True,
    ),
    "tag": Form(
        "tags",
        "needs a list of tokens or numbers and a list of as many labels, or a table with a label in each row",
        (("tokens", "tags"), ("series", "tags")),
        named=("tokens", "series"),
        reads_groups=True,
    ),
    "generate": Form("next", "needs a text, and has no other target", rank=2),
    "translate": Form(
        "text",
        "needs a text as input and a text as target",
        (("text", "text"), ("tokens", "tokens")),
        named=("label", "category", "id", "constant"),
        is_translated=True,
    ),
    "forecast": Form("series", "needs columns of numbers in time, and the target among them", rank=1),
    "transcribe": Form(
        "text",
        "needs a recording or a series as input and a text as target",
        tuple((i, o) for i in ("audio", "series") for o in ("text", "tokens")),
        asked=("label", "category"),
        named=("id", "constant"),
    ),
    "pairs": Form(
        "class",
        "needs two columns of text as input, and a target with one label for each pair",
        (("text", "label"),),
        named=("category", "id", "number", "text", "constant"),
        inputs=2,
        verb="compare pairs",
    ),
}
ANY = AnyForm(None, "", reads_groups=True)
KINDS: tuple[str, ...] = get_args(Kind)


def form_of(kind: Kind | None) -> Form:
    """Return the form of a kind; `ANY` if none was asked for."""
    return ANY if kind is None else FORMS[kind]


def describe_kind(kind: Kind) -> str:
    """Return what a kind does, to follow "to" in a message."""
    return FORMS[kind].verb or kind


def find_kind(target: Target) -> Kind:
    """Return the first kind with such targets."""
    return next(kind for kind, form in FORMS.items() if form.target == target)
