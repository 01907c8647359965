"""One text for expressions that are the same number, whatever stages and axes are called.

    h[i, e] = cast(f16, low[i, e])      low[i, e] += x[i, p] * a[p, e]      →      sum v1(x[v0, v1] * a[v1, v2])

Maps are written out, folds with their variable bound, factors and terms sorted, roundings left out. Equal texts are
equal expressions over the reals; different ones may be equal as well.
"""

from __future__ import annotations

from collections.abc import Mapping

from neptune.ir.expr import Cast, Const, Expr, Load, Op, Var, substitute, variables, walk
from neptune.ir.printer import print_expr
from neptune.ir.program import Program, Store, Update, stages

Actions = Mapping[str, "Store | Update"]
COMMUTE = frozenset({"add", "mul", "max", "min"})
AXIS = "#"
"""What names of bound and free axes begin with in a canonical text."""


def actions_of(program: Program) -> Actions:
    """What writes each buffer."""
    return {b: s.action for s in stages(program.body) for b in s.action.buffers}


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
            found = [x for x in _factors(e, actions, depth, False) if x not in ("1.0", "1/1.0")]
            return f"mul({', '.join(sorted(found))})" if len(found) > 1 else "".join(found) or "1.0"
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
            return _factors(_written(action, index), actions, depth, below)
        case _:
            text = _text(e, actions, depth)
            return [f"1/{text}" if below else text]


def _written(action: Store, index: tuple[Expr, ...]) -> Expr:
    """The element of a map at `index`."""
    return substitute(action.value, {v.name: i for v, i in zip(action.index, index, strict=True) if isinstance(v, Var)})


def _place(e: Expr) -> str:
    return f"{AXIS}{e.name};" if isinstance(e, Var) else print_expr(e)


def _read(action: Store | Update, index: tuple[Expr, ...], actions: Actions, depth: int) -> str:
    """The element of a stage at `index`, written out."""
    if isinstance(action, Store):
        return _text(_written(action, index), actions, depth)
    env = {v.name: i for v, i in zip(action.index, index, strict=True) if isinstance(v, Var)}
    (value,) = action.values if len(action.values) == 1 else (None,)
    if value is None:
        return f"{action.buffers[0]}[{', '.join(_place(i) for i in index)}]"
    bound = sorted({v for x in walk(value) if isinstance(x, Load) for i in x.index for v in variables(i)} - set(env))
    inner = {v: Var(f"bound{depth}_{k}") for k, v in enumerate(bound)}
    return f"{action.reducer}({_text(substitute(value, {**env, **inner}), actions, depth + 1)})"
