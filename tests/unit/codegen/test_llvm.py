"""The LLVM target: hand-built Programs, compared with torch and with exact bit patterns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from neptune.codegen import llvm
from neptune.codegen import tvmscript as llvm_text
from neptune.codegen.llvm import LLVMKernel, compile_llvm, hoist_allocs
from neptune.codegen.tvm_values import float_literal
from neptune.errors import InternalError, ShapeError
from neptune.ir import reducers
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Var,
    binary,
    cast,
    ceildiv,
    eq,
    logical_and,
    logical_or,
    minimum,
    ne,
    op,
    select,
)
from neptune.ir.program import (
    Alloc,
    Buffer,
    For,
    If,
    Program,
    Scalar,
    Stage,
    Stmt,
    Store,
    Tunable,
    Update,
    seq,
)
from neptune.ir.text.parser import parse_program
from neptune.verify.evaluate import evaluate

pytest.importorskip("tvm")

ZERO = Const(0, "int32")
I, J, K, M, N, D = (Var(n) for n in ("i", "j", "k", "m", "n", "d"))  # noqa: E741
INF, NAN = math.inf, math.nan


def f32(value: float) -> Const:
    return Const(value, "float32")


def loop(var: Var, hi: Expr, *body: Stmt, lo: Expr = ZERO, kind: str = "serial") -> For:
    return For(var.name, lo, hi, seq(*body), kind)


def make(
    ins: list[Buffer],
    outs: list[Buffer],
    body: Stmt,
    temps: tuple[Buffer, ...] = (),
    tunables: tuple[Tunable, ...] = (),
) -> Program:
    """A Program whose scalars are the variables of the shapes."""
    names = dict.fromkeys(d.name for b in (*ins, *outs) for d in b.shape if isinstance(d, Var))
    scalars = tuple(Scalar(n) for n in names)
    return Program("p", tuple(ins), tuple(outs), temps, scalars, tunables, body)


def pointwise(value: Expr, xs: list[torch.Tensor], dtype: str, **kwargs: bool) -> torch.Tensor:
    """Run y[i] = value, where the tensors are x0, x1, …; `x(k, dtype)` reads them at i."""
    ins = [Buffer(f"x{k}", (N,), str(t.dtype).removeprefix("torch.")) for k, t in enumerate(xs)]
    program = make(ins, [Buffer("y", (N,), dtype)], loop(I, N, Stage("s", Store("y", (I,), value))))
    y = torch.empty(len(xs[0]), dtype=getattr(torch, dtype))
    compile_llvm(program, **kwargs)(xs, [y], {"n": len(y)}, {})
    return y


def x(k: int = 0, dtype: str = "float32") -> Load:
    return Load(f"x{k}", (I,), dtype)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equality to the bit, except that all NaNs are one (and -0 is not 0)."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if not a.is_floating_point():
        return torch.equal(a, b)
    ints = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.element_size()]
    return bool((a.contiguous().view(ints) == b.contiguous().view(ints)).logical_or(a.isnan() & b.isnan()).all())


# --- roundings -------------------------------------------------------------------------------------


def awkward() -> torch.Tensor:
    """Random bit patterns of float32 (all exponents, NaN payloads), every bf16 tie, and the specials."""
    gen = torch.Generator().manual_seed(0)
    raw = torch.randint(-(2**31), 2**31 - 1, (20000,), generator=gen).to(torch.int32)
    ties = (torch.arange(-(2**15), 2**15, 7).to(torch.int32) << 16) | 0x8000
    special = torch.tensor([0.0, -0.0, INF, -INF, NAN, 3.4028234663852886e38, -3.3961775292304601e38, 1e-45, 65520.0])
    payload = torch.tensor([0x7FFFFFFF, 0x7F800001, -1], dtype=torch.int32)
    bits = torch.cat([raw, ties, ties - 1, ties + 1, payload])
    return torch.cat([bits.view(torch.float32), special])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_is_torchs_to_the_bit(dtype: str) -> None:
    values = awkward()
    assert same(pointwise(cast(x(), dtype), [values], dtype), values.to(getattr(torch, dtype)))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_rounding_inside_an_expression_is_not_erased(dtype: str) -> None:
    values = awkward()
    got = pointwise(cast(cast(x(), dtype), "float32"), [values], "float32")
    assert same(got, values.to(getattr(torch, dtype)).float())
    assert not same(got, values)


def test_float64_rounds_to_16_bits_once() -> None:
    # 1 + 2^-8 + 2^-40 is just above a bf16 tie; through float32 it would become the tie and round down.
    tie, tiny = 1 + 2**-8, 2**-40
    values = torch.tensor([tie + tiny, -tie - tiny, tie - tiny, 1.5, 1e300, -INF, NAN, 0.0], dtype=torch.float64)
    want = torch.tensor([1 + 2**-7, -(1 + 2**-7), 1.0, 1.5, INF, -INF, NAN, 0.0], dtype=torch.bfloat16)
    assert same(pointwise(cast(x(dtype="float64"), "bfloat16"), [values], "bfloat16"), want)
    half = torch.tensor([1 + 2**-11 + 2**-40, 1 + 2**-11], dtype=torch.float64)
    assert same(
        pointwise(cast(x(dtype="float64"), "float16"), [half], "float16"),
        torch.tensor([1 + 2**-10, 1.0], dtype=torch.float16),
    )


def test_float64_to_float32_and_back_is_a_rounding() -> None:
    values = torch.randn(100, dtype=torch.float64)
    got = pointwise(cast(cast(x(dtype="float64"), "float32"), "float64"), [values], "float64")
    assert same(got, values.float().double()) and not same(got, values)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_arithmetic_rounds_at_every_node(dtype: str, name: str) -> None:
    a, b, c = (torch.randn(2000, dtype=torch.float64).to(getattr(torch, dtype)) for _ in range(3))
    value = binary("add", binary(name, x(0, dtype), x(1, dtype)), x(2, dtype))
    first = {"add": a + b, "sub": a - b, "mul": a * b, "div": a / b}[name]
    assert same(pointwise(value, [a, b, c], dtype), first + c)


def test_products_are_not_contracted() -> None:
    a = torch.tensor([1 + 2**-12])
    got = pointwise(x() * x() - x(1), [a, a * a], "float32")
    assert got.item() == 0.0  # a fused multiply-add would leave 2^-24


def test_products_are_fenced_where_fused_instructions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llvm, "_X86", False)
    monkeypatch.setattr(llvm, "_COMPILED", {})
    a = torch.tensor([1 + 2**-12])
    assert pointwise(x() * x() - x(1), [a, a * a], "float32").item() == 0.0


def test_ieee_identities_survive_tvm() -> None:
    v = torch.tensor([1.0, -0.0, INF, -INF, NAN, 1e-40, 3.0])
    zero, one, nought = f32(0.0), f32(1.0), f32(0.0)
    cases: list[tuple[Expr, torch.Tensor]] = [
        (x() - x(), v - v),
        (x() * 0.0, v * 0.0),
        (x() + 0.0, v + 0.0),
        (x() / 3.0, v / 3.0),
        (-x(), -v),
        (select(eq(x(), x()), one, nought), (v == v).float()),
        (select(ne(x(), x()), one, nought), (v != v).float()),
        (select(op("not", x() > zero), one, nought), (~(v > 0)).float()),
        (select(x() <= zero, one, nought), (v <= 0).float()),
        (select(op("not", x() >= zero), one, nought), (~(v >= 0)).float()),
        (select(ne(x(), 3.0), one, nought), (v != 3).float()),
    ]
    for value, want in cases:
        assert same(pointwise(value, [v], "float32"), want), str(value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_constants_are_exact(dtype: str) -> None:
    info = torch.finfo(getattr(torch, dtype))
    for value in (0.0, -0.0, -INF, NAN, info.max, info.min, 0.1, 1e-45):
        want = torch.tensor([value], dtype=torch.float64).to(getattr(torch, dtype))
        assert same(pointwise(Const(value, dtype), [torch.zeros(1)], dtype), want), value
    for name, value in (("log2e", math.log2(math.e)), ("ln2", math.log(2))):
        want = torch.tensor([value], dtype=getattr(torch, dtype))
        assert same(pointwise(op(name, dtype=dtype), [torch.zeros(1)], dtype), want)


@pytest.mark.parametrize("name", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_with_nan_in_guards(name: str) -> None:
    """`not (a < b)` holds for NaN although `a >= b` does not; in guards as in expressions."""
    v, want = torch.tensor([NAN, 1.0, 2.0, -1.0]), getattr(torch, name)(torch.tensor([NAN, 1.0, 2.0, -1.0]), 1.0)
    pred = binary(name, x(), 1.0)
    for p, w in ((pred, want), (op("not", pred), ~want)):
        guarded = seq(Stage("clear", Store("y", (I,), f32(0.0))), Stage("set", Store("y", (I,), f32(1.0)), p))
        y = torch.empty(4)
        compile_llvm(make([Buffer("x0", (N,), "float32")], [Buffer("y", (N,), "float32")], loop(I, N, guarded)))(
            [v], [y]
        )
        assert torch.equal(y, w.float())
        assert torch.equal(pointwise(p, [v], "bool"), w)


def test_a_literal_too_large_for_its_dtype_is_infinite() -> None:
    assert float_literal(1e6, "float16") == 'T.reinterpret("float32", T.uint32(0x7f800000))'


# --- integers, bools and choices -------------------------------------------------------------------


def test_conversions_between_kinds() -> None:
    v = torch.tensor([-2.7, 2.7, 0.0, 5.0])
    assert pointwise(cast(x(), "bool"), [torch.tensor([NAN, -0.0])], "bool").tolist() == [True, False]
    assert pointwise(cast(x(), "int32"), [v], "int32").tolist() == [-2, 2, 0, 5]
    assert pointwise(cast(x(), "bool"), [v], "bool").tolist() == [True, True, False, True]
    big = torch.tensor([2**24 + 1, -3, 257, 2**40])
    assert pointwise(cast(x(dtype="int64"), "int32"), [big], "int32").tolist() == big.int().tolist()
    assert pointwise(cast(cast(x(dtype="int64"), "int32"), "int64"), [big], "int64")[3].item() == 0
    assert same(pointwise(cast(x(dtype="int64"), "float32"), [big], "float32"), big.float())
    assert pointwise(cast(x(dtype="int64"), "bfloat16"), [big], "bfloat16").tolist() == [2.0**24, -3, 256, 2.0**40]
    flags = torch.tensor([True, False])
    assert pointwise(cast(x(dtype="bool"), "float16"), [flags], "float16").tolist() == [1.0, 0.0]
    assert pointwise(op("not", x(dtype="bool")), [flags], "bool").tolist() == [False, True]
    u = torch.tensor([200, 7], dtype=torch.uint8)
    assert pointwise(cast(x(dtype="uint8"), "int32") * 2, [u], "int32").tolist() == [400, 14]


def test_what_is_not_chosen_is_not_executed() -> None:
    """The index of the untaken load is far outside any mapping, the untaken division is by zero."""
    v, d = torch.arange(4.0), torch.tensor([0, 2, 0, 5], dtype=torch.int32)
    far = I * 1_000_000_000 * 1000
    inside = eq(I, 0)
    assert pointwise(select(inside, Load("x0", (far,), "float32"), x()), [v], "float32").tolist() == v.tolist()
    guard = logical_and(inside, Load("x0", (far,), "float32") >= 0.0)
    assert pointwise(guard, [v], "bool").tolist() == [True, False, False, False]
    other = logical_or(op("not", inside), Load("x0", (far,), "float32") >= 1.0)
    assert pointwise(other, [v], "bool").tolist() == [False, True, True, True]
    safe = select(ne(x(1, "int32"), 0), binary("floordiv", 10, x(1, "int32")), 0)
    assert pointwise(safe, [v, d], "int32").tolist() == [0, 5, 0, 2]


@pytest.mark.parametrize("kind", ["select", "or", "compare"])
def test_conditions_in_conditions_are_compiled(kind: str) -> None:
    """Forty deep: passes of TVM's take twice as long for each, so that without places this would not end; nor would it
    where both sides of a comparison were printed twice."""
    v, d = torch.randn(64), torch.randint(-4, 4, (64,), dtype=torch.int32)
    condition, right = x() > 0.0, v > 0
    for k in range(40):
        at = k % 7 - 3
        if kind == "select":
            condition, right = (
                select(condition, x(1, "int32") > at, x() > 0.1 * at),
                torch.where(right, d > at, v > 0.1 * at),
            )
        elif kind == "compare":
            condition, right = eq(select(condition, x(1, "int32"), 3), at), torch.where(right, d, 3) == at
        else:
            condition, right = op("not", logical_or(condition, eq(x(1, "int32"), at))), ~(right | (d == at))
    assert torch.equal(pointwise(condition, [v, d], "bool"), right)


# --- programs --------------------------------------------------------------------------------------


def softmax() -> Program:
    xmax = Update(("xmax",), (I,), "max", (Load("x", (I, J), "float32"),), (f32(-3.4028234663852886e38),))
    e = op("exp", Load("x", (I, J), "float32") - Load("xmax", (I,), "float32"))
    xsum = Update(("xsum",), (I,), "sum", (e,), (f32(0.0),))
    y = Store("y", (I, J), e / Load("xsum", (I,), "float32"))
    body = seq(
        loop(I, M, loop(J, N, Stage("xmax", xmax))),
        loop(I, M, loop(J, N, Stage("xsum", xsum))),
        loop(I, M, loop(J, N, Stage("y", y))),
    )
    temps = (Buffer("xmax", (M,), "float32"), Buffer("xsum", (M,), "float32"))
    return make([Buffer("x", (M, N), "float32")], [Buffer("y", (M, N), "float32")], body, temps)


def test_chain_of_reductions_and_one_function_for_all_sizes() -> None:
    kernel = compile_llvm(softmax())
    for m, n in ((3, 5), (17, 64), (1, 1), (0, 4)):
        v, y = torch.randn(m, n), torch.full((m, n), NAN)
        kernel([v], [y])
        torch.testing.assert_close(y, torch.softmax(v.double(), 1).float())


def matmul(dtype: str) -> Program:
    a, b = Load("a", (I, K), dtype), Load("b", (K, J), dtype)
    acc = Update(("c",), (I, J), "sum", (cast(a, "float32") * cast(b, "float32"),), (f32(0.0),))
    body = loop(I, M, loop(K, D, loop(J, N, Stage("c", acc))))
    return make([Buffer("a", (M, D), dtype), Buffer("b", (D, N), dtype)], [Buffer("c", (M, N), "float32")], body)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_matmul_accumulates_in_order(dtype: str) -> None:
    a, b = (torch.randn(s).to(getattr(torch, dtype)) for s in ((9, 33), (33, 20)))
    want, c = torch.zeros(9, 20), torch.full((9, 20), NAN)
    for k in range(33):
        want = want + a[:, k, None].float() * b[k].float()
    compile_llvm(matmul(dtype))([a, b], [c])
    assert same(c, want)
    compile_llvm(matmul(dtype), fast=True)([a, b], [c])
    torch.testing.assert_close(c, want, rtol=1e-4, atol=1e-4)


def test_any_strides_and_offsets_without_copies() -> None:
    a = torch.randn(33, 9).to(torch.bfloat16).t()  # last stride 9
    b = torch.randn(40, 25).to(torch.bfloat16)[3:36, 1:21]  # begins at an odd element
    c = torch.full((9, 2, 20), NAN)
    compile_llvm(matmul("bfloat16"))([a, b], [c[:, 1]])
    torch.testing.assert_close(c[:, 1], a.float() @ b.float(), rtol=1e-5, atol=1e-5)
    assert c[:, 0].isnan().all()
    wide = torch.randn(1, 20).to(torch.bfloat16).expand(33, 20)
    compile_llvm(matmul("bfloat16"))([a, wide], [c[:, 1]])
    torch.testing.assert_close(c[:, 1], a.float() @ wide.float(), rtol=1e-5, atol=1e-5)


BM, BN = Var("BLOCK_M"), Var("BLOCK_N")


def tiled() -> Program:
    """Row sums of exp in tiles of rows and columns, with tile buffers, guards and a causal bound."""
    i0, i1, j0, j1 = (Var(v) for v in ("i0", "i1", "j0", "j1"))
    i, j = i0 * BM + i1, j0 * BN + j1
    fill = Stage("fill", Store("t", (i1, j1), Load("x", (i, j), "float32")), logical_and(i < M, j < N, j <= i))
    clear = Stage("clear", Store("acc", (i1,), f32(0.0)))
    add = Stage(
        "add", Update(("acc",), (i1,), "sum", (Load("t", (i1, j1), "float32"),), None), logical_and(j < N, j <= i)
    )
    write = Stage("write", Store("y", (i,), Load("acc", (i1,), "float32")))
    tile = Alloc(
        Buffer("t", (BM, BN), "float32", "tile"),
        seq(loop(i1, BM, loop(j1, BN, fill)), loop(i1, BM, If(i < M, loop(j1, BN, add)))),
    )
    end = minimum(ceildiv(N, BN), ceildiv(i0 * BM + BM, BN))
    body = loop(
        i0,
        ceildiv(M, BM),
        Alloc(
            Buffer("acc", (BM,), "float32", "tile"),
            seq(loop(i1, BM, clear), loop(j0, end, tile), loop(i1, BM, If(i < M, write))),
        ),
        kind="grid.x",
    )
    tunables = (Tunable("BLOCK_M", (16, 32)), Tunable("BLOCK_N", (16,)))
    return make([Buffer("x", (M, N), "float32")], [Buffer("y", (M,), "float32")], body, tunables=tunables)


@pytest.mark.parametrize("block", [(1, 1), (16, 8), (32, 64)])
def test_tiles_guards_and_allocs(block: tuple[int, int]) -> None:
    kernel = compile_llvm(tiled())
    for m, n in ((37, 29), (16, 16), (5, 70)):
        v, y = torch.randint(-9, 9, (m, n)).float(), torch.full((m,), NAN)
        kernel([v], [y], {"m": m, "n": n}, {"BLOCK_M": block[0], "BLOCK_N": block[1]})
        assert torch.equal(y, v.tril().sum(1))


def test_allocs_of_one_name_and_different_shapes_are_kept_apart() -> None:
    def part(size: int, k: int) -> Stmt:
        t = Buffer("t", (Const(size, "int32"),), "float32", "tile")
        fill = Stage("fill", Store("t", (J,), cast(J + k, "float32")))
        out = Stage("out", Update(("y",), (Const(k, "int32"),), "sum", (Load("t", (J,), "float32"),), None))
        return Alloc(t, seq(loop(J, Const(size, "int32"), fill), loop(J, Const(size, "int32"), out)))

    init = Stage("init", Store("y", (I,), f32(0.0)))
    body = seq(loop(I, Const(3, "int32"), init), part(3, 0), part(5, 1), part(3, 2))
    program = make([], [Buffer("y", (Const(3, "int32"),), "float32")], body)
    assert [b.name for b in hoist_allocs(program).temporaries] == ["t", "t_1"]
    y = torch.empty(3)
    compile_llvm(program)([], [y])
    assert y.tolist() == [3.0, 15.0, 9.0]


def test_one_buffer_for_tiles_of_several_lengths() -> None:
    """A tile as long as a part of an axis: the last part is shorter."""
    text = """\
