"""The printed text of a Program reads back as an equal Program."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings

from neptune.errors import ExpressionError
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Select, Var, binary, eq, op, select
from neptune.ir.program import Alloc, Buffer, For, Owe, Program, Seq, Stage, Store, Update, seq, stages
from neptune.ir.text.parser import Env, parse_expr, parse_program
from neptune.ir.text.printer import print_expr, print_program
from neptune.ir.verify import verify
from tests.examples.strategies import Names, exprs, programs

ENV = Env(
    {"i": "int32", "m": "int32", "a": "float32", "k": "int64", "p": "bool"},
    {"x": "float32", "y": "float32", "max": "float32"},
)
i, m, a, k, p = (Var(name, dtype) for name, dtype in ENV.variables.items())
ONE = Const(1.0, "float32")

FULL = """\
program flash-attention 2
  in inp: f32[m, n]
  in len: i32[]
  out xsum: f32[m]
  temp xmax: f32[m]
  temp part: f16[m, BLOCK_M] @tile
  scalar m: i32 lo 1
  scalar n: i32 lo -2 hi 64 divisor 8
  scalar scale: f32
  tunable BLOCK_M in {64, 128}
  tunable BLOCK_D in {} covers n // 2
  owes xsum <- xmax @ j
  made xmax_init as init of xmax
body:
  for i in [0, m) grid.x:
    fact i < m
    block:
      alloc t: f32[BLOCK_M] @tile
      fill: t[0] = inp[i, 0]
      if t[0] < 1.0 and len[] == 3:
        part: part[i, 0] = cast(f16, t[0])
    xmax_init: xmax[i] = -3.4028234663852886e+38
    for j in [0, n):
      xmax: xmax[i] max= inp[i, j] when j < len[]
      xsum: xsum[i] += exp((inp[i, j] - xmax[i]) * scale) init 0.0 when j < len[] or not(i == 0)
