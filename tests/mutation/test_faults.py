"""Which faults are planted, and where."""

import ast
import subprocess
import textwrap

import pytest

from mutation.faults import find_faults_of
from mutation.line_map import LineMap
from mutation.workspace import Workspace

FAULTS = {
    "x = a < b": "x = (a <= b)",
    "x = a == b": "x = (a != b)",
    "x = a is None": "x = (a is not None)",
    "x = a not in b": "x = (a in b)",
    "x = a and b": "x = (a or b)",
    "x = a - b": "x = (a + b)",
    "x = a // b": "x = (a * b)",
    "x = not a": "x = a",
    "x = -a": "x = a",
    "x = 3": "x = 4",
    "x = True": "x = False",
    "x = 0.5": "x = 1.0",
    "x += a": "x -= a",
    "f(a)": "pass",
    "x.y = a": "pass",
    "x = [a for a in b if f(a)]": "x = [a for a in b if (not f(a))]",
    "x = a if f() else b": "x = a if (not f()) else b",
    "def f(a):\n    return a": "def f(a):\n    return None",
    "def f(a):\n    raise ValueError(3)": "def f(a):\n    pass",
    "for x in a:\n    break": "for x in a:\n    continue",
    "x = 'ä' + f(1)": "x = 'ä' + f(2)",
}


@pytest.mark.parametrize(("before", "after"), FAULTS.items(), ids=FAULTS)
def test_a_fault_changes_one_operator_value_or_statement(before, after):
    (fault,) = find_faults_of("file.py", before)
    assert fault.plant(before) == after


NO_FAULTS = {
    "docstring": '"""Say 1 + 1."""',
    "annotation": "def f(a: Literal[1] | None) -> Literal[2]: pass",
    "annotated name": "x: Literal[1]",
    "message": "if (yes):\n    assert a, 'not a' + 1",
    "types": "if TYPE_CHECKING:\n    x = 1 + 2",
    "overload": "@overload\ndef f(a=1): ...",
    "protocol": "class P(Protocol):\n    a = 1",
    "marked": "x = f(1)  # type: ignore[arg-type]",
    "format": "x = f'{a + b:.3f}'",
    "check of lengths": "x = zip(a, b, strict=True)",
    "exports": "__all__ = [*a, 1]",
}


@pytest.mark.parametrize("text", NO_FAULTS.values(), ids=NO_FAULTS)
def test_what_only_a_reader_or_a_type_checker_sees_is_left_alone(text):
    assert [f for f in find_faults_of("file.py", text) if f.kind != "condition"] == []


def test_a_fault_is_not_planted_where_the_text_has_changed():
    (fault,) = find_faults_of("file.py", "x = a < b")
    with pytest.raises(ValueError, match="is not 'a < b' any more"):
        fault.plant("y = 1\nx = a < b")


def test_every_fault_of_a_file_is_python_and_no_two_are_the_same():
    text = textwrap.dedent(
        """
        def f(a, b=2, *, c=-1):
            while a and not b:
                if a > (b or c) * 2 + 1:
                    continue
                a -= g(b, key=lambda x: x + 1)
            with open(a) as file:
                return [x / 2 for x in file if x]
        """
    )
    planted = [fault.plant(text) for fault in find_faults_of("file.py", text)]
    assert len(planted) == len(set(planted)) == 19
    assert all(ast.parse(each) for each in planted)


def test_a_workspace_has_the_fault_only_inside_the_block_and_the_checkout_never(tmp_path):
    checkout = tmp_path / "checkout"
    file = checkout / "src" / "seqloom" / "core" / "a.py"
    for folder in ("src/seqloom/core", "src/seqloom/lib", "tests"):
        (checkout / folder).mkdir(parents=True)
    file.write_text("x = 1\n")
    subprocess.run(["git", "init", "--quiet", checkout], check=True)
    workspace = Workspace(checkout, tmp_path / "work")
    (fault,) = find_faults_of("src/seqloom/core/a.py", "x = 1\n")
    copy = workspace.root / fault.file
    with workspace.plant(fault):
        assert (copy.read_text(), file.read_text()) == ("x = 2\n", "x = 1\n")
    assert copy.read_text() == "x = 1\n"


def test_the_tests_of_a_line_are_those_that_run_it():
    line_map = LineMap({"a": {"f.py": 0b0110}, "b": {"f.py": 0b0100}, "c": {"g.py": 0b0100}}, {})
    assert line_map.find_tests("f.py", 1 << 1) == ["a"]
    assert line_map.find_tests("f.py", 1 << 2) == ["a", "b"]
    assert line_map.find_tests("f.py", 1 << 3) == []
