"""How strongly a deferred factor was holding back what is folded.

Deferring φ folds ψ as it is.  A scale such as 1/max|x| bounds what is folded; taken out once, ψ keeps the
size of the data, which is what deferring is for, and explain() says so.  Taken out of a square it would
leave x² to be summed, which overflows long before the expression does: that is refused (design §6, "the
emitted form overflows nowhere the original did not").
"""

from __future__ import annotations

from neptune.fusion.roles import Roles
from neptune.ir.expr import Const, Expr, Load, Op, Select, children


def scale_degree(phi: Expr, roles: Roles) -> float:
    """The degree of φ in the maxima and minima among its predecessors.

    1 / a → 1, 1 / a / a → 2, 1 / pow(a, 3) → 3, rsqrt(sum) → 0.
    """
    match phi:
        case Load():
            pred = roles.predecessor(phi)
            return 1.0 if pred is not None and pred.reducer in ("max", "min") else 0.0
        case Op("mul" | "div", (a, b), _):
            return scale_degree(a, roles) + scale_degree(b, roles)
        case Op("pow", (a, Const(n, _)), _):
            return scale_degree(a, roles) * abs(float(n))
        case Op("sqrt" | "rsqrt", (a,), _):
            return scale_degree(a, roles) / 2
        case Op("exp" | "exp2" | "log" | "log2", _, _):
            return 0.0
        case Select(_, a, b):
            return max(scale_degree(a, roles), scale_degree(b, roles))
        case _:
            return max((scale_degree(c, roles) for c in children(phi)), default=0.0)
