"""Index tiles taken apart: a scalar part, one part per axis, and what is left (a gather).

`i0 * BLOCK_M + iota(m)` is the scalar `i0 * BLOCK_M` and the axis m with coefficient 1.  Positions are
kept by axis *name*, so that the same parts serve a tile and its transpose.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from neptune.ir.dtypes import is_int
from neptune.ir.expr import Cast, Const, Expr, Op, loads, walk
from neptune.tile.ir import Full, Iota, LoadTile, Rearrange, Scalar, TExpr, map_leaves


@dataclass(frozen=True, slots=True)
class Term:
    """sign · product of `factors` · `tile` (a tile expression, the axis of an Iota, or nothing)."""

    negative: bool
    factors: tuple[Expr, ...]
    tile: TExpr | None = None


def linear(e: TExpr) -> tuple[Term, ...]:
    """The terms of an integer tile expression; what is not linear in axes becomes one opaque term."""
    match e:
        case Scalar(Op("add" | "sub" as name, args, dtype)):
            # Each summand can be computed where its own variables allow.
            return linear(Op(name, tuple(map(Scalar, args)), dtype))
        case Scalar(Const(0, _)):
            return ()
        case Scalar(expr):
            return (Term(False, (expr,)),)
        case Iota():
            return (Term(False, (), e),)
        case Full(value, _, _):
            return linear(value)
        case Cast(arg, dtype) if is_int(dtype) and is_int(arg.dtype):
            return linear(arg)
        case Rearrange(arg, pattern):
            return tuple(
                t if t.tile is None or isinstance(t.tile, Iota) else replace(t, tile=_rearranged(t.tile, arg, pattern))
                for t in linear(arg)
            )
        case Op("add", (a, b), _):
            return (*linear(a), *linear(b))
        case Op("sub", (a, b), _):
            return (*linear(a), *_negated(linear(b)))
        case Op("neg", (a,), _):
            return _negated(linear(a))
        case Op("mul", (a, Scalar(c)), _) | Op("mul", (Scalar(c), a), _):
            return tuple(replace(t, factors=(*t.factors, c)) for t in linear(a))
        case _:
            return (Term(False, (), e),)


def _negated(terms: tuple[Term, ...]) -> tuple[Term, ...]:
    return tuple(replace(t, negative=not t.negative) for t in terms)


def _rearranged(tile: TExpr, arg: TExpr, pattern: str) -> TExpr:
    """The pattern on a term of `arg`, which may have lower rank (a scalar among tiles), or units where `arg` is long.

    >>> from neptune.tile.ir import Iota, Rearrange
    >>> term, sum_of_terms = Rearrange(Iota("j"), "j -> 1 j"), Full(Scalar(Const(0, "int32")), ("i", "j"), "int32")
    >>> _rearranged(term, sum_of_terms, "i j -> i j 1")
    Iota(axis='j')
    """
    if tile.dims == arg.dims and tile.dims:
        return Rearrange(tile, pattern)
    # The units of a term are not those of the pattern; by the names of its axes it is placed anywhere.
    while isinstance(tile, Rearrange) and _named(tile.dims) == tile.arg.dims:
        tile = tile.arg
    named = _named(tile.dims)
    return tile if named == tile.dims else Rearrange(tile, f"{' '.join(tile.dims)} -> {' '.join(named)}")


def _named(dims: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(d for d in dims if d != "1")


def oriented(e: TExpr, source: tuple[str, ...], target: tuple[str, ...]) -> TExpr:
    """Push a permutation of dims, `source` to `target`, down to the leaves of a mask or an index.

    >>> from neptune.tile.ir import Iota, Rearrange
    >>> oriented(Rearrange(Iota("n"), "n -> n 1"), ("n", "d"), ("d", "n"))
    Rearrange(arg=Iota(axis='n'), pattern='n -> 1 n')
    """

    def turned(x: TExpr) -> TExpr:
        if source == target or len(x.dims) != len(source):
            return x
        dims = tuple(x.dims[source.index(d)] for d in target)
        if isinstance(x, Full):
            return replace(x, dims=dims)
        arg, before = (x.arg, x.pattern.split("->")[0].split()) if isinstance(x, Rearrange) else (x, x.dims)
        return Rearrange(arg, f"{' '.join(before)} -> {' '.join(dims)}")

    return map_leaves(e, turned)


def transposed_load(load: LoadTile, pattern: str) -> LoadTile | None:
    """The load that gives rearrange(load, pattern) directly, for a permutation; else None."""
    target = tuple(pattern.split("->")[1].split())
    source = tuple(pattern.split("->")[0].split())
    if source != load.dims or sorted(source) != sorted(target) or len(set(source)) != len(source):
        return None
    return replace(
        load,
        index=tuple(oriented(i, source, target) for i in load.index),
        mask=None if load.mask is None else oriented(load.mask, source, target),
        dims=target,
    )


def along(e: TExpr) -> tuple[str, TExpr] | None:
    """The one axis along which a tile of integers is computed from positions and scalars alone, and the tile over it.

    >>> along(Rearrange(Iota("n"), "n -> n 1"))
    ('n', Iota(axis='n'))
    """
    nodes = list(walk(e))
    axes = {x.axis for x in nodes if isinstance(x, Iota)}
    pure = all(isinstance(x, Scalar | Full | Iota | Cast | Op | Rearrange) for x in nodes)
    if len(axes) != 1 or not pure or not is_int(e.dtype) or any(isinstance(x, Scalar) and loads(x.expr) for x in nodes):
        return None
    (axis,) = axes

    def flat(x: TExpr) -> TExpr:
        return map_leaves(x.arg, flat) if isinstance(x, Rearrange) else x.value if isinstance(x, Full) else x

    return axis, map_leaves(e, flat)
