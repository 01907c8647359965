"""Figure 1: row maximum, exponentials and their sum over a 2×4 input; fused naively (wrong), and repaired.

    python -m appendix_examples.figure_1
"""

from __future__ import annotations

import numpy as np
from tvm import te

import neptune
from neptune.compiler import as_program
from neptune.ir.decompose import decompose
from neptune.verify.evaluate import evaluate

INP = np.array([[1.0, 3.0, 2.0, 4.0], [2.0, 1.0, 0.0, 5.0]])


def expression() -> te.Tensor:
    """Figure 2, top left."""
    inp = te.placeholder((2, 4), "float32", name="inp")
    j, k = te.reduce_axis((0, 4), name="j"), te.reduce_axis((0, 4), name="j")
    xmax = te.compute((2,), lambda i: te.max(inp[i, j], axis=j), name="xmax")
    xexp = te.compute((2, 4), lambda i, j: te.exp(inp[i, j] - xmax[i]), name="xexp")
    return te.compute((2,), lambda i: te.sum(xexp[i, k], axis=k), name="xsum")


def result(program: neptune.Program) -> str:
    """What a program gives for INP, in float64."""
    return np.array2string(np.asarray(evaluate(decompose(program), {"inp": INP}, {})["xsum"]), precision=6)


def main() -> None:
    original = as_program(expression(), name="figure_1")
    wanted = np.exp(INP - INP.max(1, keepdims=True)).sum(1)
    print(f"inp =\n{INP}\nnumpy: {np.array2string(wanted, precision=6)}\n")
    print(f"(a) The original: three nests.\n\n{original}\nxsum = {result(original)}\n")

    naive = neptune.Schedule(original)
    loop = naive.loops("xmax")[1]
    naive.fuse_at("xexp", loop)
    naive.fuse_at("xsum", loop)
    print("(b) Naive fusion: xexp and xsum move under loop j of xmax, which is still changing. The program says so")
    print(f"(`owes`), can be evaluated, and gives wrong numbers.\n\n{naive.program}\nxsum = {result(naive.program)}\n")

    def fuse_naively(sch: neptune.Schedule) -> None:
        j = sch.loops("xmax")[1]
        sch.fuse_at("xexp", j)
        sch.fuse_at("xsum", j)

    try:
        neptune.compile(original, fuse_naively, target="llvm")
    except neptune.FusionError as error:
        print(f"It cannot be compiled:\n\n{error}\n")

    repaired = neptune.Schedule(original)
    repaired.rolling_update("xsum", repaired.loops("xmax")[1])
    print("(c) Rolling update: what xsum has so far is repaired before each addition, by a factor that was solved")
    print(f"and proved before anything moved.\n\n{repaired.program}\nxsum = {result(repaired.program)}")


if __name__ == "__main__":
    main()
