"""The mutants of a module: each changes one expression or one statement within a function.

Code outside of functions stays unchanged: it runs at import, before a mutant could be loaded.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from typing import NamedTuple

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Mutant(NamedTuple):
    """One change: its line, the old text and the new text."""

    number: int
    line: int
    before: str
    after: str


class _Site(NamedTuple):
    """A place for a mutant: its node, the enclosing statement, and the new node."""

    node: ast.AST
    statement: ast.stmt
    replacement: Callable[[], ast.AST]


def mutants(source: str) -> list[Mutant]:
    """Return the mutants of a module, numbered in the order of the source."""
    return [
        Mutant(
            number,
            getattr(site.node, "lineno", site.statement.lineno),
            _shown(site.node),
            _shown(site.replacement()),
        )
        for number, site in enumerate(_sites(ast.parse(source)))
    ]


def mutated(source: str, number: int) -> ast.Module:
    """Return the module's syntax tree with one mutant in it."""
    tree = ast.parse(source)
    site = list(_sites(tree))[number]
    _Replacing(site.node, site.replacement()).visit(tree)
    return ast.fix_missing_locations(tree)


def probed(source: str, probes: dict[int, int]) -> ast.Module:
    """Return the syntax tree with a probe before the statement of each of these mutants.

    ``probes`` maps a mutant's number to the number that its probe reports. A probe calls the
    builtin ``__reached__``.
    """
    tree = ast.parse(source)
    sites = list(_sites(tree))
    before: dict[ast.stmt, list[ast.stmt]] = {}
    for number, reported in probes.items():
        call = ast.parse(f"__reached__({reported})").body[0]
        before.setdefault(sites[number].statement, []).append(call)
    _Inserting(before).visit(tree)
    return ast.fix_missing_locations(tree)


def _shown(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:100]


class _Replacing(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        if node is self.old:
            return ast.copy_location(self.new, node)
        return self.generic_visit(node)


class _Inserting(ast.NodeTransformer):
    def __init__(self, before: dict[ast.stmt, list[ast.stmt]]) -> None:
        self.before = before

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        self.generic_visit(node)
        if isinstance(node, ast.stmt) and (probes := self.before.get(node)):
            return [*(ast.copy_location(probe, node) for probe in probes), node]
        return node


def _sites(tree: ast.Module) -> Iterator[_Site]:
    for function in _outermost(tree):
        for statement in function.body:
            yield from _in_statement(statement)


def _outermost(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield the functions and methods that are not nested in a function."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, FUNCTIONS):
            yield child
        else:
            yield from _outermost(child)


def _in_statement(statement: ast.stmt) -> Iterator[_Site]:
    """Yield the sites of a statement, then the sites of nested statements."""
    for mutate in _of_statement(statement):
        yield _Site(statement, statement, mutate)
    annotation = getattr(statement, "annotation", None) or getattr(statement, "returns", None)
    for child in ast.iter_child_nodes(statement):
        if child is not annotation:
            yield from _below(child, statement)


def _below(node: ast.AST, statement: ast.stmt) -> Iterator[_Site]:
    if isinstance(node, ast.stmt):
        yield from _in_statement(node)
        return
    if isinstance(node, ast.match_case):  # the pattern stays unchanged
        for inner in node.body:
            yield from _in_statement(inner)
        return
    if isinstance(node, ast.arguments) or _is_text(node):  # default values, too
        return
    for mutate in _of_expression(node):
        yield _Site(node, statement, mutate)
    for child in ast.iter_child_nodes(node):
        yield from _below(child, statement)


def _is_text(node: ast.AST) -> bool:
    """Return whether a node is text for people: in an error or a log line."""
    if isinstance(node, ast.JoinedStr):
        return True
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value


def _of_statement(node: ast.stmt) -> Iterator[Callable[[], ast.AST]]:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await() | ast.Yield()):
            yield ast.Pass
        case ast.Return(value=ast.expr()) if not _is_none(node.value):
            yield lambda: ast.Return(ast.Constant(None))
        case ast.Raise():
            yield ast.Pass
        case ast.Break():
            yield ast.Continue
        case ast.Continue():
            yield ast.Pass
        case ast.Delete():
            yield ast.Pass
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
            yield ast.Pass
        case ast.If() | ast.While():
            yield lambda: _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))


def _of_expression(node: ast.AST) -> Iterator[Callable[[], ast.AST]]:
    match node:
        case ast.Compare(ops=[comparison]) if type(comparison) in COMPARISONS:
            yield lambda: _with(node, ops=[COMPARISONS[type(comparison)]()])
        case ast.BoolOp():
            yield lambda: _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
            yield lambda: copy.deepcopy(node.values[0])
        case ast.UnaryOp(op=ast.Not()):
            yield lambda: copy.deepcopy(node.operand)
        case ast.BinOp() if type(node.op) in OPERATORS:
            yield lambda: _with(node, op=OPERATORS[type(node.op)]())
        case ast.IfExp():
            yield lambda: _with(node, test=ast.UnaryOp(ast.Not(), copy.deepcopy(node.test)))
        case ast.Constant(value=bool() as switch):
            yield lambda: ast.Constant(not switch)
        case ast.Constant(value=int() | float() as number):
            yield lambda: ast.Constant(number + 1)
        case ast.Constant(value=str() as text):
            yield lambda: ast.Constant(text + "x")
        case ast.Call(keywords=[*_, ast.keyword(arg=str())]):
            yield lambda: _with(node, keywords=copy.deepcopy(node.keywords[:-1]))


def _with(node: ast.AST, **changed: object) -> ast.AST:
    """Return a shallow copy of a node with other members."""
    new = copy.copy(node)
    for name, value in changed.items():
        setattr(new, name, value)
    return new


def _is_none(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None
