"""The mutants of a module: one operator, number, condition or statement of it changed."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "//",
    ast.BitOr: "&", ast.BitAnd: "|", ast.Pow: "*",
}  # fmt: skip
QUIET = ("warnings.warn", "log.")
"""Calls that may be left out: what they say is not what a program does."""


@dataclass(frozen=True)
class Mutant:
    """A place in a module, and what stands there instead. Lines from 1, columns in bytes."""

    line: int
    column: int
    end_line: int
    end_column: int
    new: str

    def apply(self, source: str) -> str:
        """Return the mutated source."""
        lines = source.encode().splitlines(keepends=True)
        start = sum(map(len, lines[: self.line - 1])) + self.column
        end = sum(map(len, lines[: self.end_line - 1])) + self.end_column
        whole = b"".join(lines)
        return (whole[:start] + self.new.encode() + whole[end:]).decode()

    def describe(self, source: str) -> str:
        """Return the line that it changes, before and after."""
        before, after = (text.splitlines()[self.line - 1].strip() for text in (source, self.apply(source)))
        return f"{before}  →  {after}"


def mutants(source: str) -> list[Mutant]:
    """Return all mutants of a module, in the order of its text; docstrings, annotations and asserts stay."""
    found = {each for node in _code(ast.parse(source)) for each in _of(node, source)}
    return sorted(found, key=lambda each: (each.line, each.column, each.new))


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Walk over what runs and decides something."""
    if isinstance(node, ast.JoinedStr):  # what is written out, and Python 3.11 does not know where it is
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params") or isinstance(node, ast.Assert | ast.Raise):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_type_checking(child):
                yield from _code(child)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _of(node: ast.AST, source: str) -> Iterator[Mutant]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            yield _joined(node, source, node.left, COMPARISONS[type(operator)], node.comparators[0])
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield _joined(node, source, node.left, OPERATORS[type(node.op)], node.right)
        case ast.BoolOp(values=[first, second]):
            yield _joined(node, source, first, "or" if isinstance(node.op, ast.And) else "and", second)
        case ast.UnaryOp(op=ast.Not()):
            yield _replaced(node, _text(source, node.operand))
        case ast.Constant(value=bool()):
            yield _replaced(node, str(not node.value))
        case ast.Constant(value=int()):
            yield _replaced(node, str(node.value + 1))
        case ast.If() | ast.While() | ast.IfExp():
            yield _replaced(node.test, f"(not {_text(source, node.test)})")
        case ast.Expr(value=ast.Call()) if not ast.unparse(node.value).startswith(QUIET):
            yield _replaced(node, "pass")
        case ast.AugAssign():
            yield _replaced(node, "pass")
        case ast.Return(value=ast.expr()) if not isinstance(node.value, ast.Constant):
            yield _replaced(node, "return None")


def _joined(node: ast.expr, source: str, left: ast.expr, operator: str, right: ast.expr) -> Mutant:
    return _replaced(node, f"({_text(source, left)} {operator} {_text(source, right)})")


def _text(source: str, node: ast.expr) -> str:
    return f"({ast.get_source_segment(source, node) or ''})"


def _replaced(node: ast.expr | ast.stmt, new: str) -> Mutant:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return Mutant(node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, new)
