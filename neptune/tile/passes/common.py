"""common: what one statement computes twice gets a name.

s = s + (x - mean[:, None]) * (x - mean[:, None])        →        x_sub = x - mean[:, None]
                                                                  s = s + x_sub * x_sub

Of floats, and of whole tiles: positions have names of their own, and scalars cost nothing.  Compilers see such pairs
too; people who read the kernel, and the interpreter, do not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from neptune.ir.dtypes import is_float
from neptune.ir.expr import Op, rewrite, walk
from neptune.tile.ir import Assign, Branch, Local, Loop, TExpr, TileKernel, TStmt, map_stmt, stmt_exprs
from neptune.tile.passes.util import Block, free_name, map_blocks, names_in


def common(kernel: TileKernel) -> TileKernel:
    """The kernel with each such expression computed once, in front of its statement."""
    used = names_in(kernel)

    def once(s: TStmt) -> Block:
        e = None if isinstance(s, Loop | Branch) else _twice(s)
        if e is None:
            return (s,)
        wish = next(f"{x.name}_{e.name}" for x in walk(e) if isinstance(x, Local))
        name = free_name(wish, used)
        used.add(name)
        short = Local(name, e.dims, e.dtype)
        rest = map_stmt(s, lambda whole: rewrite(whole, lambda x: short if x == e else None))
        return (*once(Assign(name, e, name)), *once(rest))

    return replace(kernel, body=map_blocks(kernel.body, lambda block: tuple(x for s in block for x in once(s))))


def _twice(s: TStmt) -> Op[TExpr] | None:
    """The largest expression that a statement holds more than once."""
    counts = Counter(x for e in stmt_exprs(s) for x in walk(e) if isinstance(x, Op) and _worth(x))
    pairs = [x for x, n in counts.items() if n > 1]
    return max(pairs, key=lambda x: sum(1 for _ in walk(x)), default=None)


def _worth(e: Op[TExpr]) -> bool:
    return bool(e.dims) and is_float(e.dtype) and any(isinstance(x, Local) for x in walk(e))