program p
  in x: f32[n]
  out y: f32[z, 4]
  scalar n: i32 lo 1
  scalar z: i32 lo 1
body:
  for part in [0, z):
    alloc t: f32[min(part * 4 + 4, n) - part * 4] @tile
    for j in [0, min(part * 4 + 4, n) - part * 4):
      a: t[j] = x[part * 4 + j]
    for k in [0, min(part * 4 + 4, n) - part * 4):
      b: y[part, k] = t[k] + 1.0
"""
    program, sizes = parse_program(text), {"n": 11, "z": 3}
    x, y = torch.arange(11, dtype=torch.float32), torch.full((3, 4), float("nan"))
    compile_llvm(program)([x], [y], sizes, {})
    found = evaluate(program, {"x": x.numpy()}, sizes)["y"]
    for have in (y.flatten(), torch.as_tensor(found).flatten()):
        assert torch.equal(have[:11].float(), x + 1)


def test_an_alloc_that_varies_with_a_loop() -> None:
    """It is as long as the longest, where that is known."""
    zero = Stage("s", Store("y", (I,), f32(0.0)))
    y = torch.full((5,), NAN)
    body = loop(I, N, Alloc(Buffer("t", (I,), "float32"), zero))
    compile_llvm(make([], [Buffer("y", (N,), "float32")], body))([], [y], {"n": 5})
    assert torch.equal(y, torch.zeros(5))
    body = loop(I, N, Alloc(Buffer("t", (binary("mod", binary("mul", I, I), 7),), "float32"), zero))
    with pytest.raises(InternalError, match="varies with i"):
        compile_llvm(make([], [Buffer("y", (N,), "float32")], body))


def test_two_tuple_updates_keep_their_parts_apart() -> None:
    outs = [Buffer(n, (M,), d) for n, d in (("a", "float32"), ("b", "int32"), ("c", "float32"), ("d", "int32"))]
    nests = []
    for name, reducer, targets in (("s", "argmax", ("a", "b")), ("t", "argmin", ("c", "d"))):
        init = reducers.REDUCERS[reducer].identity("float32", "int32")
        acc = Update(targets, (I,), reducer, (Load("x", (I, J), "float32"), J), init)
        nests.append(loop(I, M, loop(J, N, Stage(name, acc))))
    program = make([Buffer("x", (M, N), "float32")], outs, seq(*nests))
    v = torch.randint(-3, 3, (6, 30)).float()
    v[1], v[2, 7] = -INF, NAN
    a, b, c, d = (torch.empty(6, dtype=getattr(torch, o.dtype)) for o in outs)
    compile_llvm(program)([v], [a, b, c, d])
    assert torch.equal(b.long(), v.argmax(1)) and torch.equal(d.long(), v.argmin(1))
    assert same(a, v.max(1).values) and same(c, v.min(1).values)


def test_scalars_of_all_kinds_and_awkward_names() -> None:
    scalars = (Scalar("n"), Scalar("lambda", "float32"), Scalar("half", "bfloat16"), Scalar("T", "int64"))
    value = Load("main", (I,), "float32") * Var("lambda", "float32") + cast(Var("half", "bfloat16"), "float32")
    value = value + cast(Var("T", "int64"), "float32")
    body = loop(I, N, Stage("range", Store("u", (I,), value)))
    program = Program("p", (Buffer("main", (N,), "float32"),), (Buffer("u", (N,), "float32"),), (), scalars, (), body)
    y, v = torch.empty(3), torch.arange(3.0)
    compile_llvm(program)([v], [y], {"lambda": 0.1, "half": 1.001, "T": 2**33})
    assert same(y, v * torch.tensor(0.1) + 1.0 + 2.0**33)


def test_a_covering_tunable_is_derived() -> None:
    t = Buffer("t", (BM,), "float32", "tile")
    body = Alloc(t, Stage("s", Store("y", (), cast(BM, "float32"))))
    program = make([Buffer("x", (N,), "float32")], [Buffer("y", (), "float32")], body)
    program = replace(program, tunables=(Tunable("BLOCK_M", (), covers=N),))
    y = torch.empty(())
    for n, want in ((0, 1), (1, 1), (5, 8), (8, 8)):
        compile_llvm(program)([torch.zeros(n)], [y])
        assert y.item() == want


# --- errors and reuse ------------------------------------------------------------------------------


def test_one_text_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm

    compile_llvm(softmax())
    monkeypatch.setattr(tvm, "compile", None)  # a second compilation would fail
    y = torch.empty(2, 3)
    compile_llvm(softmax())([torch.zeros(2, 3)], [y])
    assert torch.allclose(y, torch.tensor(1 / 3))


def test_a_long_bound_is_computed_once_before_its_loop() -> None:
    """TVM repeats a bound wherever it is read, and simplifies under it: of masks of data for many seconds."""
    hi: Expr = N
    for k in range(4):
        hi = minimum(binary("floordiv", hi + Const(k, "int32"), 2) + M, hi)
    program = make([Buffer("x", (M,), "float32")], [Buffer("y", (N,), "float32")], seq(
        loop(I, N, Stage("zero", Store("y", (I,), f32(0.0)))),
        loop(J, hi, Stage("one", Store("y", (J,), f32(1.0)))),
    ))  # fmt: skip
    text = LLVMKernel(program, False).text()
    assert "in range(T.int64(0), scratch_int64[0]):" in text and max(map(len, text.splitlines())) > llvm_text.LONG
    y = torch.full((20,), 5.0)
    compile_llvm(program)([torch.zeros(3)], [y], {"n": 20})
    wanted = 20
    for k in range(4):
        wanted = min((wanted + k) // 2 + 3, wanted)
    assert y.tolist() == [1.0] * wanted + [0.0] * (20 - wanted)


def test_where_few_passes_do_not_serve_all_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    import tvm

    def other_version(_: object) -> None:
        raise AttributeError("FlattenBuffer")

    monkeypatch.setattr(llvm, "_COMPILED", {})
    monkeypatch.setattr(llvm, "_passes", other_version)
    monkeypatch.delitem(tvm.tirx.compilation_pipeline.PIPELINE_MAP, llvm._PIPELINE, raising=False)
    y = torch.empty(2, 3)
    compile_llvm(softmax())([torch.zeros(2, 3)], [y])
    assert torch.allclose(y, torch.tensor(1 / 3))
    monkeypatch.delitem(tvm.tirx.compilation_pipeline.PIPELINE_MAP, llvm._PIPELINE)


def run_softmax(v: torch.Tensor, y: torch.Tensor) -> None:
    LLVMKernel(softmax(), False)([v], [y])


def test_slices_of_one_tensor_do_not_overlap() -> None:
    both = torch.zeros(4, 2, 3)
    run_softmax(both[:, 0], both[:, 1])
    assert torch.allclose(both[:, 1], torch.tensor(1 / 3)) and not both[:, 0].any()
    with pytest.raises(ShapeError, match="overlaps"):
        run_softmax(both.view(4, 6)[:, 0:3], both.view(4, 6)[:, 2:5])


def test_a_failure_inside_tvm_names_the_stage() -> None:
    program = make([], [Buffer("y", (N,), "float32")], loop(I, N, Stage("bad", Store("y", (I, I), f32(0.0)))))
    with pytest.raises(InternalError, match="bad: y"):
        compile_llvm(program)
