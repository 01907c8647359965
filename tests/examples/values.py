"""Scalar expressions on numbers, in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from neptune.ir.evaluate.floats import Float64
from neptune.ir.expr import OPS, Cast, Const, Expr, Load, Op, Select, Var

DOMAIN = Float64()


def run(e: Expr, env: Mapping[str, float], finite: bool = True) -> float:
    """The value, variables and loads by name. With `finite`, NaN where any part of it is no finite number."""
    match e:
        case Const(value, _):
            return float(value)
        case Load(name, _, _) | Var(name, _):
            return env[name]
        case Cast(a, _):
            return run(a, env, finite)
        case Select(p, a, b):
            return run(a if run(p, env, finite) else b, env, finite)
        case Op(name, args, _):
            numbers = [run(a, env, finite) for a in args]
            if finite and not all(map(math.isfinite, numbers)):
                return math.nan
            if OPS[name].kind == "logic":
                return float({"and": all, "or": any, "not": lambda v: not v[0]}[name](numbers))
            with np.errstate(all="ignore"):
                if OPS[name].kind == "compare":
                    return float(DOMAIN.compare(name, *(np.float64(v) for v in numbers)))
                return float(DOMAIN.apply(name, [np.asarray(v) for v in numbers], "float64"))
    raise TypeError(e)
