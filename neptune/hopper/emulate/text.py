"""The text of a Gluon module as Python functions, with stand-ins for Gluon.

The text runs as it is, but for what Python would not tell:
- `for x in it` → `for x in __loop(it)`, so that the machine knows of back edges;
- `a // b`, `a % b` → `__quotient(a, b)`, `__remainder(a, b)`, which truncate as the device does;
- `x.to(dtype)` → `__to(x, dtype)`, since scalars are numbers here;
- `x = gl.allocate_shared_memory(…)` also passes `name="x"`, and `warpgroup_mma(a, b, c)` the names of its operands;
- `x = …` is followed by `__bound("x", x)`, which rejects a name whose registers a product in flight reads.
"""

from __future__ import annotations

import ast
import builtins
import sys
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from neptune.hopper.emulate.values import converted, quotient, remainder

FILE = "<gluon>"
"""The file name of the text in tracebacks."""


class _Rewrite(ast.NodeTransformer):
    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.iter = _call("__loop", node.iter)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            return _call("__quotient" if isinstance(node.op, ast.FloorDiv) else "__remainder", node.left, node.right)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        if not isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        value = ast.copy_location(ast.BinOp(ast.Name(node.target.id, ast.Load()), node.op, node.value), node)
        return self.visit(ast.copy_location(ast.Assign([node.target], value), node))

    def visit_Assign(self, node: ast.Assign) -> list[ast.stmt]:
        self.generic_visit(node)
        names = [n.id for target in node.targets for n in ast.walk(target) if isinstance(n, ast.Name)]
        for call in ast.walk(node.value):
            if isinstance(call, ast.Call) and _named(call, "allocate_shared_memory") and len(names) == 1:
                call.keywords.append(ast.keyword("name", _text(names[0], node)))
        bindings = [ast.Expr(_call("__bound", _text(n, node), ast.Name(n, ast.Load()))) for n in names]
        for statement in bindings:
            ast.copy_location(statement, node)
        return [node, *bindings]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if node.value is None or not isinstance(node.target, ast.Name):
            return self.generic_visit(node)
        return self.visit(ast.copy_location(ast.Assign([node.target], node.value), node))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
            call = _call("__to", node.func.value, *node.args)
            call.keywords = node.keywords
            return call
        if _named(node, "warpgroup_mma"):
            names = [a.id if isinstance(a, ast.Name) else "" for a in (*node.args[:1], *node.args[2:3])]
            node.keywords.append(ast.keyword("names", _text(",".join(n for n in names if n), node)))
        return node


def _named(node: ast.AST, name: str) -> bool:
    if not isinstance(node, ast.Call):
        return False
    return (node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")) == name


def _text(value: str, where: ast.AST) -> ast.expr:
    return ast.copy_location(ast.Constant(value), where)


def _call(name: str, *args: ast.expr) -> ast.Call:
    return ast.copy_location(ast.Call(ast.Name(name, ast.Load()), list(args), []), args[0])


@lru_cache(maxsize=16)
def compiled(source: str) -> Any:
    """The code of a module's text, to be executed by `execute` as often as needed."""
    tree = ast.parse(source, FILE)
    # Module level is the host's: nothing there is rewritten.
    tree.body = [_Rewrite().visit(node) if _on_device(node) else node for node in tree.body]
    return compile(ast.fix_missing_locations(tree), FILE, "exec")


_LOADS = ("async_load", "async_copy_global_to_shared", "async_store", "async_copy_shared_to_global", "store_wait")
STEPS = frozenset({"wait", "arrive", "expect", "warpgroup_mma", "warpgroup_mma_wait", *_LOADS})
"""The calls by which roles keep in step."""


def steps(source: str, only: str = "") -> frozenset[int]:
    """The lines of the text on which a role takes a step; `only`, one of a kernel of this name."""
    functions = {f.name: f for f in ast.parse(source).body if isinstance(f, ast.FunctionDef) and _on_device(f)}
    functions = _named_by(functions, only) if only else functions
    calls = [n for f in functions.values() for n in ast.walk(f) if isinstance(n, ast.Call)]
    return frozenset(c.lineno for c in calls if any(_named(c, name) for name in STEPS))


def _named_by(functions: dict[str, ast.FunctionDef], name: str) -> dict[str, ast.FunctionDef]:
    """A function, and all that it names, directly or not."""
    reached: dict[str, ast.FunctionDef] = {}
    left = {name}
    while left:
        called = left.pop()
        f = reached[called] = functions[called]
        left |= {x.id for x in ast.walk(f) if isinstance(x, ast.Name) and x.id in functions and x.id not in reached}
    return reached


def _on_device(node: ast.stmt) -> bool:
    if not isinstance(node, ast.FunctionDef):
        return False
    return any(isinstance(n, ast.Attribute) and n.attr == "jit" for d in node.decorator_list for n in ast.walk(d))


class _Torch:
    """torch, on a machine whose GPU has as many processors."""

    def __init__(self, processors: int) -> None:
        gpu = SimpleNamespace(multi_processor_count=processors)
        self.cuda = SimpleNamespace(get_device_properties=lambda *_: gpu)

    def __getattr__(self, name: str) -> Any:
        return getattr(builtins.__import__("torch"), name)


def execute(
    code: Any, gluon: SimpleNamespace, triton: SimpleNamespace, machine: Any, processors: int
) -> dict[str, Any]:
    """The names of the module, with `gluon` in place of the package `triton.experimental.gluon`, and `triton` for the
    rest of its package."""
    triton.experimental = SimpleNamespace(gluon=gluon)

    def importer(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name == "torch":
            return _Torch(processors)
        package, *parts = name.split(".")
        if package != "triton":
            return builtins.__import__(name, globals, locals, fromlist, level)
        value: Any = triton
        for part in parts:
            value = getattr(value, part)
        return value if fromlist else triton

    known = {
        "__name__": "gluon_text",
        "__builtins__": {**vars(builtins), "__import__": importer},
        "__loop": machine.loop,
        "__bound": machine.bound,
        "__quotient": quotient,
        "__remainder": remainder,
        "__to": converted,
    }
    exec(code, known)
    return known


def line() -> int:
    """The line of the text that is being executed."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != FILE:
        frame = frame.f_back
    return 0 if frame is None else frame.f_lineno


def scope() -> int:
    """The function call of the text that is being executed: names are its own."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != FILE:
        frame = frame.f_back
    return 0 if frame is None else id(frame)
