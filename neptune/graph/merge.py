"""Dimensions that only occur together, as one: the rows of a linear are batch · length, not length for each of a batch.

    x [B, S, K], w [K, N]:  for b, s, j, k: mm[b, s, j] += x[b, s, k] * w[k, j]
    →  x [R, K]:            for r, j, k:    mm[r, j] += x[r, k] * w[k, j]

A pair of neighbouring dimensions of the results is merged where every tensor that has one of them has both, side by
side, and every stage reads them at its own two loops: then an index of the pair is one index, row-major. The caller
passes inputs with those dimensions flattened, which is a view where they lie densely.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from neptune.frontend.assemble import Axis, Body, Fold, Read, Tensor, reachable
from neptune.ir.expr import Const, Expr, Var, binary, rewrite, walk
from neptune.ir.program import ZERO

Pair = tuple[Tensor, int]
"""Dimensions p and p + 1 of a tensor."""


def merged(outputs: Sequence[Tensor], inputs: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], list[list[int]]]:
    """The outputs and the inputs with all pairs merged, and for each input the positions that were merged in turn."""
    outs, ins, done = list(outputs), list(inputs), [list[int]() for _ in inputs]
    p = 0
    while p < max((len(t.shape) - 1 for t in outs), default=0):
        pairs = _together(outs, p)
        if pairs is None:
            p += 1
            continue
        for k, t in enumerate(ins):
            done[k] += [d for u, d in pairs if u is t]
        outs, ins = _rebuilt(outs, ins, pairs)
    return outs, ins, done


def _together(outputs: Sequence[Tensor], p: int) -> set[Pair] | None:
    """The pairs that have to be merged with dimensions p and p + 1 of the first output; None where some cannot be."""
    tensors = reachable(outputs)
    together: set[Pair] = set()
    todo: list[Pair] = [(outputs[0], p)]
    while todo:
        t, d = todo.pop()
        if (t, d) in together:
            continue
        if d + 1 >= len(t.shape) or any(u is t and e != d for u, e in together) or len(t.family) > 1:
            return None
        together.add((t, d))
        if t.body is not None:
            reads = _read_at(t.body, t.body.axes[d], t.body.axes[d + 1])
            if reads is None:
                return None
            todo += reads
        for user in tensors:
            read_by = None if user.body is None else _readers(user, t, d)
            if read_by is not None:
                if read_by < 0:
                    return None
                todo.append((user, read_by))
    return together if _shares_an_operand(together) and _sizes_vanish(tensors, together) else None


def _shares_an_operand(pairs: set[Pair]) -> bool:
    """True where a sum over the pair reads a matrix that does not have it: a weight. Heads of a batch have their own,
    and lie apart in memory."""
    having = {t for t, _ in pairs}
    sums = [t.body for t in having if t.body is not None and isinstance(t.body.value, Fold)]
    reads = (x.source for b in sums for e in b.exprs for x in walk(e) if isinstance(x, Read))
    return any(s.body is None and len(s.shape) > 1 and s not in having for s in reads)


def _read_at(body: Body, a: Axis, b: Axis) -> list[Pair] | None:
    """The pairs that are read at two loops of a stage; None where either stands anywhere else."""
    pairs: list[Pair] = []
    for e in body.exprs:
        loose = sum(x in (a, b) for x in walk(e) if isinstance(x, Axis))
        for r in (x for x in walk(e) if isinstance(x, Read)):
            own = [k for k, i in enumerate(r.index) if i is a]
            if own and own[0] + 1 < len(r.index) and r.index[own[0] + 1] is b:
                pairs.append((r.source, own[0]))
                loose -= 2
        if loose:
            return None
    return pairs


def _readers(user: Tensor, t: Tensor, d: int) -> int | None:
    """The loops of `user`, by the number of the first, at which it reads the pair of `t`; None where it does not read
    it, -1 where it reads it at anything else."""
    assert user.body is not None
    axes = user.body.axes
    places: set[int] = set()
    for e in user.body.exprs:
        for r in (x for x in walk(e) if isinstance(x, Read) and x.source is t):
            first = [k for k, a in enumerate(axes) if r.index[d] is a]
            together = bool(first) and first[0] + 1 < len(axes) and r.index[d + 1] is axes[first[0] + 1]
            places.add(first[0] if together else -1)
    return None if not places else places.pop() if len(places) == 1 else -1


def _sizes_vanish(tensors: Sequence[Tensor], pairs: set[Pair]) -> bool:
    """True where what is left needs no size that only a merged dimension has."""
    gone = {v.name for t, d in pairs for e in t.shape[d : d + 2] for v in walk(e) if isinstance(v, Var)}
    left = [e for t in tensors for k, e in enumerate(t.shape) if (t, k) not in pairs and (t, k - 1) not in pairs]
    bodies = [e for t in tensors if t.body is not None for e in t.body.exprs]
    # Bounds of loops are extents of shapes, so what values mention is what counts.
    kept = {v.name for e in left for v in walk(e) if isinstance(v, Var)}
    used = {v.name for e in _values(tensors) for v in walk(e) if isinstance(v, Var) and not isinstance(v, Axis)}
    return not gone & (kept | used) and bool(bodies)


def _values(tensors: Sequence[Tensor]) -> Iterator[Expr]:
    for t in tensors:
        if t.body is not None:
            value = t.body.value
            yield from value.values if isinstance(value, Fold) else (value,)


def _rebuilt(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], pairs: set[Pair]
) -> tuple[list[Tensor], list[Tensor]]:
    places = dict(pairs)
    new: dict[Tensor, Tensor] = {}
    for t in reachable(outputs):
        d = places.get(t)
        shape = t.shape if d is None else (*t.shape[:d], _size(t.shape[d], t.shape[d + 1]), *t.shape[d + 2 :])
        if t.body is None:
            new[t] = replace(t, shape=shape)
            continue
        axes = t.body.axes
        if d is not None:
            one = Axis(axes[d].name, "int32", ZERO, shape[d])
            axes = (*axes[:d], one, *axes[d + 2 :])
        swap = {} if d is None else {t.body.axes[d]: axes[d]}
        new[t] = replace(t, shape=shape, body=_body(t.body, axes, swap, places, new))
    for family in {id(t.family): t.family for t in new if t.family}.values():
        members = [new[t] for t in family]
        for m in members:
            object.__setattr__(m, "family", members)
    return [new[t] for t in outputs], [new.get(t, t) for t in inputs]


def _size(a: Expr, b: Expr) -> Expr:
    """The size of a merged dimension: a name of its own, unless it is a number."""
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(a.value * b.value, "int32")
    names = [x.name if isinstance(x, Var) else str(x.value) for x in (a, b) if isinstance(x, Var | Const)]
    return Var("_".join(names)) if len(names) == 2 else binary("mul", a, b)


def _body(
    body: Body, axes: tuple[Axis, ...], swap: dict[Axis, Axis], places: dict[Tensor, int], new: dict[Tensor, Tensor]
) -> Body:
    def one(e: Expr) -> Expr | None:
        if isinstance(e, Axis):
            return swap.get(e)
        if isinstance(e, Read):
            index = [rewrite(i, one) for i in e.index]
            d = places.get(e.source)
            if d is not None:
                del index[d + 1]
            source = new[e.source]
            return Read(source.name, tuple(index), e.dtype, source=source)
        return None

    value = body.value
    if isinstance(value, Fold):
        return Body(axes, replace(value, values=tuple(rewrite(v, one) for v in value.values)))
    return Body(axes, rewrite(value, one))