"""


def test_every_construct_reads_back() -> None:
    assert print_program(parse_program(FULL)) == FULL


def test_declarations_are_read() -> None:
    program = parse_program(FULL)
    assert program.name == "flash-attention 2"
    assert [(s.dtype, s.lo, s.hi, s.divisor) for s in program.scalars] == [
        ("int32", 1, None, 1),
        ("int32", -2, 64, 8),
        ("float32", None, None, 1),
    ]
    assert program.tunables[0].candidates == (64, 128) and program.tunables[0].covers is None
    assert program.tunables[1].covers == binary("floordiv", Var("n"), 2)
    assert program.owes == (Owe("xsum", "xmax", "j"),)
    assert program.temporaries[1] == Buffer("part", (Var("m"), Var("BLOCK_M")), "float16", "tile")
    loop = program.body
    assert isinstance(loop, For) and loop.kind == "grid.x" and loop.facts == (Var("i") < Var("m"),)
    assert isinstance(loop.body, Seq) and [type(s) for s in loop.body.stmts] == [Alloc, Stage, For]


@settings(max_examples=80, deadline=None)
@given(programs())
def test_programs_round_trip(program: Program) -> None:
    verify(program)
    assert parse_program(str(program)) == program


@settings(max_examples=100, deadline=None)
@given(exprs("float16", Names(loops={"i": Var("m")}, buffers=(Buffer("x", (Var("m"),), "float16"),)), depth=5))
def test_exprs_round_trip(e: Expr) -> None:
    env = Env({"i": "int32", "m": "int32", "n": "int32", "alpha": "float32"}, {"x": "float16"})
    assert parse_expr(print_expr(e), env) == e


@pytest.mark.parametrize(
    ("text", "expr"),
    [
        ("inf", Const(math.inf, "float32")),
        ("-inf:f16", Const(-math.inf, "float16")),
        ("nan", Const(math.nan, "float32")),
        ("-2:i64", Const(-2, "int64")),
        ("1e-30", Const(1e-30, "float32")),
        ("0.5:bf16", Const(0.5, "bfloat16")),
        ("True", Const(True, "bool")),
        ("i - (-1)", binary("sub", i, -1)),
        ("-1 - i", binary("sub", -1, i)),
        ("(-2) * i", binary("mul", -2, i)),
        ("a - (a - 1.0)", Op("sub", (a, Op("sub", (a, ONE), "float32")), "float32")),
        ("a - a - 1.0", Op("sub", (Op("sub", (a, a), "float32"), ONE), "float32")),
        ("i // 2 % 3", binary("mod", binary("floordiv", i, 2), 3)),
        ("(i + m) * 2", binary("mul", i + m, 2)),
        ("(i < m) == p", eq(i < m, p)),
        ("i < m and p or not(p)", op("or", op("and", i < m, p), op("not", p))),
        ("p and (p or p)", op("and", p, op("or", p, p))),
        ("log2e()", Op("log2e", (), "float32")),
        ("log2e():f16", Op("log2e", (), "float16")),
        ("cast(i64, i) + k", binary("add", Cast(i, "int64"), k)),
        (
            "select(i < m, select(p, a, 1.0), x[i, 0])",
            select(i < m, Select(p, a, ONE), Load("x", (i, Const(0, "int32")), "float32")),
        ),
        ("max(max[], y[i])", op("max", Load("max", (), "float32"), Load("y", (i,), "float32"))),
    ],
)
def test_expression_text(text: str, expr: Expr) -> None:
    assert print_expr(expr) == text
    assert parse_expr(text, ENV) == expr


def test_literals_print_by_their_dtype() -> None:
    assert print_expr(Const(1, "float32")) == "1.0"
    assert print_expr(Const(1, "bool")) == "True"
    assert print_expr(Op("ln2", (), "bfloat16")) == "ln2():bf16"


def test_negative_zero_keeps_its_sign() -> None:
    e = parse_expr(print_expr(Const(-0.0, "float32")), ENV)
    assert isinstance(e, Const) and math.copysign(1.0, e.value) == -1.0


def test_env_from_a_mapping_and_from_a_program() -> None:
    assert parse_expr("x[i]", {"x": "float16", "i": "int32"}) == Load("x", (Var("i"),), "float16")
    env = Env.of(parse_program(FULL))
    assert parse_expr("t[j]", env) == Load("t", (Var("j"),), "float32")
    assert parse_expr("scale", env) == Var("scale", "float32")


def test_tuple_update() -> None:
    text = "program p\n  in x: f32[n]\n  out v: f32[]\n  out at: i32[]\n  scalar n: i32\nbody:\n  for j in [0, n):\n"
    text += "    s: v[], at[] argmax= x[j], j init -inf, 0 when j < 5\n"
    program = parse_program(text)
    stage = program.body.body if isinstance(program.body, For) else None
    assert isinstance(stage, Stage) and isinstance(stage.action, Update)
    assert stage.action.buffers == ("v", "at") and stage.action.reducer == "argmax"
    assert stage.action.init == (Const(-math.inf, "float32"), Const(0, "int32"))
    assert str(program) == text


def test_blocks_keep_their_scopes() -> None:
    t, y = Buffer("t", (), "float32", "tile"), Buffer("y", (), "float32")
    store, load = Stage("s", Store("t", (), ONE)), Stage("r", Store("y", (), Load("t", (), "float32")))
    outside = Stage("q", Store("y", (), ONE))
    for body in (Alloc(t, seq(store, load, outside)), seq(Alloc(t, seq(store, load)), outside), Seq(())):
        program = Program("p", (), (y,), (), (), (), body)
        assert parse_program(str(program)) == program


def test_text_of_before_has_no_made_lines() -> None:
    old = parse_program(FULL.replace("  made xmax_init as init of xmax\n", ""))
    assert all(s.made is None for s in stages(old.body)) and len(stages(old.body)) == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("made s as colour of y", "a stage is not made as 'colour'"),
        ("made q as init of y", "no stage is called 'q'"),
        ("made s init y", "expected 'as'"),
    ],
)
def test_errors_of_made_lines(line: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse_program(f"program p\n  out y: f32[]\n  {line}\nbody:\n  s: y[] = 1.0\n")


def test_keywords_may_be_names() -> None:
    text = "program p\n  in init: f32[]\n  out when: f32[]\nbody:\n  for: when[] += init[] init 0.0\n"
    assert str(parse_program(text)) == text
