"""Operands of products in the dtype of the inputs, so that products stay on the matrix unit.

    c += exp(s - m) * v    →    p_cast = cast(f16, exp(s - m))    c += p_cast * v

What was loaded in that dtype stays as it is. What is computed is rounded where the expression rounds the same number,
or its range allows it: bfloat16 has that of float32. Any other number that may leave float16 stays float32, and the
product leaves the matrix unit.

Whether two numbers are the same says one text for both, whatever stages and axes are called:

    h[i, e] = cast(f16, low[i, e])      low[i, e] += x[i, p] * a[p, e]      →      sum v1(x[v0, v1] * a[v1, v2])

Maps are written out, folds with their variable bound, factors and terms sorted, roundings left out. Equal texts are
equal expressions over the reals; different ones may be equal as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from neptune.ir.dtypes import DTYPES
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Var, binary, cast, substitute, variables, walk
from neptune.ir.program import Program, Stage, Store, Update, stages
from neptune.ir.text.printer import print_expr
from neptune.mirage.lowering.definitions import Definitions
from neptune.mirage.lowering.operands import core
from neptune.mirage.lowering.ranges import range_in
from neptune.mirage.lowering.rewriting import Actions, actions_of, at_index, inserted, with_stages
from neptune.schedule.state import Decision

STAYS = "stays float32"
"""What becomes of an operand that may leave the range of the inputs' dtype: its product leaves the matrix unit."""


def rounded(algebra: Definitions, original: Program) -> Definitions:
    """The definitions with operands of products that are computed rounded to the inputs' dtype.

    `original` is the expression whose roundings are known to do no harm.
    """
    if algebra.narrow is None:
        return algebra
    before = _roundings(original, algebra.narrow)
    rounding = _Rounding(algebra, algebra.narrow, before)
    for product in algebra.products:
        rounding.round_operands(product)
    dropped = f"the expression rounds to {algebra.narrow} there"
    for text, stage in before.items():
        if text not in rounding.seen:
            rounding.note(stage, "dropped", dropped)
    return rounding.algebra


@dataclass
class _Rounding:
    """The definitions so far. `before`: what the expression rounds, with the stage that does; `seen`: all operands."""

    algebra: Definitions
    narrow: str
    before: Mapping[str, str]
    seen: set[str] = field(default_factory=set)

    def note(self, subject: str, verdict: str, why: str) -> None:
        self.algebra = self.algebra.note(Decision("rounding", subject, verdict, why))

    def round_operands(self, product: str) -> None:
        """Round the operands of a product where that may be."""
        stage = next(s for s in self.algebra.stages if s.name == product)
        (value,) = stage.action.values
        assert isinstance(value, Op)
        ends = [self._rounded(stage, e, k) for k, e in enumerate(value.args)]

        def with_operands(s: Stage) -> Stage:
            if s.name == product and isinstance(s.action, Update):
                return replace(s, action=replace(s.action, values=(binary("mul", *ends),)))
            return s

        self.algebra = replace(self.algebra, program=with_stages(self.algebra.program, with_operands))

    def _rounded(self, stage: Stage, e: Expr, number: int) -> Expr:
        """An operand, rounded where that may be."""
        if core(e) is not None:
            return e
        subject = e.buffer if isinstance(e, Load) else f"{stage.name}_{'ab'[number]}"
        most = range_in(self.algebra)(e).most
        text = canonical(e, actions_of(self.algebra.program))
        self.seen.add(text)
        if self.narrow == "float16" and most > DTYPES[self.narrow].highest and text not in self.before:
            why = f"operand of the product `{stage.name}`: it may leave the range of {self.narrow}"
            self.note(subject, STAYS, why)
            return e
        axes = [a for a in self.algebra.order if a in variables(e)]
        self.algebra, load = inserted(
            self.algebra,
            stage.name,
            f"{subject}_cast",
            axes,
            lambda name, index: Store(name, index, cast(e, self.narrow)),
        )
        why = f"operand of the product `{stage.name}`: it stays on the matrix unit"
        why += f", and the expression rounds it at `{self.before[text]}`" if text in self.before else ""
        self.note(subject, f"to {self.narrow}", why)
        return cast(load, e.dtype)


