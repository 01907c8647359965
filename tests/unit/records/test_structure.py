"""A structure is the same exactly where programs differ in names alone."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings

from neptune.frontend.builder import build, compute, placeholder, power, reduce_axis, sum, var
from neptune.ir.program import For, Program, stages, walk
from neptune.ir.text.parser import parse_program
from neptune.ops.attention import attention, operator
from neptune.ops.norm import rms_norm
from neptune.records.structure import DIGITS, canonical, kin_of, structure_of
from tests.examples.strategies import programs

TEXT = """\
program rows
  in x: f32[m, n]
  in w: f16[n]
  in idx: i32[m]
  out y: f32[m]
  out z: f32[m]
  temp t: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
  scalar scale: f32
body:
  for i in [0, m):
    t_first: t[i] = -3.4028234663852886e+38
    for j in [0, n):
      top: t[i] max= x[i, j] * scale when j < n - idx[i]
  for i in [0, m):
    for j in [0, n):
      total: y[i] += exp(x[i, j] - t[i]) * cast(f32, w[j]) init 0.0
  for i in [0, m):
    last: z[i] = select(y[i] < 0.5, y[i], t[i])
"""
RENAMED = """\
program other
  in a: f32[m, n]
  in b: f16[n]
  in c: i32[m]
  out d: f32[m]
  out e: f32[m]
  temp f: f32[m]
  scalar m: i32 lo 1
  scalar n: i32 lo 1
  scalar scale: f32
body:
  for r in [0, m):
    s1: f[r] = -3.4028234663852886e+38
    for k in [0, n):
      s2: f[r] max= a[r, k] * scale when k < n - c[r]
  for p in [0, m):
    for r in [0, n):
      s3: d[p] += exp(a[p, r] - f[p]) * cast(f32, b[r]) init 0.0
  for q in [0, m):
    s4: e[q] = select(d[q] < 0.5, d[q], f[q])
