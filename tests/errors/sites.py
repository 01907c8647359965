"""Every place of the package that raises a NeptuneError, or answers with one, found in its syntax.

A site is a `raise` or a `return` of one of the classes, or of a function that returns one (`raise self.refuse(…)`), or
a call of a function that never returns (`-> NoReturn`). It is known by its file, the function around it and its number
there, so that lines may move.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from neptune import errors
from neptune.errors import NeptuneError
from tests.errors.table import PACKAGE

CLASSES = {n for n, c in vars(errors).items() if isinstance(c, type) and issubclass(c, NeptuneError)} | {"OutOfFuel"}


@dataclass(frozen=True)
class Site:
    path: str
    function: str
    number: int
    first: int
    last: int

    @property
    def key(self) -> str:
        return f"{self.path}:{self.function}#{self.number}"

    def holds(self, lines: set[tuple[str, int]]) -> bool:
        return any(path == self.path and self.first <= line <= self.last for path, line in lines)


def every_site() -> list[Site]:
    """The sites of the whole package, in order."""
    trees = {p.relative_to(PACKAGE).as_posix(): ast.parse(p.read_text()) for p in modules()}
    functions = [n for t in trees.values() for n in ast.walk(t) if isinstance(n, ast.FunctionDef)]
    makers = {f.name for f in functions if isinstance(f.returns, ast.Name) and f.returns.id in CLASSES}
    never = {f.name for f in functions if isinstance(f.returns, ast.Name) and f.returns.id == "NoReturn"}
    return [s for path, tree in trees.items() for s in _sites(path, tree, makers, never - {"__iter__"})]


def modules() -> list[Path]:
    """Every module of the package, those behind the link to the templates too (`rglob` passes links by)."""
    linked = [p for folder in PACKAGE.iterdir() if folder.is_symlink() for p in folder.rglob("*.py")]
    return sorted({*PACKAGE.rglob("*.py"), *linked})


def _sites(path: str, tree: ast.Module, makers: set[str], never: set[str]) -> Iterator[Site]:
    count: Counter[str] = Counter()
    for function, node in _walk(tree, ()):
        made = node.exc if isinstance(node, ast.Raise) else node.value if isinstance(node, ast.Return) else None
        raised = _called(made) in CLASSES | makers
        refused = isinstance(node, ast.Expr) and _called(node.value) in never
        if not raised and not refused:
            continue
        count[function] += 1
        yield Site(path, function, count[function], node.lineno, node.end_lineno or node.lineno)


def _walk(node: ast.AST, names: tuple[str, ...]) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.ClassDef)
        inner = (*names, child.name) if named else names
        yield ".".join(inner), child
        yield from _walk(child, inner)


def _called(e: ast.expr | None) -> str | None:
    """`f` of `f(…)` and of `x.f(…)`."""
    if not isinstance(e, ast.Call):
        return None
    return e.func.id if isinstance(e.func, ast.Name) else e.func.attr if isinstance(e.func, ast.Attribute) else None
