"""What a stage is by itself: axes with bounds, maps, and reductions with their terms."""

from __future__ import annotations

from dataclasses import replace

import pytest

from neptune.frontend import builder as nt
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Var, binary, minimum, redirected, variables
from neptune.ir.program import Program
from neptune.ir.text.parser import parse_expr, parse_program
from neptune.ir.text.printer import print_expr
from neptune.ops.attention import operator
from neptune.schedule.definition import Axis, MapDef, ReductionDef, define, whole_axis
from neptune.schedule.state import initial
from neptune.templates.flash_attention import flash_attention
from tests.work import calls

n, z = Var("n"), Var("z")


def best_two() -> Program:
    r, c = nt.var("r"), nt.var("c")
    x, j = nt.placeholder((r, c), "float32", "x"), nt.reduce_axis((0, c), "j")
    u = nt.compute((r, c), lambda i, j: x[i, j] * 2.0, "u")
    return nt.build(list(nt.compute((r,), lambda i: nt.top_k(u[i, j], 2, axis=j), "best")), name="p")


def test_definitions_are_maps_and_reductions() -> None:
    state = initial(best_two())
    assert list(state.maps) == ["u"] and len(state.reductions) == 1
    (name,) = state.reductions
    u, best = state.map("u"), state.reduction(name)
    assert isinstance(u, MapDef) and isinstance(best, ReductionDef)
    assert (u.reduced, [a.name for a in u.spatial], u.names) == ((), ["i", "j"], ("i", "j"))
    assert len(best.reduced) == 1 and [a.name for a in best.spatial] == [best.names[0]]
    with pytest.raises(AssertionError):
        state.map(name)
    with pytest.raises(AssertionError):
        state.reduction("u")
    assert Schedule(best_two()).reductions == [name]


def test_terms_of_a_choice_are_values_and_places() -> None:
    (d,) = initial(best_two()).reductions.values()
    assert len(d.terms) == 4 and (d.elements, d.places) == (d.terms[:2], d.terms[2:])
    assert tuple(t.value for t in d.terms) == d.action.values and tuple(t.buffer for t in d.terms) == d.action.buffers
    assert tuple(t.start for t in d.terms) == d.action.init == d.identity


def test_a_reduction_whose_init_is_a_stage_has_terms_without_a_start() -> None:
    text = "program p\n  out y: f32[]\nbody:\n  for j in [0, 4):\n    y: y[] += 1.0\n"
    d = initial(parse_program(text)).reduction("y")
    assert [t.start for t in d.terms] == [None] and d.elements == d.terms and not d.places


def test_an_axis_runs_over_a_part_of_its_dimension() -> None:
    whole = whole_axis("j", n)
    assert whole.whole and whole.length == n and not whole.choosing
    begin = binary("mul", z, 8)
    part = Axis("j", begin, minimum(binary("add", begin, 8), n), n)
    assert not part.whole and part.choosing == {"z", "n"}
    assert print_expr(part.length) == "min(z * 8 + 8, n) - z * 8"
    d = define((whole_axis("z", Var("parts")), part), initial(best_two()).map("u").action)
    # n is no axis.
    assert d.choosing == {"z"} and d.extents == {"z": Var("parts"), "j": n} and d.axis("j") == part


def test_bounds_may_be_loaded() -> None:
    """A row of a sparse matrix: its axis runs over [ptr[i], ptr[i + 1]) of all elements."""
    lo, hi = (parse_expr(t, {"ptr": "int32", "i": "int32"}) for t in ("ptr[i]", "ptr[i + 1]"))
    row = Axis("k", lo, hi, Var("nnz"))
    assert row.choosing == {"i"} and print_expr(row.length) == "ptr[i + 1] - ptr[i]"


def test_split_k_gives_axes_bounds() -> None:
    r, c = nt.var("r"), nt.var("c")
    x, j = nt.placeholder((r, c), "float32", "x"), nt.reduce_axis((0, c), "j")
    sch = Schedule(nt.build(nt.compute((r,), lambda i: nt.sum(x[i, j], axis=j), "s"), name="p"))
    loop = sch.split_k(sch.loops("s")[1], 4)
    local = sch.definition("s_split")
    assert local.names[0] == loop.var and local.choosing == {loop.var}
    along = local.axis(local.reduced[0])
    assert not along.whole and variables(along.lo) == {loop.var, "c"} and along.extent == Var("c")
    assert all(a.whole for a in sch.definition("s").axes)


def test_what_follows_from_a_definition_is_found_once() -> None:
    """Roles and alignment ask every pair of stages what it reads, again and again; of another definition it is new."""
    before, stages = initial(operator("prefill_causal", heads=None, depth=64)), ("p", "l")
    d = before.reduction("l")
    assert d.reads() and d.names == tuple(a.name for a in d.axes) and d.reduced and not d.choosing
    assert calls(lambda: (d.reads(), d.names, d.choosing, d.reduced)) <= 2
    d.reads().clear()
    assert d.reads()
    other = d.rewritten(lambda e: redirected(e, {x.buffer: "z" for x in d.reads()}))
    assert {x.buffer for x in other.reads()} == {"z"}
    assert replace(d, axes=d.axes[::-1]).names == d.names[::-1]
    assert all(before.path(s)[1].name == s for s in stages)
    assert calls(lambda: [before.path(s) for s in stages]) <= 2 + len(stages)


def test_scheduling_attention_walks_little() -> None:
    program = operator("prefill_causal", heads=None, depth=64)
    flash_attention(Schedule(program))
    assert calls(lambda: flash_attention(Schedule(program))) < 330_000
