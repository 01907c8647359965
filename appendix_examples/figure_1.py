"""Figure 1: row maximum, exponentials and their sum over a 2×4 input; fused naively (wrong), and repaired.

python -m appendix_examples.figure_1
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tvm import te

import neptune
from neptune.driver.pipeline import as_program
from neptune.ir.decompose import decompose
from neptune.verify.evaluate import evaluate

INP = np.array([[1.0, 3.0, 2.0, 4.0], [2.0, 1.0, 0.0, 5.0]])


def expression(m: Any = 2, n: Any = 4) -> te.Tensor:
    """Figure 2, top left."""
    inp = te.placeholder((m, n), "float32", name="inp")
    j, k = te.reduce_axis((0, n), name="j"), te.reduce_axis((0, n), name="j")
    xmax = te.compute((m,), lambda i: te.max(inp[i, j], axis=j), name="xmax")
    xexp = te.compute((m, n), lambda i, j: te.exp(inp[i, j] - xmax[i]), name="xexp")
    return te.compute((m,), lambda i: te.sum(xexp[i, k], axis=k), name="xsum")


def result(program: neptune.Program, cols: int = 4) -> str:
    """What a program gives for the first columns of INP, in float64."""
    return np.array2string(np.asarray(evaluate(decompose(program), {"inp": INP[:, :cols]}, {})["xsum"]), precision=6)


def naive(cols: int = 4) -> neptune.Schedule:
    """xexp and xsum fused under loop j of xmax, without a repair."""
    sch = neptune.Schedule(as_program(expression(n=cols), name="figure_1"))
    fuse_naively(sch)
    return sch


def fuse_naively(sch: neptune.Schedule) -> None:
    j = sch.loops("xmax")[1]
    sch.fuse_at("xexp", j)
    sch.fuse_at("xsum", j)


def repaired(cols: int = 4) -> neptune.Schedule:
    """The same with a repair."""
    sch = neptune.Schedule(as_program(expression(n=cols), name="figure_1"))
    sch.rolling_update("xsum", sch.loops("xmax")[1])
    return sch


def by_column(make: Callable[[int], neptune.Schedule]) -> str:
    """xsum after each column."""
    return "\n".join(f"  j = {j}: xsum = {result(make(j + 1).program, j + 1)}" for j in range(INP.shape[1]))


def main() -> None:
    original = as_program(expression(), name="figure_1")
    wanted = np.exp(INP - INP.max(1, keepdims=True)).sum(1)
    print(f"inp =\n{INP}\nnumpy: {np.array2string(wanted, precision=6)}\n")
    print(f"(a) The original: three nests.\n\n{original}\nxsum = {result(original)}\n")
    print("(b) Naive fusion: xexp and xsum move under loop j of xmax, which is still changing. The program says so")
    print("(`owes`), can be evaluated, and gives wrong numbers: earlier terms keep the maximum of their time.\n")
    print(f"{naive().program}\n{by_column(naive)}\n")
    try:
        neptune.compile(original, fuse_naively, target="llvm")
    except neptune.FusionError as error:
        print(f"It cannot be compiled:\n\n{error}\n")
    print("(c) Rolling update: what xsum has so far is repaired before each addition, by a factor that was solved")
    print(f"and proved before anything moved.\n\n{repaired().program}\n{by_column(repaired)}")


if __name__ == "__main__":
    main()
