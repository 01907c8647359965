"""accumulate: fold the start of an accumulator into its first use, and a rescale into the sum behind it.

s = full(0); s = s + dot(q, k)                  →  s = dot(q, k)
l = l * m_rescale; l = l + reduce(p, sum)       →  l = l * m_rescale + reduce(p, sum)
"""

from __future__ import annotations

from dataclasses import replace

from neptune.ir.expr import Op, rewrite
from neptune.ir.reducers import BY_OP, REDUCERS
from neptune.tile.ir import Assign, Dot, Full, Local, Scalar, TExpr, TileKernel
from neptune.tile.passes.util import Block, map_blocks, uses


def _without_start(name: str, start: Full, e: TExpr) -> TExpr | None:
    """`e` with the accumulator `name` dropped, where it holds the identity."""
    if isinstance(e, Dot) and e.acc == Local(name, e.dims, e.dtype):
        zero = REDUCERS["sum"].identity(e.dtype)[0]
        if start.value == Scalar(zero) and uses(e, name) == 1:
            return replace(e, acc=None)
    if isinstance(e, Op) and e.name in BY_OP and isinstance(e.args[0], Local) and e.args[0].name == name:
        identity = BY_OP[e.name].identity(e.dtype)[0]
        if start.value == Scalar(identity) and uses(e, name) == 1 and e.args[1].dims == e.dims:
            # max(lowest, -inf) is lowest, not -inf: a finite extreme has to stay.
            return e.args[1] if e.name in ("add", "mul") else replace(e, args=(start.value, e.args[1]))
    return None


def _substituted(first: Assign, second: Assign) -> Assign | None:
    """`second` with its single read of the same name replaced by what `first` assigns."""
    if isinstance(second.value, Dot) or uses(second.value, second.name) != 1:
        return None

    def fn(x: TExpr) -> TExpr | None:
        return first.value if isinstance(x, Local) and x.name == first.name else None

    return replace(second, value=rewrite(second.value, fn))


def _block(block: Block) -> Block:
    out: list[Assign | object] = []
    for s in block:
        last = out[-1] if out else None
        if isinstance(s, Assign) and isinstance(last, Assign) and last.name == s.name:
            merged: Assign | None = None
            if isinstance(last.value, Full):
                started = _without_start(s.name, last.value, s.value)
                merged = None if started is None else replace(s, value=started)
            elif uses(last.value, last.name) > 0:
                merged = _substituted(last, s)
            if merged is not None:
                out[-1] = merged
                continue
        out.append(s)
    return tuple(out)  # type: ignore[arg-type]


def accumulate(kernel: TileKernel) -> TileKernel:
    """Merge neighbouring assignments of one accumulator."""
    return replace(kernel, body=map_blocks(kernel.body, _block))
