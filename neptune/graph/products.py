"""Products of matrices in a graph: their operands, and divisions that wait until behind them.

Operands of a narrow dtype are rounded to it, as the graph says, and sums are float32. A softmax's division in front
of a product is moved behind it, which is what makes a flash kernel of attention:

    Σ cast(f16, exp(x - m) / l) · v   →   Σ cast(f16, exp(x - m)) · v / l

That is done only where the numerator is at most 1 (an exponential below its own maximum), so that rounding it is no
worse than rounding the quotient.
"""

from __future__ import annotations

from typing import Any

import torch

from neptune.errors import Unsupported
from neptune.frontend.assemble import Axis, Read, Reduction
from neptune.frontend.builder import compute, sum
from neptune.graph.imports import NARROW, Import, name_of
from neptune.graph.narrow import narrowed
from neptune.graph.values import AxisOf, Index, Value, alike
from neptune.ir.expr import Cast, Expr, Op, Var, binary, cast, rewrite, walk
from neptune.ir.program import ZERO


def matrix_product(
    s: Import, node: Any, a: Value, b: Value, name: str | None = None, dtype: torch.dtype | None = None
) -> Value:
    """a[…, i, k] b[…, k, j], summed over k in float32; batch dimensions are laid over each other."""
    name, dtype = name or node.name, dtype or node.meta["val"].dtype
    if dtype.is_floating_point is False:
        raise Unsupported("a product of integers")
    rank = len(a.groups)
    parts = waiting(a)
    behind: list[Value] = []
    if parts is not None:
        a, behind = parts[0], [parts[1]]
    a, b = _operand(s, a, f"{name}_a"), _operand(s, b, f"{name}_b")
    for d in range(rank - 2):
        a, b, *behind = alike((a, b, *behind), d, s.sizes)
    b = b.with_groups((*b.groups[:-2], b.groups[-1], b.groups[-2]), _swapped(b))
    a, b = alike((a, b), rank - 1, s.sizes)
    if not a.groups[-1] or not b.groups[-1]:
        raise Unsupported("a product over a dimension of size 1")
    batch = [
        tuple(AxisOf(p.size, p.free and q.free) for p, q in zip(g, h, strict=True))
        for g, h in zip(a.groups[:-2], b.groups[:-2], strict=True)
    ]
    groups = (*batch, a.groups[-2], b.groups[-2])
    n_batch, n_i, n_j = (sum_len(x) for x in (batch, [a.groups[-2]], [b.groups[-2]]))
    axes = tuple(x for g in groups for x in g)
    used = [k for k, x in enumerate(axes) if not x.free]
    depth = [Axis(f"k{k}" if k else "k", "int32", ZERO, s.sizes.expr(x.size)) for k, x in enumerate(a.groups[-1])]

    def sides(point: Index) -> tuple[Expr, Expr]:
        row, col = point[n_batch : n_batch + n_i], point[n_batch + n_i : n_batch + n_i + n_j]
        left, right = a.at((*point[:n_batch], *row, *depth)), b.at((*point[:n_batch], *col, *depth))
        return narrowed(left), narrowed(right)

    def spread(i: Any) -> Index:
        point: list[Expr] = [ZERO] * len(axes)
        for k, e in zip(used, i, strict=True):
            point[k] = e
        return tuple(point)

    def body(*i: Expr) -> Any:
        x, y = sides(spread(i))
        return sum(binary("mul", x, y), axis=depth)

    t = compute([s.sizes.expr(axes[k].size) for k in used], body, s.named(name))

    def at(i: Index) -> Expr:
        e: Expr = t(*(i[k] for k in used))
        if not behind:
            return e
        below = behind[0]
        return binary("div", e, below.at((*i[: n_batch + n_i], *(ZERO for _ in below.groups[-1]))))

    if behind:
        s.dropped.append(f"{name}: the quotient of the softmax is taken behind the product")
    if dtype in NARROW:
        s.dropped.append(f"{name}: {name_of(dtype)}")
    return Value(groups, dtype, at, rounded=dtype not in NARROW, plain=not behind)


def sum_len(groups: Any) -> int:
    """How many axes groups have together."""
    return len([x for g in groups for x in g])


def _swapped(v: Value) -> Any:
    n = [len(g) for g in v.groups]
    k, j = n[-2], n[-1]
    first = len(v.axes) - k - j

    def at(i: Index) -> Expr:
        return v.at((*i[:first], *i[first + j :], *i[first : first + j]))

    return at


