"""Accesses of statements: complete, in program order, and found once."""

from __future__ import annotations

from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Const, Load, Var
from neptune.ir.program import ZERO, For, If, Seq, Stage, Store, Update, walk
from neptune.ops.attention import operator
from neptune.templates.flash_attention import flash_attention
from neptune.tile.accesses import Access, Accesses
from neptune.tile.localize import localize
from tests.work import calls

ROW, COL = Var("i"), Var("j")


def x(*index: Var | Const) -> Load:
    return Load("x", index, "float32")


def test_reads_come_before_writes_and_with_their_loops() -> None:
    length = Load("x_len", (ROW,), "int32")
    fold = Stage("s", Update(("s",), (ROW,), "sum", (x(ROW, COL),), None))
    inner = For("j", ZERO, length, fold)
    last = Stage("y", Store("x", (ROW, ZERO), Load("s", (ROW,), "float32")))
    outer = For("i", ZERO, Var("n"), Seq((If(Load("on", (ROW,), "bool"), inner), last)))
    uses = Accesses()
    assert uses.of(outer, "s") == [
        Access((outer, inner), fold, (ROW,), False),
        Access((outer, inner), fold, (ROW,), True),
        Access((outer,), last, (ROW,), False),
    ]
    assert uses.of(outer, "x") == [
        Access((outer, inner), fold, (ROW, COL), False),
        Access((outer,), last, (ROW, ZERO), True),
    ]
    assert [a.writes for b in ("x_len", "on") for a in uses.of(outer, b)] == [False, False]
    # Of a part, without the loops and conditions around it.
    assert uses.of(inner, "x") == [Access((inner,), fold, (ROW, COL), False)]
    assert not uses.of(inner, "on") and not uses.of(fold, "x_len") and not uses.of(outer, "z")


def test_a_nest_is_walked_once_for_all_of_its_buffers() -> None:
    sch = Schedule(operator("prefill_causal", heads=None, depth=64))
    flash_attention(sch)
    program, uses = sch.program, Accesses()
    parts, names = list(walk(program.body)), list(program.globals)

    def ask() -> None:
        for s in parts:
            for b in names:
                uses.of(s, b)

    ask()
    assert calls(ask) <= 1 + len(parts) * len(names)
    assert len(names) > 10
    assert calls(lambda: localize(program)) < 250_000
