"""Safe softmax: exponentials of what is unbounded, shifted by their row's maximum, where the result does not change.

    p = exp(s)        l += p      c += p * v      o = c / l                 overflows where s > 88
    m max= s          p = exp(s - m)              l, c, o as before         exponents are at most 0

Each exponential has the degree 1 in e^(-m) of its own maximum m, whose rows are the axes that nothing folds while its
degree is not 0. Products add degrees, quotients subtract them, roots and powers multiply them; sums, maxima and folds
keep what all of their parts have; any other function needs 0, and so do results. Where that holds, the results are the
same for every m. In one loop with the sums the shifted chain needs a repair: fusion solves and proves it, as a rolling
update, or as one of parts where the axis has any. Source: Milakov and Gimelshein, "Online normalizer calculation for
softmax" (2018), for the rescaling; Wu et al., "Mirage" (OSDI 2025), for the graphs that need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, binary, rewrite, variables, walk
from neptune.ir.ops import OPS
from neptune.ir.program import Store, Update
from neptune.ir.reducers import REDUCERS
from neptune.ir.text.printer import print_expr
from neptune.mirage.ir import Graph, needed, nodes
from neptune.mirage.lowering.definitions import Definitions
from neptune.mirage.lowering.ranges import range_in
from neptune.mirage.lowering.rewriting import Action, inserted, mapped
from neptune.schedule.state import Decision

Degree = Mapping[Expr, Fraction]
"""Of each argument of an exponential the power of e^(-m) in a value, where that is not 0."""
LARGE = math.exp(80)
"""An exponential below that can be summed in float32."""


@dataclass(frozen=True)
class _Found:
    """The arguments of exponentials with what is folded over them, and why there is no repair, if there is none."""

    folded: Mapping[Expr, frozenset[str]]
    wrong: str = ""


def safe(algebra: Definitions) -> Definitions:
    """The definitions with maxima subtracted where exponentials may overflow and results do not depend on it.

    What cannot be repaired stays as it is, and a Decision says so.
    """
    exponentials = _degrees(algebra)
    if not exponentials.folded:
        return algebra
    if exponentials.wrong:
        return algebra.note(Decision("safe softmax", algebra.program.name, "not repaired", exponentials.wrong))
    for argument, folded in exponentials.folded.items():
        algebra = _shifted(algebra, argument, folded)
    return algebra


def unsafe(algebra: Definitions) -> Definitions:
    """The definitions as they are, with what overflows where as Decisions."""
    limit = math.log(DTYPES["float32"].highest)
    for argument in _degrees(algebra).folded:
        overflow = f"where {print_expr(argument)} is above {limit:.1f}, the exponential overflows"
        algebra = algebra.note(Decision("safe softmax", _reads(algebra, argument), "off", overflow))
    return algebra


def without_maxima(graph: Graph, same: Callable[[Graph], bool]) -> Graph:
    """A graph of library operators without the maxima that it subtracts, where it is the `same` function then.

    What is found for that has maxima put back by `safe`. The graph itself comes back where there is none.
    """
    behind: set[str] = set()
    for node in nodes(graph):
        if node.op == "max" or behind.intersection(node.operands):
            behind.add(node.name)
        if node.op == "sub" and node.operands[1] in behind:
            kept = {node.name: node.operands[0]}
            rewired = [replace(n, operands=tuple(kept.get(o, o) for o in n.operands)) for n in nodes(graph)]
            live = needed(rewired, {o.value for o in graph.outputs})
            other = graph.with_steps(*(n for n in rewired if n.name in live))
            graph = other if same(other) else graph
    return graph


# --- degrees ---------------------------------------------------------------------------------------


def _degrees(algebra: Definitions) -> _Found:
    degrees: dict[str, Degree] = {}
    folded: dict[Expr, frozenset[str]] = {}
    outputs = {b.name for b in algebra.program.outputs}
    known = range_in(algebra)
    for stage in algebra.stages:
        action = stage.action
        (value,) = action.values
        for x in walk(value):
            if isinstance(x, Op) and x.name == "exp" and known(x).hi > LARGE:
                folded.setdefault(x.args[0], frozenset())
        degree = _degree(value, degrees, folded)
        if isinstance(degree, str):
            return _Found(folded, degree)
        if isinstance(action, Update):
            away = frozenset(variables(value)) - {v for i in action.index for v in variables(i)}
            for argument in degree:
                folded[argument] = folded[argument] | (away & variables(argument))
        elif outputs.intersection(action.buffers) and any(folded[a] for a in degree):
            wrong = f"`{action.buffer}` would change with the maximum: it has an exponential that nothing divides"
            return _Found(folded, wrong)
        degrees[action.buffers[0]] = degree
    return _Found({a: axes for a, axes in folded.items() if axes})


def _degree(e: Expr, of_buffers: Mapping[str, Degree], shifted: Mapping[Expr, frozenset[str]]) -> Degree | str:
    """The degree of an expression, or what of it is no power of e^(-m) times what it would be."""
    wrong: list[str] = []

    def visit(x: Expr) -> Degree:
        match x:
            case Load(buffer, _, _):
                return of_buffers.get(buffer, {})
            case Cast(arg, _):
                return visit(arg)
            case Op("exp", (arg,), _):
                _free(x, visit(arg), wrong)
                return {arg: Fraction(1)} if arg in shifted else {}
            case Op("pow", (arg, Const(by, _)), _):
                return _multiplied([by], [visit(arg)])
            case Op(name, args, _) if OPS[name].degrees:
                return _multiplied(OPS[name].degrees, map(visit, args))
            case Op(name, args, _) if OPS[name].together:
                degrees = [visit(a) for a in args]
                if any(d != degrees[0] for d in degrees):
                    wrong.append(f"{print_expr(x)} adds what depends on the maximum in different ways")
                return degrees[0]
            case Op(_, args, _):
                for a in args:
                    _free(x, visit(a), wrong)
                return {}
            case Select(pred, a, b):
                _free(x, visit(pred), wrong)
                chosen = visit(a)
                if chosen != visit(b):
                    wrong.append(f"{print_expr(x)} chooses between what depends on the maximum in different ways")
                return chosen
            case _:
                return {}

    degree = visit(e)
    return wrong[0] if wrong else degree


def _free(x: Expr, degree: Degree, wrong: list[str]) -> None:
    if degree:
        wrong.append(f"{print_expr(x)} would be another function of the maximum than a power of its exponential")


def _multiplied(powers: Iterable[float], degrees: Iterable[Degree]) -> Degree:
    """The degree of a product of powers."""
    total: dict[Expr, Fraction] = {}
    for by, degree in zip(powers, degrees, strict=True):
        for argument, n in degree.items():
            total[argument] = total.get(argument, Fraction(0)) + Fraction(by) * n
    return {argument: n for argument, n in total.items() if n}


# --- the repair ------------------------------------------------------------------------------------


def _reads(algebra: Definitions, argument: Expr) -> str:
    return next(s.name for s in algebra.stages if any(argument in _arguments(v) for v in s.action.values))


def _arguments(e: Expr) -> Iterator[Expr]:
    return (x.args[0] for x in walk(e) if isinstance(x, Op) and x.name == "exp")


def _shifted(algebra: Definitions, argument: Expr, folded: frozenset[str]) -> Definitions:
    """exp(argument) becomes exp(argument - m), m being its maximum over the axes that are folded."""
    first = _reads(algebra, argument)
    over = [a for a in algebra.order if a in variables(argument)]
    known = argument
    if not isinstance(argument, Load):
        algebra, known = inserted(
            algebra, first, f"{first}_score", over, lambda name, index: Store(name, index, argument)
        )
    rows = [a for a in over if a not in folded]
    columns = [a for a in over if a in folded]
    algebra, maximum = inserted(algebra, first, f"{first}_max", rows, _maximum(known), columns)

    def shift(x: Expr) -> Expr | None:
        if isinstance(x, Op) and x.name == "exp" and x.args[0] == argument:
            return Op("exp", (binary("sub", known, maximum),), x.dtype)
        return None

    algebra = mapped(algebra, lambda e: rewrite(e, shift))
    along = ", ".join(sorted(folded))
    why = f"results do not depend on the maximum of {print_expr(argument)} along {along}, which is subtracted first"
    return algebra.note(Decision("safe softmax", first, "shifted", why))


def _maximum(value: Expr) -> Action:
    def action(name: str, index: tuple[Var, ...]) -> Update:
        return Update((name,), index, "max", (value,), REDUCERS["max"].identity(value.dtype))

    return action
