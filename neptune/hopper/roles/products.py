"""Products as they can be issued: each an assignment of its own, from operands that stand still.

    s = dot(q, k) · c                      →   s_product = dot(q, k);  s = s_product · c
    acc = acc · alpha + dot(cast(p), v)    →   acc = acc · alpha;  acc_left = cast(p);  acc = acc + dot(acc_left, v)

An asynchronous product reads its right operand from shared memory, its left one from there or from registers, and
adds to the local that it is assigned to.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from neptune.errors import Unsupported
from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import rewrite, rewrite_parts
from neptune.ir.names import fresh_name
from neptune.tile.ir import Assign, Branch, Dot, Local, Loop, TExpr, TStmt, bare, map_stmt
from neptune.tile.passes.util import Block, products


def unused(name: str, used: set[str]) -> str:
    """A name that is not in `used`, which it then is."""
    fresh = fresh_name(used, name)
    used.add(fresh)
    return fresh


def separated(body: Block, staged: frozenset[str], used: set[str]) -> Block:
    """The body with every product in an assignment `name = dot(left, right)` or `name = name + dot(left, right)`.

    Both operands are locals or such transposed; the right one is of `staged`, and a left one in registers stands as it
    is. `used` are the names that are taken. Raises Unsupported for other operands.
    """
    return tuple(x for s in body for x in _separated(s, staged, used))


def _separated(s: TStmt, staged: frozenset[str], used: set[str]) -> Iterator[TStmt]:
    if isinstance(s, Loop | Branch):
        yield replace(s, body=separated(s.body, staged, used))
        return
    name, stage = s.name if isinstance(s, Assign) else s.buffer, s.stage
    before: list[TStmt] = []

    def product(e: TExpr) -> TExpr | None:
        if not isinstance(e, Dot):
            return None
        fresh = Local(unused(f"{name}_product", used), e.dims, e.dtype)
        before.extend(_alone(Assign(fresh.name, rewrite_parts(e, product), stage), staged, used))
        return fresh

    if isinstance(s, Assign) and isinstance(s.value, Dot):
        s = replace(s, value=rewrite_parts(s.value, product))
        yield from before
        yield from _alone(s, staged, used)
    elif any(True for _ in products((s,))):
        s = map_stmt(s, lambda e: rewrite(e, product))
        yield from before
        yield s
    else:
        yield s


def _alone(s: Assign, staged: frozenset[str], used: set[str]) -> Iterator[TStmt]:
    """The assignment of a product, behind those that make locals of its operands."""
    dot = s.value
    assert isinstance(dot, Dot)
    where = s.stage or s.name
    right = bare(dot.b)
    if not isinstance(right, Local) or right.name not in staged:
        raise Unsupported(
            "the right operand of its product is made in registers, and products read it from shared memory",
            where,
            legal=[f"{n}, as it is loaded" for n in sorted(staged)],
        )
    if DTYPES[dot.a.dtype].bits > 16 and not dot.allow_tf32:
        raise Unsupported(f"it multiplies {dot.a.dtype}", where, legal=["float16", "bfloat16", "8 bits"])
    left = bare(dot.a)
    if not isinstance(left, Local):
        fresh = Local(unused(f"{s.name}_left", used), dot.a.dims, dot.a.dtype)
        yield Assign(fresh.name, dot.a, s.stage)
        dot = replace(dot, a=fresh)
    elif left != dot.a and left.name not in staged:
        raise Unsupported("the left operand of its product would be transposed in registers", where)
    if dot.acc is None:
        yield replace(s, value=dot)
        return
    into = Local(s.name, dot.dims, dot.dtype)
    if dot.acc != into:
        yield Assign(s.name, dot.acc, s.stage)
    yield replace(s, value=replace(dot, acc=into))
