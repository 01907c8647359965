"""The estimate of registers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from neptune.ir.expr import Const, Var
from neptune.ir.program import Buffer, Scalar, Tunable
from neptune.tile.ir import Assign, LoadTile, TileKernel, TileProgram, TStmt
from neptune.tile.registers import BESIDE, THREADS, Estimate, registers
from tests.examples.kernels import N, fold, full, loop, map_, put, row, tile
from tests.work import calls

LONG = 1024


def program(*body: TStmt, candidates: Mapping[str, tuple[int, ...]]) -> TileProgram:
    """One kernel over rows `r` and columns `c`, which are tunables where candidates are given, else LONG."""
    axes = tuple((a, Var(n) if n in candidates else Const(LONG, "int32")) for a, n in (("r", "ROWS"), ("c", "COLS")))
    tunables = tuple(Tunable(n, of) for n, of in candidates.items())
    buffers = (Buffer("x", (N, N), "float32"),), (Buffer("y", (N,), "float32"),)
    return TileProgram("k", *buffers, (), (Scalar("n", "int32"),), tunables, (TileKernel("k_kernel", (), axes, body),))


def load(name: str = "x") -> Assign:
    value = LoadTile(name, (), None, 0.0, ("r", "c"), "float32")
    return Assign(name, value)


def estimate(*body: TStmt, rows: int = 64, cols: int = 32, warps: int = 1) -> float:
    """In numbers of elements of all threads."""
    made = program(*body, candidates={"ROWS": (rows,), "COLS": (cols,)})
    return registers(made.kernels[0], {"ROWS": rows, "COLS": cols, "num_warps": warps}) * THREADS * warps


def test_what_is_alive_at_one_time_counts() -> None:
    square, s = 64 * 32, BESIDE * 64
    added = Assign("s", map_("add", row("s"), fold("max", tile("x"))))
    once = (load(), Assign("s", fold("max", tile("x"))), put(row("s")))
    assert estimate(*once) == square
    # Two tiles at one time, or one after the other.
    both = (load("x"), load("w"), Assign("s", fold("max", map_("add", tile("x"), tile("w")))), put(row("s")))
    assert estimate(*both) == 3 * square
    assert estimate(*once[:2], load("w"), Assign("t", fold("max", tile("w"))), put(row("s"))) == square + s
    # A loop keeps what it adds up, and addresses; the tile of one iteration does not reach the next.
    assert estimate(Assign("s", full(0.0)), loop(load(), added), put(row("s"))) == 1.5 * square + s


def test_elementwise_code_takes_the_place_of_what_it_reads() -> None:
    square = 64 * 32
    doubled = (load(), Assign("d", map_("add", tile("x"), tile("x"))), put(tile("d")))
    assert estimate(*doubled) == square
    kept = (*doubled, put(tile("x")))
    assert estimate(*kept) == 2 * square
    assert estimate(load(), put(fold("sum", map_("mul", tile("x"), tile("x"))))) == 2 * square


def test_more_threads_hold_less_each() -> None:
    body = (load(), put(tile("x")))
    made = program(*body, candidates={"ROWS": (64,), "COLS": (32,)}).kernels[0]
    sizes = {"ROWS": 64, "COLS": 32}
    one, four = (registers(made, {**sizes, "num_warps": w}) for w in (1, 4))
    assert (one, four) == (64, 16)
    assert registers(made, {"ROWS": 128, "COLS": 32, "num_warps": 1}) == 2 * one


def test_the_form_of_a_kernel_is_read_once() -> None:
    """A search asks for many values of one kernel's tunables."""
    body = (load("x"), load("w"), Assign("s", fold("max", map_("add", tile("x"), tile("w")))), put(row("s")))
    kernel = program(*body, candidates={"ROWS": (64,), "COLS": (32,)}).kernels[0]
    made = Estimate(kernel)
    for rows in (16, 64):
        values = {"ROWS": rows, "COLS": 32, "num_warps": 4}
        assert made.registers(values) == registers(kernel, values)
        assert calls(partial(made.registers, values)) < 0.7 * calls(partial(registers, kernel, values))
