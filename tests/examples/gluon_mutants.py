"""Mutants of a Gluon kernel's text: each is one small edit of how its roles keep in step.

drop        a wait, an arrival, an expect, a copy, a fence, a barrier of threads is left out
move        one of them changes places with the statement before it
twice       an arrival is made two times
phase       a wait's parity is flipped
stages      `% ST` and `// ST` with one stage more or less
slot        an index of a buffer or a barrier is one off
turn        a counter of turns stands still, or goes on by two
count       a barrier expects one arrival more or less, an arrival counts double
bytes       an expect has double or half the bytes
pending     a wait for products leaves one more, or one less, in flight
room        an allocation of barriers, or of tiles, has no elements
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_CALLS = {
    "wait", "arrive", "expect", "async_copy_global_to_shared", "async_copy_shared_to_global", "store_wait",
    "fence_async_shared", "thread_barrier", "async_load", "async_store", "barrier",
}  # fmt: skip
_STAGES = ("ST", "STAGES")


@dataclass(frozen=True)
class Mutant:
    """`name`: kind, line, and the statement as it was → as it is."""

    name: str
    text: str


class _Text:
    """A module's text, and edits of it by positions of nodes."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def span(self, node: ast.stmt | ast.expr) -> tuple[int, int]:
        end_line, end = node.end_lineno or 0, node.end_col_offset or 0
        return self.starts[node.lineno - 1] + node.col_offset, self.starts[end_line - 1] + end

    def of(self, node: ast.stmt | ast.expr) -> str:
        begin, end = self.span(node)
        return self.source[begin:end]

    def edit(self, kind: str, node: ast.stmt | ast.expr, new: str) -> Mutant:
        begin, end = self.span(node)
        name = f"{kind}, line {node.lineno}: {' '.join(self.source[begin:end].split())} → {new}"
        return Mutant(name, self.source[:begin] + new + self.source[end:])

    def swap(self, first: ast.stmt, second: ast.stmt) -> Mutant:
        (a, b), (c, d) = self.span(first), self.span(second)
        s = self.source
        name = f"move, line {second.lineno}: {' '.join(s[c:d].split())} before {' '.join(s[a:b].split())[:60]}"
        return Mutant(name, s[:a] + s[c:d] + s[b:c] + s[a:b] + s[d:])


def mutants(source: str) -> Iterator[Mutant]:
    """All of them, function by function of those under `gluon.jit`."""
    text = _Text(source)
    for function in ast.parse(source).body:
        if isinstance(function, ast.FunctionDef) and any("jit" in text.of(d) for d in function.decorator_list):
            for node in ast.walk(function):
                yield from _statements(text, node)
                yield from _expressions(text, node)


def _statements(text: _Text, node: ast.AST) -> Iterator[Mutant]:
    for body in (getattr(node, "body", None), getattr(node, "orelse", None)):
        if not isinstance(body, list):
            continue
        for before, statement in zip([None, *body], body, strict=False):
            step = _counted(statement)
            if step is not None:
                yield text.edit("turn", statement, "pass")
                yield text.edit("turn", step, "2")
            call = _protocol(statement)
            if call is None:
                continue
            yield text.edit("drop", statement, "pass")
            if isinstance(before, ast.Expr | ast.Assign | ast.AugAssign) and not _comment(before):
                yield text.swap(before, statement)
            if _name(call) == "arrive":
                yield text.edit("twice", statement, f"{text.of(statement)}; {text.of(statement)}")


def _expressions(text: _Text, node: ast.AST) -> Iterator[Mutant]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod | ast.FloorDiv) and text.of(node.right) in _STAGES:
        stages = text.of(node.right)
        yield text.edit("stages", node.right, f"({stages} + 1)")
        yield text.edit("stages", node.right, f"gl.maximum({stages} - 1, 1)")
    if not isinstance(node, ast.Call):
        return
    name, of = _name(node), text.of
    if name == "wait":
        yield text.edit("phase", node.args[1], f"({of(node.args[1])}) ^ 1")
    elif name == "expect":
        yield text.edit("bytes", node.args[1], f"({of(node.args[1])}) * 2")
        yield text.edit("bytes", node.args[1], f"({of(node.args[1])}) // 2")
    elif name in ("init", "arrive"):
        count = next(k.value for k in node.keywords if k.arg == "count")
        yield text.edit("count", count, f"{of(count)} + 1")
        if of(count) != "1":
            yield text.edit("count", count, f"{of(count)} - 1")
    elif name == "allocate_shared_memory" and isinstance(node.args[1], ast.List):
        yield text.edit("room", node.args[1].elts[-1], "0")
    elif name == "warpgroup_mma_wait":
        yield text.edit("pending", node.args[0], f"{of(node.args[0])} + 1")
        if of(node.args[0]) != "0":
            yield text.edit("pending", node.args[0], f"{of(node.args[0])} - 1")
    elif name == "index" and (named := [s for s in _STAGES if of(node.args[0]).endswith(f"% {s}")]):
        yield text.edit("slot", node.args[0], f"({of(node.args[0])} + 1) % {named[0]}")
    elif name == "index" and of(node.args[0]) in ("st", "pst"):
        yield text.edit("slot", node.args[0], f"({of(node.args[0])} + 1) % ST")


def _counted(statement: ast.stmt) -> ast.expr | None:
    """The 1 of `k += 1` or `k = k + 1`."""
    if isinstance(statement, ast.AugAssign):
        return statement.value if isinstance(statement.value, ast.Constant) else None
    if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.BinOp):
        left, right = statement.value.left, statement.value.right
        same = isinstance(left, ast.Name) and ast.unparse(statement.targets[0]) == left.id
        return right if same and isinstance(right, ast.Constant) else None
    return None


def _protocol(statement: ast.stmt) -> ast.Call | None:
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call) and _name(statement.value) in _CALLS:
        return statement.value
    return None


def _comment(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _name(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