def _roundings(original: Program, narrow: str) -> Mapping[str, str]:
    """The numbers that an expression rounds, but for results, in canonical form, with the stage that does."""
    actions, outputs = actions_of(original), {b.name for b in original.outputs}
    rounded_at: dict[str, str] = {}
    for s in stages(original.body):
        for e in s.action.values:
            for x in walk(e):
                if isinstance(x, Cast) and x.dtype == narrow and (x is not e or not outputs & {*s.action.buffers}):
                    rounded_at.setdefault(canonical(x.arg, actions), s.name)
    return rounded_at


# --- one text for equal numbers ---------------------------------------------------------------------


COMMUTE = frozenset({"add", "mul", "max", "min"})
AXIS = "#"
"""What names of bound and free axes begin with in a canonical text."""


def canonical(e: Expr, actions: Actions) -> str:
    """The text of an expression over loads of inputs and of what `actions` write."""
    free = sorted({v for x in walk(e) if isinstance(x, Load) for i in x.index for v in variables(i)})
    text = _text(e, actions, 0)
    # Axes are numbered as they come; sizes keep their names.
    order = sorted((text.find(f"{AXIS}{v};"), v) for v in free if f"{AXIS}{v};" in text)
    for k, (_, v) in enumerate(order):
        text = text.replace(f"{AXIS}{v};", f"{AXIS}free{k};")
    return text


def _text(e: Expr, actions: Actions, depth: int) -> str:
    match e:
        case Const(value, _):
            return f"{float(value)!r}"
        case Cast(arg, _):
            return _text(arg, actions, depth)
        case Var(name, _):
            return name
        case Load(buffer, index, _) if buffer in actions:
            return _read(actions[buffer], index, actions, depth)
        case Load(buffer, index, _):
            return f"{buffer}[{', '.join(_place(i) for i in index)}]"
        case Op("mul" | "div" | "rsqrt", _, _):
            factors = [x for x in _factors(e, actions, depth, False) if x not in ("1.0", "1/1.0")]
            return f"mul({', '.join(sorted(factors))})" if len(factors) > 1 else "".join(factors) or "1.0"
        case Op(name, args, _):
            parts = [_text(a, actions, depth) for a in args]
            return f"{name}({', '.join(sorted(parts) if name in COMMUTE else parts)})"
        case _:
            return print_expr(e)


def _factors(e: Expr, actions: Actions, depth: int, below: bool) -> list[str]:
    """The factors of a product of products and quotients, those `below` the line with 1/ in front."""
    match e:
        case Cast(arg, _):
            return _factors(arg, actions, depth, below)
        case Op("mul", (a, b), _):
            return [*_factors(a, actions, depth, below), *_factors(b, actions, depth, below)]
        case Op("div", (a, b), _):
            return [*_factors(a, actions, depth, below), *_factors(b, actions, depth, not below)]
        case Op("rsqrt", (a,), dtype):
            return _factors(Op("sqrt", (a,), dtype), actions, depth, not below)
        case Load(buffer, index, _) if isinstance(action := actions.get(buffer), Store):
            return _factors(substitute(action.value, at_index(action, index)), actions, depth, below)
        case _:
            text = _text(e, actions, depth)
            return [f"1/{text}" if below else text]


def _place(e: Expr) -> str:
    return f"{AXIS}{e.name};" if isinstance(e, Var) else print_expr(e)


def _read(action: Store | Update, index: tuple[Expr, ...], actions: Actions, depth: int) -> str:
    """The element of a stage at `index`, written out."""
    env = at_index(action, index)
    if isinstance(action, Store):
        return _text(substitute(action.value, env), actions, depth)
    (value,) = action.values if len(action.values) == 1 else (None,)
    if value is None:
        return f"{action.buffers[0]}[{', '.join(_place(i) for i in index)}]"
    bound = sorted({v for x in walk(value) if isinstance(x, Load) for i in x.index for v in variables(i)} - set(env))
    inner = {v: Var(f"bound{depth}_{k}") for k, v in enumerate(bound)}
    return f"{action.reducer}({_text(substitute(value, {**env, **inner}), actions, depth + 1)})"
