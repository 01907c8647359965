"""Run a Program over a domain: its reference meaning.

>>> import numpy as np
>>> from neptune.ir.expr import Load, Var
>>> from neptune.ir.program import Buffer, For, Program, Scalar, Stage, Store
>>> n, i = Var("n"), Var("i")
>>> x, y = Buffer("x", (n,), "float32"), Buffer("y", (n,), "float32")
>>> double = Stage("y", Store("y", (i,), Load("x", (i,), "float32") * 2.0))
>>> program = Program("double", (x,), (y,), (), (Scalar("n"),), (), For("i", Var("n") * 0, n, double))
>>> evaluate(program, {"x": np.array([1.0, 2.0])}, {"n": 2})["y"].tolist()
[2.0, 4.0]
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from neptune.ir.decompose import decompose
from neptune.ir.dtypes import is_float
from neptune.ir.evaluate.domains import Domain, EvaluationError, Results, Value
from neptune.ir.evaluate.expressions import Evaluator
from neptune.ir.evaluate.floats import Float64
from neptune.ir.evaluate.loops import Lanes, Loops
from neptune.ir.evaluate.memory import Memory, Work
from neptune.ir.program import Buffer, Program, Scalar, Tunable


class Parameters(Protocol):
    """The declarations that a Program and a TileProgram share."""

    @property
    def inputs(self) -> tuple[Buffer, ...]: ...
    @property
    def outputs(self) -> tuple[Buffer, ...]: ...
    @property
    def scalars(self) -> tuple[Scalar, ...]: ...
    @property
    def tunables(self) -> tuple[Tunable, ...]: ...
    @property
    def globals(self) -> dict[str, Buffer]: ...


class Runnable:
    """A program that is to be evaluated often: what does not depend on its inputs is done once."""

    program: Parameters

    def __init__(self, program: Program) -> None:
        self.program = program
        self._body = decompose(program).body
        self._kinds: dict[int, str] = {}

    def run(self, memory: Memory, evaluator: Evaluator, env: dict[str, Any]) -> None:
        """Execute the body on a memory that holds the inputs."""
        Loops(memory, evaluator, self._kinds).run(self._body, Lanes(env))


def parameters(program: Parameters, sizes: Mapping[str, Any], domain: Domain) -> dict[str, Any]:
    """The values of all scalars and tunables; float scalars become values of the domain."""
    env: dict[str, Any] = {}
    for s in program.scalars:
        if s.name not in sizes:
            raise EvaluationError(f"no value given for the scalar {s.name}")
        value = sizes[s.name]
        env[s.name] = domain.lift(value, s.dtype) if is_float(s.dtype) else int(value)
    for t in program.tunables:
        if t.name not in sizes:
            raise EvaluationError(f"no value given for the tunable {t.name}")
        env[t.name] = int(sizes[t.name])
    return env


def evaluate(
    runnable: Program | Runnable,
    inputs: Mapping[str, Any],
    sizes: Mapping[str, Any],
    domain: Domain | None = None,
    budget: Work | None = None,
) -> Results:
    """The outputs by name, as arrays of the domain (float64 by default).

    `sizes` gives every scalar argument, symbolic size and tunable. Reads and writes out of bounds, and
    uninitialised memory that reaches an output, raise EvaluationError (in float64 such memory is NaN); an
    output that an exact domain has no value for raises Unsupported, and so does, as TooLarge, what takes
    more work than `budget` (roughly; None: no limit).
    """
    runnable = runnable if isinstance(runnable, Runnable) else Runnable(runnable)
    program = runnable.program
    domain = Float64() if domain is None else domain
    memory = Memory(domain, budget)
    evaluator = Evaluator(memory)
    env = parameters(program, sizes, domain)
    given = {b.name for b in program.inputs}
    for buffer in program.globals.values():
        shape = tuple(int(evaluator.run(d, env)) for d in buffer.shape)
        if any(n < 0 for n in shape):
            raise EvaluationError(f"{buffer.name} has a dimension below 0: {shape}")
        if buffer.name not in given:
            memory.allocate(buffer.name, shape, buffer.dtype)
        elif buffer.name in inputs:
            memory.assign(buffer.name, shape, buffer.dtype, inputs[buffer.name])
        else:
            raise EvaluationError(f"no value given for the input {buffer.name}")
    with np.errstate(all="ignore"):
        runnable.run(memory, evaluator, env)
    return {b.name: _result(memory, b.name) for b in program.outputs}


def _result(memory: Memory, name: str) -> Value:
    """An output, checked for poison."""
    cell = memory.cells[name]
    if is_float(cell.dtype):
        memory.domain.check(name, cell.data)
    elif cell.defined is not None and not cell.defined.all():
        where = np.argwhere(~cell.defined)[0]
        raise EvaluationError(f"output {name}{where.tolist()} is never written")
    return cell.data