"""
CHANGES = {
    "an operator": ("exp(x[i, j] - t[i])", "exp2(x[i, j] - t[i])"),
    "another operator": ("x[i, j] - t[i]", "x[i, j] + t[i]"),
    "the order of operands": ("x[i, j] - t[i]", "t[i] - x[i, j]"),
    "a dtype of an input": ("in w: f16", "in w: bf16"),
    "a dtype of a temporary and its start": (
        "temp t: f32[m]",
        "temp t: f32[m] @tile",
    ),
    "a constant": ("< 0.5", "< 0.25"),
    "a last digit": ("-3.4028234663852886e+38", "-3.4028234663852880e+38"),
    "a sign of zero": ("init 0.0", "init -0.0"),
    "a comparison": ("y[i] < 0.5", "y[i] <= 0.5"),
    "a reducer": ("max= x", "min= x"),
    "another reducer": ("y[i] += exp", "y[i] max= exp"),
    "a mask": ("j < n - idx[i]", "j <= n - idx[i]"),
    "no mask": (" when j < n - idx[i]", ""),
    "an index": ("cast(f32, w[j])", "cast(f32, w[j % 2])"),
    "what is read": ("select(y[i] < 0.5, y[i], t[i])", "select(y[i] < 0.5, t[i], y[i])"),
    "a size": ("in w: f16[n]", "in w: f16[m]"),
    "a fixed size": ("in w: f16[n]", "in w: f16[128]"),
    "the bound of a size": ("scalar n: i32 lo 1", "scalar n: i32 lo 2"),
    "the divisor of a size": ("scalar n: i32 lo 1", "scalar n: i32 lo 1 divisor 8"),
    "the kind of a loop": ("  for i in [0, m):\n    last", "  for i in [0, m) grid.x:\n    last"),
    "the bounds of a loop": ("for j in [0, n):\n      top", "for j in [1, n):\n      top"),
    "the order of outputs": ("  out y: f32[m]\n  out z: f32[m]\n", "  out z: f32[m]\n  out y: f32[m]\n"),
    "an order of loops": ("for j in [0, n):\n      top: t[i]", "for j in [0, m):\n      top: t[i]"),
    "the name of a size": ("scale", "factor"),
}


def changed(old: str, new: str) -> str:
    assert old in TEXT
    return TEXT.replace(old, new)


def test_names_of_buffers_loops_and_stages_say_nothing() -> None:
    assert TEXT != RENAMED
    assert structure_of(parse_program(TEXT)) == structure_of(parse_program(RENAMED))
    assert re.fullmatch(f"[0-9a-f]{{{DIGITS}}}", structure_of(parse_program(TEXT)))


@pytest.mark.parametrize("what", CHANGES)
def test_any_other_change_is_another_structure(what: str) -> None:
    assert structure_of(parse_program(changed(*CHANGES[what]))) != structure_of(parse_program(TEXT))


@pytest.mark.parametrize("what", CHANGES)
def test_of_all_changes_the_values_of_constants_alone_leave_the_kin(what: str) -> None:
    same = kin_of(parse_program(changed(*CHANGES[what]))) == kin_of(parse_program(TEXT))
    assert same == (what == "a last digit")


def test_an_epsilon_a_scale_and_a_cap_leave_the_kin_and_an_exponent_does_not() -> None:
    norms = [rms_norm("float16", eps=e) for e in (1e-6, 1e-5, 2.0**-23, 3e-300)]
    assert len({structure_of(p) for p in norms}) == 4 and len({kin_of(p) for p in norms}) == 1
    scores = [attention(depth=64, scale=s, softcap=c) for s, c in ((0.125, 50.0), (0.3, 30.0), (64.0, 17.5))]
    assert len({kin_of(p) for p in scores}) == 1
    assert kin_of(attention(depth=64, softcap=50.0)) != kin_of(attention(depth=64))
    x = placeholder((var("n"),), "float32", "x")
    powers = [build([compute(x.shape, lambda i, e=e: power(x[i], e), "y")], inputs=[x]) for e in (2.0, 3.0, 0.5, -1.5)]
    assert len({kin_of(p) for p in powers}) == 4
    whole = [build([compute(x.shape, lambda i, c=c: x[i] * c, "y")], inputs=[x]) for c in (1.0, 2.0, 16.0, 17.0, 18.0)]
    assert [kin_of(p) == kin_of(whole[-1]) for p in whole] == [False, False, False, True, True]


def test_no_two_changes_meet() -> None:
    texts = [TEXT, *(changed(*c) for c in CHANGES.values())]
    assert len({structure_of(parse_program(t)) for t in texts}) == len(texts)


def swapped(program: Program) -> Program:
    """The program with other names, by its text: every name but those of sizes and scalars gets another ending."""
    kept = {s.name for s in program.scalars} | {t.name for t in program.tunables}
    names = {*program.buffers, *(s.name for s in stages(program.body))}
    names |= {s.var for s in walk(program.body) if isinstance(s, For)}
    pattern = re.compile(rf"(?<!grid\.)\b({'|'.join(map(re.escape, sorted(names - kept, key=len, reverse=True)))})\b")
    return parse_program(pattern.sub(lambda m: f"other_{m[0]}", str(program)))


@settings(max_examples=25, deadline=None)
@given(programs(), programs())
def test_random_programs(a: Program, b: Program) -> None:
    assert swapped(a) != a
    assert structure_of(swapped(a)) == structure_of(a)
    assert canonical(canonical(a)) == canonical(a)
    # The digest tells apart what the canonical form does.
    assert (structure_of(a) == structure_of(b)) == (str(canonical(a)) == str(canonical(b)))


def test_what_the_front_end_makes() -> None:
    def rows(x_name: str, y_name: str, dtype: str = "float32") -> Program:
        m, n = var("m"), var("n")
        x = placeholder((m, n), dtype, x_name)
        k = reduce_axis((0, n), "k" + x_name)
        return build(compute((m,), lambda i: sum(x[i, k], axis=k), y_name), name=y_name)

    assert structure_of(rows("x", "y")) == structure_of(rows("p", "q"))
    assert structure_of(rows("x", "y")) != structure_of(rows("x", "y", "float16"))


def test_operators_differ() -> None:
    made = [operator(name, heads=None, depth=d) for name in ("prefill_global", "prefill_causal") for d in (64, 128)]
    assert len({structure_of(p) for p in made}) == 4
    assert structure_of(operator("prefill_causal", heads=None, depth=64)) == structure_of(made[2])
