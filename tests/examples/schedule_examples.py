"""Programs that the tests of the schedule work on, and how they compare two of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import Schedule, replay
from neptune.ir.decompose import decompose
from neptune.ir.evaluate.domains import Value
from neptune.ir.expr import Expr, variables
from neptune.ir.program import Program
from neptune.ir.verify import verify
from neptune.schedule.trace import trace_from_json, trace_to_json
from neptune.verify.evaluate import evaluate
from neptune.verify.instances import number

M, N, K = var("m"), var("n"), var("k")


def matmul() -> Program:
    """c = a b, then a map over it: stages c, d."""
    a, b = placeholder((M, K), name="a"), placeholder((K, N), name="b")
    k = reduce_axis((0, K), "p")
    c = compute((M, N), lambda i, j: sum(a[i, k] * b[k, j], axis=k), "c")
    return build(compute((M, N), lambda i, j: c[i, j] * 2.0, "d"), name="matmul")


def gram() -> Program:
    """g[i, j] = Σ s[i, k] s[j, k] of a map s: one buffer read at two places."""
    x = placeholder((M, K), name="x")
    k = reduce_axis((0, K), "p")
    s = compute((M, K), lambda i, p: x[i, p] + 1.0, "s")
    return build(compute((M, M), lambda i, j: sum(s[i, k] * s[j, k], axis=k), "g"), name="gram")


def maps(shift: int = 0) -> Program:
    """t = x + 1, u = 2 t shifted by `shift` columns, w = t u: stages t, u, w (t and w are results)."""
    x = placeholder((M, N), name="x")
    t = compute((M, N), lambda i, j: x[i, j] + 1.0, "t")

    def shifted(i: Expr, j: Expr) -> Expr:
        return t[i, (j + shift) % N] * 2.0 if shift else t[i, j] * 2.0

    u = compute((M, N), shifted, "u")
    return build([t, compute((M, N), lambda i, j: t[i, j] * u[i, j], "w")], name="maps")


def row_sums() -> Program:
    """e = exp(x), r = Σ e over columns, y = e r: a reduction between two maps."""
    x = placeholder((M, N), name="x")
    j = reduce_axis((0, N), "j")
    e = compute((M, N), lambda i, j: exp(x[i, j]), "e")
    r = compute((M,), lambda i: sum(e[i, j], axis=j), "r")
    return build(compute((M, N), lambda i, j: e[i, j] * r[i], "y"), name="row_sums")


def row_max() -> Program:
    """One reduction: y = max of x over columns 2 … n (a loop that does not start at 0)."""
    x = placeholder((M, N + 2), name="x")
    j = reduce_axis((2, N + 2), "j")
    return build(compute((M,), lambda i: max(x[i, j], axis=j), "y"), name="row_max")


def started() -> Program:
    """t = Σ x over columns, z = t + Σ 2 x: a reduction that starts from the result of another."""
    x = placeholder((M, N), name="x")
    a, b = reduce_axis((0, N), "j"), reduce_axis((0, N), "j")
    t = compute((M,), lambda i: sum(x[i, a], axis=a), "t")
    return build(compute((M,), lambda i: sum(x[i, b] * 2.0, axis=b, init=t[i]), "z"), name="started")


def sizes_of(program: Program, values: Mapping[str, int], tunables: Mapping[str, int]) -> dict[str, int]:
    """All sizes of a program: the given ones, the tunables that cover something worked out."""
    sizes = {**values, **tunables}
    for t in program.tunables:
        if t.covers is not None:
            sizes[t.name] = 1 << max_bits(number(t.covers, sizes) - 1)
    return sizes


def max_bits(value: int) -> int:
    return value.bit_length() if value > 0 else 0


def outputs(program: Program, sizes: Mapping[str, int], seed: int = 0) -> dict[str, Value]:
    """The results on random inputs."""
    rng = np.random.default_rng(seed)
    inputs = {b.name: rng.standard_normal([number(d, sizes) for d in b.shape]) for b in program.inputs}
    return evaluate(program, inputs, sizes)


SMALL = tuple(
    {"m": m, "n": n, "k": k, "rows": m, "cols": n} for m, n, k in ((1, 1, 1), (5, 7, 3), (4, 8, 6), (3, 2, 9))
)


def check_same(before: Program, after: Program, *, tiles: tuple[int, ...] = (1, 2, 4)) -> None:
    """`after` is well-formed and gives what `before` gives, also where tiles do not divide."""
    verify(decompose(after))
    assert not after.owes
    # Numbers of parts, which launches choose: one, and more.
    chosen = [s.name for s in after.scalars if s.upto is not None]
    for values in ({**v, **dict.fromkeys(chosen, n)} for v in SMALL for n in ((1, 3) if chosen else (1,))):
        for tile in tiles if any(t.covers is None for t in after.tunables) else tiles[:1]:
            sizes = sizes_of(after, values, {t.name: tile for t in after.tunables if t.covers is None})
            expected, found = outputs(before, sizes), outputs(after, sizes)
            for name, value in expected.items():
                np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12, err_msg=f"{name} at {sizes}")


def run_code(program: Program, code: str) -> Schedule:
    """Execute the text that `as_code` gave on a fresh schedule."""
    names: dict[str, Any] = {}
    exec(code, names)
    sch = Schedule(program)
    names["schedule"](sch)
    return sch


def check_round_trips(sch: Schedule, program: Program) -> None:
    """The schedule's trace survives JSON, replay and code."""
    trace = trace_from_json(trace_to_json(sch.trace))
    assert trace == sch.trace
    for again in (replay(program, trace), run_code(program, sch.as_code())):
        assert again.program == sch.program
        assert again.trace == sch.trace and again.decisions == sch.decisions


class Frozen:
    """`with Frozen(sch):` the schedule is as before when the block has raised."""

    def __init__(self, sch: Schedule) -> None:
        self.sch = sch

    def __enter__(self) -> None:
        self.before = self.seen()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert kind is None or self.seen() == self.before

    def seen(self) -> tuple[object, ...]:
        return (str(self.sch.program), self.sch.trace, self.sch.decisions, self.sch.stages)


def values_of(e: Expr, env: Mapping[str, int]) -> int:
    """The number an integer expression stands for."""
    assert variables(e) <= env.keys()
    return number(e, env)


def grid(ranges: Mapping[str, range]) -> Iterator[dict[str, int]]:
    """Every assignment of the variables."""
    names = list(ranges)
    if not names:
        yield {}
        return
    head, *tail = names
    for v in ranges[head]:
        for rest in grid({n: ranges[n] for n in tail}):
            yield {head: v, **rest}
