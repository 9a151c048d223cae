"""The JSON format of a run's rows and stream steps: checks, a schema and examples.

A row has the columns that `seqloom predict` reads, or is the input itself if there is one column.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from seqloom.lab.data.coders.audio import AudioCoder
from seqloom.lab.data.coders.labels import StepSetCoder
from seqloom.lab.data.coders.series import SeriesCoder
from seqloom.lab.data.coders.table import TableCoder
from seqloom.lab.data.coders.text import JoinedTextCoder
from seqloom.lab.data.pipeline.windows import WindowsTask
from seqloom.lab.data.task import Task, Tokens
from seqloom.lab.web.problems import explain_invalid

LETTERS_PER_STEP = 20  # longest word that the limit on texts allows for, on average
LONGEST_EXAMPLE = 8  # steps of the past of a forecast
HIGHEST_RATE = 384_000  # Hz, of a recording
WIDE = "value"  # the column of a step of a run whose columns are the steps
NUMBERS = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Name = Annotated[str, Field(strict=True, max_length=10_000)]
Stamp = Name | Number
Json = Any


@dataclass(frozen=True)
class _Shape:
    """The columns of a row by name, and their types in rows and steps."""

    columns: dict[str, Any]
    steps: dict[str, Any]  # empty if a run of this input has no streams
    examples: dict[str, Any]
    optional: frozenset[str] = field(default_factory=frozenset)


class RowFormat:
    """The rows and steps that a run reads.

    Attributes:
        columns: The names of the columns that a row must have.
        example: A row that the run accepts.
        step_example: A step that a stream of the run accepts; None if it has no streams.
    """

    def __init__(self, task: Task, max_rows: int, max_steps: int) -> None:
        shape = _describe(task, max_steps)
        self._optional = shape.optional
        self.columns = [name for name in shape.columns if name not in shape.optional]
        self.example = {name: value for name, value in shape.examples.items() if name in shape.columns}
        self._rows, self._plain_row = self._make_adapters("Row", shape.columns, max_rows)
        self._steps = self._any_steps = self._plain_step = None
        self.step_example: Json = None
        if shape.steps:
            self._steps, self._plain_step = self._make_adapters("Step", shape.steps, max_rows)
            self._any_steps, _ = self._make_adapters("Step", shape.steps, sys.maxsize)
            named = {name: _first(shape.examples[name]) for name in shape.steps if name in shape.examples}
            self.step_example = {name: value for name, value in named.items() if name not in shape.optional}
        self._reads_letters = getattr(task.input, "unit", "") in ("characters", "bytes")
        coder = getattr(task.encoding, "x", None)
        self._samples = max(1, coder.rate // 100) if isinstance(coder, AudioCoder) else 1  # values of one time step
        self._column = self.columns[0] if len(self.columns) == 1 else None
        self._step_column = next(iter(shape.steps)) if len(shape.steps) == 1 else None
        if task.encoding is None:  # a built-in task has no columns
            self.example, self.step_example = shape.examples["input"], _first(shape.examples["input"])

    def _make_adapters(
        self, name: str, columns: dict[str, Any], most: int
    ) -> tuple[TypeAdapter[Any], TypeAdapter[Any] | None]:
        """Return the validator of a list of objects, and the type of an input if there is one column."""
        fields = {n: NotRequired[kind] if n in self._optional else kind for n, kind in columns.items()}
        row: Any = TypedDict(name, fields)  # type: ignore[misc]
        required = [kind for n, kind in columns.items() if n not in self._optional]
        plain = TypeAdapter(required[0]) if len(required) == 1 else None
        return TypeAdapter(Annotated[list[row], Field(max_length=most)]), plain

    def check_rows(self, rows: list[Any]) -> list[Any]:
        """Return rows as objects of columns that the run can read.

        Raises:
            RequestError: 422 if a value has the wrong type, 413 if there are too many or too long ones.
        """
        return self._check(rows, self._rows, self._column, "rows")

    def check_steps(self, steps: list[Any], of_one: bool = True) -> list[Any]:
        """Return steps of a stream as objects of columns; raises as `check_rows` does.

        Args:
            steps: The steps.
            of_one: Whether they belong to one stream, so that their number is limited.
        """
        adapter = self._steps if of_one else self._any_steps
        assert adapter is not None
        return self._check(steps, adapter, self._step_column, "steps")

    def _check(self, values: list[Any], adapter: TypeAdapter[Any], column: str | None, what: str) -> list[Any]:
        if column is not None:
            values = [value if isinstance(value, dict) else {column: value} for value in values]
        try:
            checked: list[Any] = adapter.validate_python(values)
        except ValidationError as error:
            raise explain_invalid(error, what) from None
        return checked

    def count_steps(self, row: dict[str, Any]) -> int:
        """Return the approximate number of time steps in a checked row or a step of a stream; a word is one."""
        return max(len(row), *(self._count(value) for value in row.values()))

    def _count(self, value: Json) -> int:
        if isinstance(value, list):
            return len(value) // self._samples
        if not isinstance(value, str):
            return 1
        return len(value) if self._reads_letters else max(value.count(" "), len(value) // LETTERS_PER_STEP) + 1

    def build_schema(self, of_steps: bool = False) -> dict[str, Any]:
        """Return the JSON schema of a list of rows, or of steps: objects, or inputs if there is one column."""
        adapter, plain = (self._steps, self._plain_step) if of_steps else (self._rows, self._plain_row)
        assert adapter is not None
        schema = _inline(adapter.json_schema())
        if plain is not None:
            schema["items"] = {"anyOf": [schema["items"], _inline(plain.json_schema())]}
        return schema


def _inline(schema: dict[str, Any]) -> dict[str, Any]:
    """Replace references to definitions with the definitions; those of rows are not recursive."""
    definitions = schema.pop("$defs", {})

    def replace(value: Json) -> Json:
        if isinstance(value, dict):
            if "$ref" in value:
                return replace(definitions[value["$ref"].rpartition("/")[2]])
            return {key: replace(one) for key, one in value.items()}
        return [replace(one) for one in value] if isinstance(value, list) else value

    inlined: dict[str, Any] = replace(schema)
    return inlined


def _first(example: Json) -> Json:
    """Return the first step of an example row; of a text, its first word."""
    if isinstance(example, str):
        return example.split()[0] if example.split() else example
    return example[0] if isinstance(example, list) and example else example


def _describe(task: Task, most: int) -> _Shape:
    encoding = task.encoding
    if encoding is None:
        return _describe_built_in(task, most)
    shown = {column.name: column.example for column in task.columns}
    if isinstance(task, WindowsTask):
        return _describe_table(task, most, shown)
    shape = _describe_input(encoding.x, most, shown)
    columns, steps, examples = (dict(part) for part in (shape.columns, shape.steps, shape.examples))
    optional = set(shape.optional)
    if encoding.times is not None:
        columns[encoding.times.column] = _list_of(Stamp, most)
        optional.add(encoding.times.column)
        steps = {}
    if encoding.attributes is not None:
        for name in encoding.attributes.columns:
            is_name = str(encoding.attributes.find_type(name)) == "String"
            columns[name] = (Name | Number | bool | None) if is_name else Number | None
            steps = {**steps, name: columns[name]} if steps else {}
            numbers = NUMBERS.findall(shown.get(name, ""))
            examples[name] = shown.get(name, "") if is_name else float(numbers[0]) if numbers else 0.0
    if task.group is not None and task.group not in columns:
        columns[task.group] = Stamp | None
        optional.add(task.group)
    return _Shape(columns, steps, examples, frozenset(optional))


def _describe_input(coder: Any, most: int, shown: dict[str, str]) -> _Shape:  # noqa: ANN401  # an InputCoder
    if isinstance(coder, SeriesCoder):
        return _describe_series(coder, most, shown)
    if isinstance(coder, AudioCoder):
        samples = most * max(1, coder.rate // 100)
        rate = Annotated[int, Field(strict=True, ge=max(1, coder.rate), le=max(coder.rate, HIGHEST_RATE))]
        columns = {coder.column: _list_of(Number, samples) | None, "rate": rate}
        return _Shape(columns, {}, {coder.column: [0.0] * max(1, coder.rate // 10)}, frozenset({"rate"}))
    if isinstance(coder, StepSetCoder):
        label = Annotated[int, Field(strict=True, ge=-(2**31), lt=2**31)]
        step = Annotated[list[label], Field(max_length=most)]
        known = [int(name) for name in coder.names if re.fullmatch(r"-?\d+", name)][:2]
        return _Shape({coder.column: _list_of(step, most) | None}, {coder.column: step}, {coder.column: [known] * 3})
    if isinstance(coder, JoinedTextCoder):
        text = _text(coder.unit, most)
        return _Shape(dict.fromkeys(coder.columns, text), {}, {name: shown.get(name, "") for name in coder.columns})
    if coder.unit == "tokens":
        words = list(coder.words[:3])
        token = _list_of(Name, most)
        return _Shape({coder.column: token | None}, {coder.column: Name}, {coder.column: words})
    text = _text(coder.unit, most)
    example = shown.get(coder.column, "").removesuffix("...")
    return _Shape({coder.column: text}, {coder.column: text}, {coder.column: example})


def _describe_series(coder: SeriesCoder, most: int, shown: dict[str, str]) -> _Shape:
    value = Number | None
    means = [round(float(m), 3) for m in coder.scale.mean]
    if coder.wide:
        numbers = {name: _find_numbers(shown.get(name, ""), means[0]) for name in coder.columns}
        examples: dict[str, Any] = {name: n[0] for name, n in numbers.items()}
        return _Shape(dict.fromkeys(coder.columns, value), {WIDE: value}, examples | {WIDE: means[0]})
    if len(coder.columns) == 1 and coder.width > 1:
        step = Annotated[list[value], Field(min_length=coder.width, max_length=coder.width)]
        name = coder.columns[0]
        return _Shape({name: _list_of(step, most) | None}, {name: step}, {name: [means[: coder.width]] * 3})
    series = _list_of(value, most) | None
    examples = {
        name: (_find_numbers(shown.get(name, ""), mean) * 3)[:3]
        for name, mean in zip(coder.columns, means, strict=False)
    }
    return _Shape(dict.fromkeys(coder.columns, series), dict.fromkeys(coder.columns, value), examples)


def _describe_table(task: WindowsTask, most: int, shown: dict[str, str]) -> _Shape:
    """Describe the past of a series; columns whose future is known are longer."""
    coder, plan = task.encoding.x, task.encoding.plan
    assert isinstance(coder, TableCoder)
    length = min(task.lookback, LONGEST_EXAMPLE)
    columns: dict[str, Any] = {}
    steps: dict[str, Any] = {}
    examples: dict[str, Any] = {}
    for name in coder.columns:
        value = Name | None if name in coder.categories else Number | None
        columns[name], steps[name] = _list_of(value, most), value
        first: Any = coder.categories[name][0] if coder.categories.get(name) else None
        if name not in coder.categories:
            first = _find_numbers(shown.get(name, ""), 0.0)[0]
        examples[name] = [first] * (length + (task.horizon if name in plan.known else 0))
    optional = set()
    for extra in (plan.time, task.group):
        if extra and extra not in columns:
            columns[extra] = Annotated[list[Stamp], Field(max_length=most)] | Stamp | None
            optional.add(extra)
    return _Shape(columns, {} if plan.known else steps, examples, frozenset(optional))


def _describe_built_in(task: Task, most: int) -> _Shape:
    if isinstance(task.input, Tokens):
        step: Any = Annotated[int, Field(strict=True, ge=0, lt=task.input.size)]
        example: Any = [min(4, task.input.size - 1)] * 3
    else:
        width = task.input.size
        step = Annotated[list[Number], Field(min_length=width, max_length=width)]
        example = [[0.5] * width] * 3
    return _Shape({"input": _list_of(step, most)}, {"input": step}, {"input": example})


def _list_of(kind: Json, most: int) -> Json:
    return Annotated[list[kind], Field(max_length=most)]


def _text(unit: str, most: int) -> Json:
    letters = most if unit in ("characters", "bytes") else most * LETTERS_PER_STEP
    return Annotated[str, Field(strict=True, max_length=letters)] | None


def _find_numbers(text: str, otherwise: float) -> list[float]:
    return [float(number) for number in NUMBERS.findall(text)] or [otherwise]
