"""Names for the parts of a contribution: what SymPy and the reader see instead of loads and scores.

exp(s[i, j] - m[i]) / l[i] * v[j]   →   exp(c1 - r1)/r2*c2
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from neptune.fusion.repairs.roles import Roles
from neptune.ir.analysis.fold import fold
from neptune.ir.expr import Const, Expr, Load, Op, Select, Var, children, walk
from neptune.ir.text.printer import print_expr


@dataclass(frozen=True)
class Symbols:
    """Names for the reads of r and for the maximal subexpressions that read none."""

    names: tuple[tuple[Expr, str], ...]

    def text(self) -> tuple[tuple[str, str], ...]:
        return tuple((name, print_expr(e)) for e, name in self.names)

    def opened(self, part: Expr) -> Symbols:
        """A table that names `part` instead of what holds it."""
        inside = [name for e, name in self.names if part in walk(e)]
        kept = tuple((e, name) for e, name in self.names if name not in inside)
        return Symbols((*kept, (part, inside[0] if inside else "c")))

    def apply(self, e: Expr, rename: Mapping[Expr, str] | None = None) -> Expr:
        """`e` over symbols, without its float casts; `rename` adds names to the table."""
        table = dict(self.names) | dict(rename or {})

        def named(x: Expr) -> Expr | None:
            return Var(table[x], _one_dtype(x)) if x in table else None

        def leaf(x: Expr) -> Expr:
            return Const(float(x.value), "float32") if isinstance(x, Const) and not isinstance(x.value, bool) else x

        def operator(x: Op[Expr], args: Sequence[Expr]) -> Expr:
            return Op(x.name, tuple(args), _one_dtype(x))

        def choice(x: Select[Expr], then: Expr, other: Expr) -> Expr:
            return Select(self.apply(x.pred, rename), then, other)

        return fold(e, leaf, operator, choice, known=named)


def _one_dtype(e: Expr) -> str:
    # Symbols are real numbers: only predicates keep a dtype of their own.
    return "bool" if e.dtype == "bool" else "float32"


def symbols_of(e: Expr, roles: Roles) -> Symbols:
    """Number r's, c's and p's in order of appearance; a lone one goes without a number."""
    names: dict[Expr, str] = {}

    def visit(x: Expr) -> None:
        if isinstance(x, Const) or x in names:
            return
        if isinstance(x, Load) and x.buffer in roles.buffers:
            names[x] = "r"
        elif not roles.reads(x):
            names[x] = "c" if roles.varies(x) else "p"
        else:
            for child in children(x):
                visit(child)

    visit(e)
    return numbered(names)


def numbered(known: Mapping[Expr, str]) -> Symbols:
    """Names for expressions by their role, r, c or p: with a number where there are several of it."""
    kinds, count = list(known.values()), dict.fromkeys("rcp", 0)
    names = []
    for atom, kind in known.items():
        count[kind] += 1
        names.append((atom, kind if kinds.count(kind) == 1 else f"{kind}{count[kind]}"))
    return Symbols(tuple(names))


def pretty(e: Expr) -> str:
    """Text of an expression over symbols, products and quotients written tight."""
    return print_expr(e).replace(" * ", "*").replace(" / ", "/")
