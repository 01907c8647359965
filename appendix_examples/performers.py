"""The three further patterns: Performers, in which two and three things are folded and one or two reductions are read.

    python -m appendix_examples.performers

All sum over j; α and β are constants, known when the kernel is compiled:

    g1 = α·exp(c1 - r1 - β·c2)        g2 = α·c3·exp(c1 - r1 - β·c2)        g3 = α·exp(c1 - r1 - β·c2·c3) / r2
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import neptune
from neptune.frontend.builder import Tensor, build, compute, exp, max, placeholder, reduce_axis, sum, var
from neptune.fusion.prove import same
from neptune.ir.decompose import decompose
from neptune.ir.expr import Expr, Var, op
from neptune.verify.evaluate import evaluate

ALPHA, BETA = 0.25, 0.5
ROWS, COLS = var("rows"), var("cols")
SIZES = {"rows": 3, "cols": 50}
Cell = Callable[[Expr, Expr], Expr]


def pattern(
    name: str, exponent: Cell, value: Callable[[Expr, Expr, Expr], Expr], inputs: list[Tensor]
) -> neptune.Program:
    """t = Σ value(i, j, exp(exponent - r1)), with r1 the maximum of the exponents."""
    j1, j2 = (reduce_axis((0, COLS), "j") for _ in range(2))
    r1 = compute((ROWS,), lambda i: max(exponent(i, j1), axis=j1), "r1")
    e = compute((ROWS, COLS), lambda i, j: exp(exponent(i, j) - r1[i]), "e")
    return build(compute((ROWS,), lambda i: sum(value(i, j2, e[i, j2]), axis=j2), "t"), inputs=inputs, name=name)


def programs() -> list[neptune.Program]:
    """g1, g2 and g3; r2 is a sum of squares."""
    c1, c2, c3 = inputs = [placeholder((ROWS, COLS), "float32", f"c{k}") for k in (1, 2, 3)]

    def two(i: Expr, j: Expr) -> Expr:
        return c1[i, j] - c2[i, j] * BETA

    def three(i: Expr, j: Expr) -> Expr:
        return c1[i, j] - c2[i, j] * c3[i, j] * BETA

    j3 = reduce_axis((0, COLS), "j")
    r2 = compute((ROWS,), lambda i: sum(c2[i, j3] * c2[i, j3], axis=j3), "r2")
    return [
        pattern("g1", two, lambda i, j, e: e * ALPHA, [c1, c2]),
        pattern("g2", two, lambda i, j, e: e * c3[i, j] * ALPHA, inputs),
        pattern("g3", three, lambda i, j, e: e * ALPHA / r2[i], inputs),
    ]


def fuse(program: neptune.Program) -> neptune.Schedule:
    """All reductions in one loop over tiles of 16 columns."""
    sch = neptune.Schedule(program)
    j0, _ = sch.split(sch.loops("r1")[1], 16)
    for stage in ("r2", "t") if "r2" in sch.stages else ("t",):
        sch.rolling_update(stage, j0)
    return sch


def difference(before: neptune.Program, after: neptune.Program) -> float:
    """The largest relative difference in float64, on large numbers."""
    rng = np.random.default_rng(0)
    given = {b.name: rng.standard_normal(tuple(SIZES.values())) * 30 for b in before.inputs}
    want, have = (evaluate(decompose(p), given, SIZES)["t"] for p in (before, after))
    return float(np.max(np.abs(np.asarray(have) / np.asarray(want) - 1)))


def paper_h3() -> list[str]:
    """The paper's h3 = t·(r2/r2')·exp(r1 - r1') by our prover: it moves g3 on, and commutes with +."""
    t, u, c1, c2, c3, r1, r2, s1, s2 = (Var(x, "float32") for x in ("t", "u", "c1", "c2", "c3", "r1", "r2", "s1", "s2"))

    def g(a: Expr, b: Expr) -> Expr:
        return op("exp", c1 - a - c2 * c3 * BETA) * ALPHA / b

    def h(x: Expr) -> Expr:
        return x * (r2 / s2) * op("exp", r1 - s1)

    positive = (("r2", "+"), ("s2", "+"))
    laws = (
        ("update", "h3(g3(r, c), r, r') = g3(r', c)", h(g(r1, r2)), g(s1, s2)),
        ("commute", "h3(x + y, r, r') = h3(x, r, r') + h3(y, r, r')", h(t + u), h(t) + h(u)),
    )
    return [f"{name}: {says}  [{same(a, b, positive) or 'not proved'}]" for name, says, a, b in laws]


def main() -> None:
    for program in programs():
        sch = fuse(program)
        print(f"{program.name}: the expression\n\n{program}")
        decision = next(d for d in sch.decisions if d.subject == "t")
        print(f"What the solver says of t ({decision.verdict}; {decision.reason}):\n")
        print("\n".join(f"  {line}" for line in decision.details))
        print(f"\nFused:\n\n{sch.program}")
        close = difference(program, sch.program) < 1e-12
        print(f"In float64 on inputs up to 100, the two differ by less than 1e-12: {close}\n")
    print("The paper rolls g3 through both of its predecessors. Here 1/r2 waits until the loop is over and only exp is")
    print("rolled, which keeps a division out of the loop and needs no r2 that is never 0. The paper's h3 is a repair")
    print("as well:\n")
    print("\n".join(f"  {line}" for line in paper_h3()))


if __name__ == "__main__":
    main()
