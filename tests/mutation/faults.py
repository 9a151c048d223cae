"""Find the places in a source file where a small fault can be planted, and plant it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("core", "kernels", "compiler", "layers", "models", "attention", "lab")

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitOr,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
# Values of these assignments are types, which nothing but a type checker reads.
TYPE_MAKERS = {"TypeVar", "ParamSpec", "NewType", "TypeAliasType"}
# Nodes whose children carry no behaviour that a test should pin: messages, checks of the code by itself, and in
# f-strings Python before 3.12 does not know where an expression stands.
SKIPPED = (ast.Assert, ast.JoinedStr)


@dataclass(frozen=True)
class Fault:
    """One small change of one file.

    Attributes:
        file: The file, relative to the checkout.
        line: The line of the changed node, counted from 1.
        column: Its column in characters, counted from 0.
        end_line, end_column: Where the node ends.
        statement: The first line of the statement that contains it.
        function: The first and last line of the body of the function around it; None at the top of a module or class.
        kind: What is changed, such as "comparison".
        before, after: The text of the node, and what replaces it.
    """

    file: str
    line: int
    column: int
    end_line: int
    end_column: int
    statement: int
    function: tuple[int, int] | None
    kind: str
    before: str
    after: str

    def plant(self, text: str) -> str:
        """Return the text of the file with the fault.

        Raises:
            ValueError: If the text at the fault's place is not the one before it, or the result is not Python.
        """
        lines = text.splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        end = sum(map(len, lines[: self.end_line - 1])) + self.end_column
        if text[start:end] != self.before:
            raise ValueError(f"{self.file}:{self.line} is not {self.before!r} any more")
        planted = text[:start] + self.after + text[end:]
        if ast.dump(ast.parse(planted)) == ast.dump(ast.parse(text)):
            raise ValueError(f"{self.file}:{self.line}: {self.before!r} -> {self.after!r} changes nothing")
        return planted

    def describe(self) -> str:
        """Return the place and the change on one line."""
        before, after = (" ".join(part.split()) for part in (self.before, self.after))
        return f"{self.file}:{self.line}  {shorten(before)} -> {shorten(after)}"


def shorten(text: str, width: int = 60) -> str:
    return text if len(text) <= width else f"{text[: width - 20]} ... {text[-15:]}"


def list_sources(root: Path) -> list[str]:
    """Return the files that faults are planted in, relative to the checkout, sorted."""
    package = root / "src" / "seqloom"
    files = [file.relative_to(package).as_posix() for folder in FOLDERS for file in (package / folder).rglob("*.py")]
    return [f"src/seqloom/{file}" for file in sorted(files)]


def find_faults(root: Path) -> list[Fault]:
    """Return every fault that can be planted, in the order of the files and their lines."""
    return [fault for file in list_sources(root) for fault in find_faults_of(file, (root / file).read_text())]


def find_faults_of(file: str, text: str) -> list[Fault]:
    """Return the faults of one file."""
    typed = {number for number, line in enumerate(text.splitlines(), 1) if "# type:" in line}
    return [fault for fault in _Finder(file, text).find() if fault.line not in typed]


class _Finder:
    def __init__(self, file: str, text: str) -> None:
        self.file = file
        self.tree = ast.parse(text)
        self.lines = text.splitlines(keepends=True)
        self.statement = 1
        self.function: tuple[int, int] | None = None

    def find(self) -> Iterator[Fault]:
        yield from self._visit_body(self.tree.body)

    def _visit_body(self, body: list[ast.stmt]) -> Iterator[Fault]:
        for number, statement in enumerate(body):
            is_docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not is_docstring and not _is_for_types(statement):
                yield from self._visit_statement(statement, is_alone=len(body) == 1 and number == 0)

    def _visit_statement(self, node: ast.stmt, is_alone: bool) -> Iterator[Fault]:
        self.statement = node.lineno
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defaults = [d for d in (*node.args.defaults, *node.args.kw_defaults) if d is not None]
            outer, self.function = self.function, (node.body[0].lineno, node.body[-1].end_lineno or 0)
            for default in defaults:
                yield from self._visit(default)
            yield from self._visit_body(node.body)
            self.function = outer
            return
        if isinstance(node, ast.Raise):  # its message is not checked
            yield self._make(node, "removed raise", ast.Pass())
            return
        if isinstance(node, SKIPPED):
            return
        yield from self._change_statement(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "decorator_list", "bases", "keywords", "target", "targets", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.stmt):
                    continue
                if isinstance(child, (ast.ExceptHandler, ast.match_case)):
                    yield from self._visit_body(child.body)
                    guard = getattr(child, "guard", None)
                    yield from self._visit(guard) if guard is not None else ()
                elif isinstance(child, ast.AST):
                    yield from self._visit(child)
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield from self._visit_body(value)

    def _change_statement(self, node: ast.stmt) -> Iterator[Fault]:
        match node:
            case ast.Break():
                yield self._make(node, "break", ast.Continue())
            case ast.Continue():
                yield self._make(node, "continue", ast.Break())
            case ast.Return(value=ast.expr() as value) if not _is_none(value):
                yield self._make(node, "returned value", ast.Return(ast.Constant(None)))
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete():
                yield self._make(node, "removed statement", ast.Pass())
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
                yield self._make(node, "removed statement", ast.Pass())
            case ast.AugAssign(op=op) if type(op) in OPERATORS:
                swapped = ast.AugAssign(node.target, OPERATORS[type(op)](), node.value)
                yield self._make(node, "operator", swapped)
        if isinstance(node, (ast.If, ast.While)):
            yield from self._negate(node.test)

    def _visit(self, node: ast.AST) -> Iterator[Fault]:
        if isinstance(node, SKIPPED):
            return
        if isinstance(node, ast.expr):
            yield from self._change_expression(node)
        if isinstance(node, ast.Lambda):
            yield from self._visit(node.body)
            return
        for child in ast.iter_child_nodes(node):
            if not (isinstance(child, ast.keyword) and child.arg == "strict"):  # of zip: a check, as `assert` is
                yield from self._visit(child)

    def _change_expression(self, node: ast.expr) -> Iterator[Fault]:
        match node:
            case ast.Compare(ops=ops):
                for number, op in enumerate(ops):
                    swapped = [*ops[:number], COMPARISONS[type(op)](), *ops[number + 1 :]]
                    yield self._make(node, "comparison", ast.Compare(node.left, swapped, node.comparators))
            case ast.BoolOp(op=op):
                other = ast.Or() if isinstance(op, ast.And) else ast.And()
                yield self._make(node, "and/or", ast.BoolOp(other, node.values))
            case ast.BinOp(op=op) if type(op) in OPERATORS and not _is_text(node):
                yield self._make(node, "operator", ast.BinOp(node.left, OPERATORS[type(op)](), node.right))
            case ast.UnaryOp(op=ast.Not()) | ast.UnaryOp(op=ast.USub()):
                yield self._make(node, "removed not" if isinstance(node.op, ast.Not) else "sign", node.operand)
            case ast.Constant(value=bool() as value):
                yield self._make(node, "constant", ast.Constant(not value))
            case ast.Constant(value=int() as value):
                yield self._make(node, "constant", ast.Constant(value + 1))
            case ast.Constant(value=float() as value):
                yield self._make(node, "constant", ast.Constant(value * 2 if value else 1.0))
            case ast.IfExp(test=test):
                yield from self._negate(test)
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            for generator in node.generators:
                for test in generator.ifs:
                    yield from self._negate(test)

    def _negate(self, test: ast.expr) -> Iterator[Fault]:
        """Negate a condition that has no operator of its own to change."""
        if not isinstance(test, (ast.Compare, ast.BoolOp, ast.UnaryOp, ast.Constant)):
            yield self._make(test, "condition", ast.UnaryOp(ast.Not(), test))

    def _make(self, node: ast.expr | ast.stmt, kind: str, changed: ast.AST) -> Fault:
        assert node.end_lineno is not None and node.end_col_offset is not None
        column, end_column = (
            self._column(node.lineno, node.col_offset),
            self._column(node.end_lineno, node.end_col_offset),
        )
        span = self.lines[node.lineno - 1 : node.end_lineno]
        span[-1] = span[-1][:end_column]
        after = ast.unparse(ast.fix_missing_locations(changed))
        if isinstance(changed, ast.expr):  # the brackets keep the order in which the operators around it are applied
            after = after if isinstance(changed, (ast.Constant, ast.Name, ast.Call)) else f"({after})"
        return Fault(
            self.file,
            node.lineno,
            column,
            node.end_lineno,
            end_column,
            self.statement,
            self.function,
            kind,
            "".join(span)[column:],
            after,
        )

    def _column(self, line: int, offset: int) -> int:
        """Return a column in characters; syntax trees count bytes."""
        return len(self.lines[line - 1].encode()[:offset].decode())


def _is_for_types(node: ast.stmt) -> bool:
    match node:
        case ast.If(test=ast.Name("TYPE_CHECKING")):
            return True
        case ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal() | ast.Pass():
            return True
        case ast.FunctionDef(decorator_list=decorators) if any(ast.unparse(d).endswith("overload") for d in decorators):
            return True
        case ast.FunctionDef(body=[*_, ast.Expr(value=ast.Constant(value=e))]) if e is ...:
            return True
        case ast.ClassDef(bases=bases) if any(ast.unparse(base).startswith("Protocol") for base in bases):
            return True
        case ast.Assign(value=ast.Call(func=ast.Name(name))) if name in TYPE_MAKERS:
            return True
        case ast.Assign(targets=[ast.Name("__all__")]):
            return True
        case ast.Assign(targets=[ast.Name(name)], value=ast.Subscript(ast.Name(maker)) | ast.BinOp(ast.Name(maker))):
            return name[0].isupper() and not name.isupper() and maker[0].isupper()  # an alias: Pair = tuple | Other
        case ast.AnnAssign(annotation=annotation):
            return ast.unparse(annotation).endswith("TypeAlias")
    return False


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_text(node: ast.BinOp) -> bool:
    """Return whether an operand is a literal text: only `+` joins texts, so any other operator raises at once."""
    sides = (node.left, node.right)
    return any(
        isinstance(s, ast.JoinedStr) or (isinstance(s, ast.Constant) and isinstance(s.value, str)) for s in sides
    )
