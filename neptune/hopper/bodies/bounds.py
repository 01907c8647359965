"""bounds: where a walk begins and ends, for one consumer and for its group, each under a name.

j0_end = min(cdiv(s_kv, 128), …)           the consumer's
j0_clean_end = min(s_kv // 128, …)         where the tiles end that need no mask
j0_all_end = …                             the last of its group's ends
"""

from __future__ import annotations

from dataclasses import dataclass, field

from neptune.codegen.triton_expr import ceiling, nonnegative
from neptune.hopper.bodies.pieces import Group, Run
from neptune.ir.expr import Const, Expr, Load, Op, Var, args_of, maximum, minimum, rewrite
from neptune.tile.ir import Assign, TStmt
from neptune.tile.passes.util import Block, free_name
from neptune.tile.scalars import define, local


@dataclass(frozen=True)
class Bounds:
    """`edges` of a consumer's pieces, and where its group begins and ends, by names, numbers and sizes; `defined` says
    what the names are, `shared` what those of the group are in the producer."""

    edges: tuple[Expr, ...]
    all_begin: Expr
    all_end: Expr
    defined: Block
    shared: Block


@dataclass
class _Named:
    """Names of bounds as they are defined, none of which is `taken`, and which lie below the end."""

    var: str
    taken: frozenset[str]
    lines: list[TStmt] = field(default_factory=list)
    known: dict[Expr, Expr] = field(default_factory=dict)
    below: set[Expr] = field(default_factory=set)

    def name(self, word: str, e: Expr) -> Expr:
        if isinstance(e, Const | Var | Load):
            return e
        name = free_name(f"{self.var}_{word}", self.taken)
        self.lines.append(define(name, e))
        return local(name)

    def short(self, e: Expr) -> Expr:
        """An expression by the names that there are."""
        return rewrite(e, self.known.get)

    def of_all(self, shared: _Named, group: Group, e: Expr, ref: Expr, *, largest: bool) -> Expr:
        """The bound of a group, which is named in the producer (`shared`) too: the consumer's own `ref` where it is the
        same for all."""
        of_group = group.extreme(e, largest=largest)
        if of_group == e:
            shared.lines += [s for s in self.lines if isinstance(s, Assign) and ref == local(s.name)]
            return ref
        word = "all_end" if largest else "all_begin"
        shared.name(word, of_group)
        return self.name(word, group.of_consumer(of_group))


def bounds(run: Run, group: Group, taken: frozenset[str]) -> Bounds:
    """Bounds of a walk. Each lies between the one before and the end, also for a consumer behind the last row, whose
    loads have to be as many as those of the others."""
    zero = run.lo == Const(0, "int32")
    named = _Named(run.var, taken)
    words = _words(run)
    end = named.known[run.hi] = named.name("end", run.hi)
    lo = run.lo if zero and nonnegative(run.hi, group.is_size) else minimum(run.lo, run.hi)
    begin = named.known[run.lo] = named.name("begin", named.short(lo))
    named.below |= {begin, end}
    edges = [begin]
    for word, p in zip(words, run.pieces[:-1], strict=True):
        edge = named.short(p.hi)
        low = edges[-1]
        if not (_above(low, edge) or (low == Const(0, "int32") and nonnegative(p.hi, group.is_size))):
            edge = maximum(edge, low)
        if not (_at_most(edge, end, named.below) or _at_most(p.hi, run.hi, set())):
            edge = minimum(edge, end)
        edges.append(named.known.setdefault(p.hi, named.name(word, edge)))
        named.below.add(edges[-1])
    edges.append(end)
    shared = _Named(run.var, taken)
    # The end first: a begin may be cut off there.
    all_end = named.of_all(shared, group, run.hi, end, largest=True)
    all_begin = named.of_all(shared, group, lo, begin, largest=False)
    return Bounds(tuple(edges), all_begin, all_end, tuple(named.lines), tuple(shared.lines))


def _above(low: Expr, e: Expr) -> bool:
    return e == low or any(_above(low, x) for x in args_of(e, "max"))


def _at_most(a: Expr, b: Expr, below: set[Expr]) -> bool:
    """True where a <= b can be read off: min(a, …) <= a <= max(a, …), x // w is at most x / w rounded up, and each of
    `below` is at most the end."""
    if a == b or a in below or any(_at_most(x, b, below) for x in args_of(a, "min")):
        return True
    if len(high := args_of(a, "max")) == 2:
        return all(_at_most(x, b, below) for x in high)
    return isinstance(a, Op) and a.name == "floordiv" and ceiling(b) == a.args


def _words(run: Run) -> list[str]:
    """Words for the edges inside of a run."""
    clean = [k for k, p in enumerate(run.pieces) if p.facts]
    words = [f"edge_{k}" for k in range(1, len(run.pieces))]
    if len(clean) == 1:
        (k,) = clean
        if k > 0:
            words[k - 1] = "clean_begin"
        if k < len(words):
            words[k] = "clean_end"
    return words
