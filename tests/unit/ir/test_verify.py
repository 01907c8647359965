"""The verifier: good programs pass, and each finding has a program that shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from neptune.errors import InternalError
from neptune.ir.check import SHOWN
from neptune.ir.expr import TRUE, Cast, Const, Expr, Load, Op, Select, Var
from neptune.ir.program import (
    ZERO,
    Buffer,
    For,
    If,
    Made,
    Owe,
    Program,
    Scalar,
    Stage,
    Store,
    Tunable,
    Update,
    seq,
    stages,
)
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify

DECLARED = """\
program p
  in x: f32[m, n]
  in len: i32[]
  out y: f32[m]
  temp t: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
  tunable BLOCK in {16, 32}
"""
GOOD = """\
  for i in [0, m) grid.x:
    fact i < m
    alloc a: f32[] @tile
    for j in [0, n):
      a: a[] += x[i, j] init 0.0 when j < len[]
    t: t[i] = a[]
  for i in [0, m):
    y_init: y[i] = 0.0
    y_repair: y[i] = y[i] * 0.5
    y: y[i] max= t[i]
"""
MADE = "  made y_init as init of y\n  made y_repair as repair of y\n"
ROW, ONE = Var("i"), Const(1.0, "float32")


def program(body: str = GOOD, made: str = "") -> Program:
    return parse_program(f"{DECLARED}{MADE if body == GOOD else made}body:\n{body}")


def with_stage(action: Store | Update) -> Program:
    """The good program with one more stage, which writes `t` last."""
    return program().with_body(seq(program().body, For("i", ZERO, Var("m"), Stage("more", action))))


def with_value(value: Expr) -> Program:
    """A program whose only stage that matters stores `value`."""
    return program().with_body(seq(program().body, For("i", ZERO, Var("m"), Stage("t", Store("t", (ROW,), value)))))


def found(bad: Program, *, lowered: bool = False) -> str:
    with pytest.raises(InternalError) as caught:
        verify(bad, lowered=lowered)
    return str(caught.value)


def test_good_program() -> None:
    verify(program())
    verify(with_value(Load("x", (ROW, ROW), "float32")))


BODIES = {
    "variable defined": ("  for i in [0, m):\n    y: y[i] = 1.0\n  t: t[BLOCK] = 1.0\n", None),
    "order": (
        "  for i in [0, m):\n    y: y[i] = t[i]\n    t: t[i] = 1.0\n",
        "stage y reads t before anything writes it",
    ),
    "update without init": ("  for i in [0, m):\n    y: y[i] += 1.0\n", "stage y reads y before anything writes it"),
    "own state": ("  for i in [0, m):\n    y: y[i] = y[i] + 1.0\n", "stage y reads y before anything writes it"),
    "guard read": ("  for i in [0, m):\n    y: y[i] = 1.0 when t[0] < 1.0\n", "stage y reads t before"),
    "condition read": ("  if t[0] < 1.0:\n    y: y[0] = 1.0\n", "a condition reads t before"),
    "alloc dies": (
        "  for i in [0, m):\n    alloc a: f32[] @tile\n    y: y[i] = a[]\n    a: a[] = 1.0\n",
        "stage y reads a before",
    ),
    "output": ("  for i in [0, m):\n    t: t[i] = 1.0\n", "output y is never written"),
    "input": ("  y: y[0] = 1.0\n  x: x[0, 0] = 1.0\n", "input x is written"),
    "two stores": ("  y: y[0] = 1.0\n  z: y[1] = 1.0\n", "buffer y is defined by several stages: y, z"),
    "store and update": ("  y: y[0] = 1.0\n  z: y[0] += 1.0\n", "buffer y is defined by several stages: y, z"),
    "two updates": ("  y: y[0] += 1.0 init 0.0\n  z: y[0] += 1.0\n", "defined by several stages: y, z"),
    "one name": ("  y: y[0] = 1.0\n  y: t[0] = 1.0\n", "stage name y stands for two stages"),
    "grid inside serial": (
        "  for i in [0, n):\n    for j in [0, m) grid.x:\n      y: y[j] = 1.0\n",
        "grid loop j is inside",
    ),
    "grid store": ("  for i in [0, m) grid.x:\n    y: y[0] = 1.0\n", "grid loop i, which its index does not use"),
    "grid update": ("  for i in [0, m) grid.x:\n    y: y[0] += 1.0 init 0.0\n", "grid loop i, which its index"),
    "grid second": (
        "  for i in [0, m) grid.x:\n    for j in [0, n) grid.y:\n      y: y[i] = 1.0\n",
        "grid loop j, which its index does not use",
    ),
    "grid alloc between": (
        "  for i in [0, m) grid.x:\n    alloc a: f32[] @tile\n    for j in [0, n) grid.y:\n      a: a[] = 1.0\n"
        "  for i in [0, m):\n    y: y[i] = 1.0\n",
        "a is written by every iteration of grid loop j",
    ),
    "shadowed loop": ("  for i in [0, m):\n    for i in [0, n):\n      y: y[i] = 1.0\n", "loop i shadows"),
    "shadowed size": ("  for m in [0, n):\n    y: y[m] = 1.0\n", "loop m shadows"),
    "shadowed buffer": ("  alloc t: f32[] @tile\n  y: y[0] = 1.0\n", "alloc t shadows"),
    "unknown kind": ("  for i in [0, m) vector:\n    y: y[i] = 1.0\n", "unknown kind vector"),
    "scope": ("  alloc a: f32[] @shared\n  y: y[0] = 1.0\n", "unknown scope shared"),
    "index rank": ("  y: y[0, 0] = 1.0\n", "buffer y has rank 1, indexed by 2"),
    "load rank": ("  y: y[0] = x[0]\n", "buffer x has rank 2, indexed by 1"),
    "index dtype": ("  y: y[0.0] = 1.0\n", "index 0.0 of y is float32, not an integer"),
    "load index dtype": ("  y: y[0] = x[0, 1.5]\n", "index 1.5 of x is float32"),
    "store dtype": ("  y: y[0] = 1\n", "buffer y is float32, its value is int32"),
    "init dtype": ("  y: y[0] += 1.0 init 0\n", "buffer y is float32, its init is int32"),
    "guard dtype": ("  y: y[0] = 1.0 when m\n", "guard m is int32, not bool"),
    "condition dtype": ("  if m:\n    y: y[0] = 1.0\n", "condition m is int32, not bool"),
    "fact dtype": ("  for i in [0, m):\n    fact i\n    y: y[i] = 1.0\n", "fact of loop i, i is int32, not bool"),
    "bound dtype": ("  for i in [0, 1.0):\n    y: y[i] = 1.0\n", "bound of loop i, 1.0 is float32"),
    "shape dtype": ("  alloc a: f32[1.0] @tile\n  y: y[0] = 1.0\n", "dimension of buffer a, 1.0 is float32"),
    "widths": ("  y: y[0] += 1.0, 2.0 init 0.0, 0.0\n", "reducer sum has width 1, not 2 values"),
    "targets": ("  y: y[0], t[0] += 1.0 init 0.0\n", "reducer sum has width 1, not 2 targets"),
    "int32 range": ("  y: y[0] = select(m < 4294967296, 1.0, 2.0)\n", "4294967296 is not a value of int32"),
    "uint8 range": ("  y: y[0] = cast(f32, -1:u8)\n", "-1 is not a value of uint8"),
}


@pytest.mark.parametrize("name", ["y_init", "y_repair", "y_direct_1"])
def test_a_name_makes_no_writer_right(name: str) -> None:
    """A second writer is one, whatever it is called; a stage made for the first one is none."""
    store, fold = f"  {name}: y[0] = 1.0\n", "  y: y[0] += 1.0\n"
    assert f"buffer y is defined by several stages: y, {name}" in found(program(store + fold))
    verify(program(store.replace(name, "other") + fold, "  made other as init of y\n"))


def test_what_was_made_for_another_stage_is_a_second_writer() -> None:
    body = "  t: t[0] = 1.0\n  start: y[0] = 1.0\n  y: y[0] += 1.0\n"
    for kind in ("init", "repair"):
        assert "several stages: start, y" in found(program(body, f"  made start as {kind} of t\n"))
    assert "several stages: start, y" in found(program(body, "  made start as copy of y\n"))
    # What folds defines, whatever it was made for.
    fold = "  y: y[0] += 1.0 init 0.0\n  z: y[0] += 1.0\n"
    assert "several stages: y, z" in found(program(fold, "  made z as repair of y\n"))


def test_pieces_of_a_stage_were_made_for_one_thing() -> None:
    good = program("  t: t[0] = 1.0\n  y: y[0] = t[0]\n")
    stage = stages(good.body)[0]
    text = found(good.with_body(seq(replace(stage, made=Made("copy", "y")), good.body)))
    assert "stage name t stands for two stages: made as copy of y, and the user's" in text
    rest = stages(good.body)[1]
    odd = seq(replace(stage, made=Made("colour", "y")), rest)
    assert "stage t is made as colour of y: there is no such kind" in found(good.with_body(odd))


@pytest.mark.parametrize(("body", "message"), BODIES.values(), ids=BODIES.keys())
def test_bodies(body: str, message: str | None) -> None:
    if message is None:
        verify(program(body))
    else:
        assert message in found(program(body))


def test_use_outside_the_scope() -> None:
    late = seq(program().body, Stage("t", Store("t", (ROW,), ONE)))
    assert "variable i is used where it is not defined" in found(program().with_body(late))
    gone = seq(program().body, Stage("t", Store("t", (ZERO,), Load("a", (), "float32"))))
    assert "buffer a is used where it is not defined" in found(program().with_body(gone))
    written = seq(program().body, Stage("a", Store("a", (), ONE)))
    assert "buffer a is used where it is not defined" in found(program().with_body(written))
    bound = For("k", ZERO, Var("k"), Stage("t", Store("t", (Var("k"),), ONE)))
    assert "variable k is used" in found(program().with_body(seq(program().body, bound)))
    branch = If(Op("lt", (ROW, ROW), "bool"), Stage("t", Store("t", (ZERO,), ONE)))
    assert "variable i is used" in found(program().with_body(seq(program().body, branch)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Var("i", "float32"), "variable i is int32, used as float32"),
        (Load("len", (), "float32"), "buffer len is int32, loaded as float32"),
        (Op("foo", (ONE,), "float32"), "unknown operator foo"),
        (Op("add", (ONE, Const(1, "int32")), "float32"), "one dtype on both sides"),
        (Op("exp", (ONE, ONE), "float32"), "exp takes 1 arguments"),
        (Op("lt", (ONE, ONE), "float32"), "lt of float32 is bool, not float32"),
        (Op("ln2", (), "int32"), "ln2 is a float, not int32"),
        (Cast(ONE, "f32"), "unknown dtype f32"),
        (Cast(Const(1, "int32"), "float8_e5m2"), "a cast of int32 to float8_e5m2 without float32 in between"),
        (Op("neg", (Cast(ONE, "float8_e5m2"),), "float8_e5m2"), "neg of float8_e5m2, which only tensors hold"),
        (Cast(Const(1.5, "int32"), "float32"), "1.5 is not a value of int32"),
        (Cast(Const(float("inf"), "int32"), "float32"), "inf is not a value of int32"),
        (Cast(Const(True, "int32"), "float32"), "True is not a value of int32"),
        (Cast(Const(1, "bool"), "float32"), "1 is not a value of bool"),
        (Select(ROW, ONE, ONE), "select on int32"),
        (Select(TRUE, ONE, Const(1.0, "float16")), "branches differ in dtype"),
        (Load("x", (ROW, Op("add", (ROW, Var("q")), "int32")), "float32"), "variable q is used"),
    ],
)
def test_expressions(value: Expr, message: str) -> None:
    assert message in found(with_value(value))


def test_unknown_reducer() -> None:
    assert "unknown reducer mean" in found(with_stage(Update(("t",), (ROW,), "mean", (ONE,), (ONE,))))


def test_init_width() -> None:
    assert "not 2 inits" in found(with_stage(Update(("t",), (ROW,), "sum", (ONE,), (ONE, ONE))))


HEADERS: dict[str, tuple[Callable[[Program], Program], str]] = {
    "buffer twice": (lambda p: replace(p, temporaries=(*p.temporaries, p.inputs[0])), "buffer x is declared twice"),
    "scalar twice": (lambda p: replace(p, scalars=(*p.scalars, Scalar("BLOCK"))), "tunable BLOCK is declared twice"),
    "name": (lambda p: replace(p, scalars=(*p.scalars, Scalar("a b"))), "'a b' cannot be a name"),
    "literal": (lambda p: replace(p, scalars=(*p.scalars, Scalar("inf"))), "'inf' cannot be a name"),
    "shape": (lambda p: replace(p, temporaries=(Buffer("t", (Var("q"),), "float32"),)), "variable q is used"),
    "buffer dtype": (lambda p: replace(p, inputs=(*p.inputs, Buffer("z", (), "f32"))), "unknown dtype f32"),
    "scalar dtype": (lambda p: replace(p, scalars=(*p.scalars, Scalar("s", "f32"))), "scalar s: unknown dtype"),
    "8-bit scalar": (lambda p: replace(p, scalars=(*p.scalars, Scalar("s", "float8_e5m2"))), "only tensors hold"),
    "empty range": (lambda p: replace(p, scalars=(*p.scalars, Scalar("s", lo=3, hi=2))), "scalar s: no value lies"),
    "candidates": (lambda p: replace(p, tunables=(*p.tunables, Tunable("B", ()))), "tunable B needs positive"),
    "zero": (lambda p: replace(p, tunables=(*p.tunables, Tunable("B", (0, 16)))), "tunable B needs positive"),
    "covers": (lambda p: replace(p, tunables=(*p.tunables, Tunable("B", (), Var("q")))), "variable q is used"),
    "covers dtype": (lambda p: replace(p, tunables=(*p.tunables, Tunable("B", (), ONE))), "tunable B covers 1.0 is"),
    "owes": (lambda p: replace(p, owes=(Owe("y", "nothing", "i"),)), "names what is not in the program"),
}


@pytest.mark.parametrize(("change", "message"), HEADERS.values(), ids=HEADERS.keys())
def test_headers(change: Callable[[Program], Program], message: str) -> None:
    assert message in found(change(program()))


def test_lowered_leaves_nothing_open() -> None:
    owing = replace(program(), owes=(Owe("a", "y", "j"),))
    verify(owing)
    message = found(owing, lowered=True)
    assert "stage a still owes a repair for y, which loop j changes" in message
    assert "stage a has an implicit init" in message


def test_an_init_that_has_no_place_is_a_finding() -> None:
    body = "  for j in [0, n):\n    for i in [j, m):\n      y: y[i] += x[i, j] init 0.0\n"
    assert "the bounds of loop 'i'" in found(program(body))


def test_a_report_has_every_finding_once_and_an_end() -> None:
    text = found(program("  y: y[0] = 1.0 when m\n  y: y[0] = 1.0 when m\n  z: t[0.0] = 1.0\n"))
    assert text.count("guard m is int32") == 1 and "index 0.0 of t" in text and "in: y: y[0] = 1.0 when m" in text
    many = replace(program(), scalars=(*program().scalars, *(Scalar(f"s{k}", "f32") for k in range(SHOWN + 3))))
    assert "and 3 more" in found(many)