def _operand(s: Import, v: Value, name: str) -> Value:
    """A value as the matrix unit takes it: of a narrow dtype rounded to that, and computed in one place."""
    narrow = name_of(v.dtype) if v.dtype in NARROW else None
    if narrow is not None and not v.rounded:
        source = v
        v = Value(v.groups, v.dtype, lambda i: cast(cast(source.at(i), narrow), "float32"), True, False)
    if isinstance(_uncast(v.at(_probe(v))), Read):
        return v
    return s.stage(v, name, narrow)[0]


def _probe(v: Value) -> tuple[Axis, ...]:
    return tuple(Axis(f"p{k}") for k in range(len(v.axes)))


def _uncast(e: Expr) -> Expr:
    return _uncast(e.arg) if isinstance(e, Cast) else e


def waiting(v: Value) -> tuple[Value, Value] | None:
    """(numerator, divisor) of an operand whose division may wait until behind a product over its last dimension, whose
    axes the divisor ignores; None where it has none, or it may not wait."""
    probe = _probe(v)
    division = _uncast(v.at(probe))
    if not (isinstance(division, Op) and division.name == "div"):
        return None
    depth = probe[v.starts(len(v.groups) - 1) :]
    top, below = division.args
    if any(x in depth for x in walk(below) if isinstance(x, Axis)) or not below_own_maximum(top):
        return None
    return _part(v, 0), _part(v, 1)


def _part(division: Value, k: int) -> Value:
    """The numerator or the divisor of a value that is a quotient at every point, as it was at one."""

    def at(i: Index) -> Expr:
        e = _uncast(division.at(i))
        assert isinstance(e, Op)
        return e.args[k]

    return Value(division.groups, division.dtype, at, False, False)


def below_own_maximum(e: Expr) -> bool:
    """True for exp(x - m) where m is a maximum that folds x; stages are looked through."""
    e = inlined(e)
    if not (isinstance(e, Op) and e.name == "exp"):
        return False
    inside = inlined(e.args[0])
    if not (isinstance(inside, Op) and inside.name == "sub"):
        return False
    x, m = inside.args
    if not (isinstance(m, Read) and m.source.body is not None and isinstance(m.source.body.value, Reduction)):
        return False
    fold = m.source.body.value
    if fold.reducer != "max":
        return False
    point = dict(zip(m.source.body.axes, m.index, strict=True))
    folded = put(fold.values[0], point)
    free = dict.fromkeys(fold.axes)
    return matches(folded, x, free)


def inlined(e: Expr) -> Expr:
    """The expression of the map that a read reads, at its index; any other as it is."""
    while isinstance(e, Read) and e.source.body is not None and not hasattr(e.source.body.value, "reducer"):
        e = put(e.source.body.value, dict(zip(e.source.body.axes, e.index, strict=True)))
    return e


def put(e: Expr, point: Any) -> Expr:
    """The expression with axes replaced, also in the indices of reads."""

    def one(x: Expr) -> Expr | None:
        if isinstance(x, Axis):
            put_in: Expr | None = point.get(x)
            return put_in
        if isinstance(x, Read):
            return Read(x.buffer, tuple(rewrite(i, one) for i in x.index), x.dtype, source=x.source)
        return None

    return rewrite(e, one)


def matches(a: Expr, b: Expr, free: dict[Axis, Expr | None]) -> bool:
    """True where `a` is `b` for one choice of the axes `free`."""
    if isinstance(a, Axis) and a in free:
        if free[a] is None:
            free[a] = b
        return free[a] == b
    if type(a) is not type(b) or a.dtype != b.dtype:
        return False
    if isinstance(a, Read) and isinstance(b, Read):
        return a.source is b.source and all(matches(x, y, free) for x, y in zip(a.index, b.index, strict=True))
    if isinstance(a, Op) and isinstance(b, Op):
        return a.name == b.name and all(matches(x, y, free) for x, y in zip(a.args, b.args, strict=True))
    if isinstance(a, Cast) and isinstance(b, Cast):
        return matches(a.arg, b.arg, free)
    if isinstance(a, Var) or not hasattr(a, "parts"):
        return a == b
    return all(matches(x, y, free) for x, y in zip(a.parts, b.parts, strict=True))
