"""Generated Triton source: goldens of the fixtures, and the rules of the text piece by piece."""

from __future__ import annotations

import ast
import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))

from goldens import check_golden
from tile_examples import at, attention, lit, map_, softmax

from neptune.codegen.triton import generate
from neptune.codegen.triton_expr import ScalarPrinter, host_expr, nonnegative
from neptune.codegen.triton_index import oriented, place
from neptune.codegen.triton_text import Text, constant, infix, literal, wrap
from neptune.errors import InternalError
from neptune.ir.expr import Const, Expr, Load, Var, cast, ceildiv, maximum, op, select
from neptune.ir.program import Buffer, Tunable
from neptune.ir.program import Scalar as ScalarParam
from neptune.tile.ir import (
    Assign,
    GridAxis,
    Iota,
    LoadTile,
    Local,
    Loop,
    Map,
    Rearrange,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
)

N, BLOCK = Var("n"), Var("BLOCK")


def rowwise(body: tuple[TStmt, ...], grid: tuple[GridAxis, ...] | None = None, extra: tuple[Buffer, ...] = ()) -> str:
    """The source of a kernel over x[n, n] → y[n, n] with axes r and c."""
    kernel = TileKernel(
        "one", grid or (GridAxis("i0", ceildiv(N, BLOCK), "x"),), (("r", BLOCK), ("c", Const(64, "int32"))), body
    )
    buffers = (Buffer("x", (N, N), "float32"), *extra)
    tunables = (Tunable("BLOCK", (16,)),)
    out = (Buffer("y", (N, N), "float32"),)
    return generate(TileProgram("run", buffers, out, (), (ScalarParam("n", lo=1),), tunables, (kernel,)))


def column(axis: str) -> Rearrange:
    return Rearrange(at(Var("i0") * BLOCK, axis), f"{axis} -> {axis} 1")


C = Rearrange(Iota("c"), "c -> 1 c")
X = LoadTile("x", (column("r"), C), None, 0.0, ("r", "c"), "float32")


def store(value: TExpr) -> StoreTile:
    return StoreTile("y", (column("r"), C), value, None, ("r", "c"))


@pytest.mark.parametrize("loads", ["pointer", "descriptor"])
def test_attention_golden(loads: str) -> None:
    check_golden(f"attention_{loads}.py", generate(attention(), loads=loads))


def test_softmax_golden() -> None:
    check_golden("softmax.py", generate(softmax(), header="Softmax over rows."))


@pytest.mark.parametrize("loads", ["pointer", "descriptor"])
@pytest.mark.parametrize("program", [softmax(), attention(64, "bfloat16")])
def test_source_is_valid_and_nothing_is_dead(program: TileProgram, loads: str) -> None:
    tree = ast.parse(generate(program, loads=loads))
    for fn in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
        names = [n for n in ast.walk(fn) if isinstance(n, ast.Name)]
        read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
        written = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        assert written <= read, f"dead in {fn.name}: {written - read}"
        assert {a.arg for a in fn.args.args} <= read


def test_descriptor_loads_need_masks_that_mean_inside_the_buffer() -> None:
    inside = map_("lt", column("r"), Scalar(N))
    shifted = map_("lt", column("r"), Scalar(N - 1))
    axes = (("r", BLOCK), ("c", Const(64, "int32")))

    def source(mask: TExpr, other: float) -> str:
        load = LoadTile("x", (column("r"), C), mask, other, ("r", "c"), "float32")
        kernel = TileKernel("one", (GridAxis("i0", ceildiv(N, BLOCK), "x"),), axes, (store(load),))
        program = TileProgram(
            "run",
            (Buffer("x", (N, N), "float32"),),
            (Buffer("y", (N, N), "float32"),),
            (),
            (ScalarParam("n", lo=1),),
            (Tunable("BLOCK", (16,)),),
            (kernel,),
        )
        return generate(program, loads="descriptor")

    assert "x_desc.load" in source(inside, 0.0)
    assert "x_desc.load" not in source(shifted, 0.0)
    assert "x_desc.load" not in source(inside, -math.inf)


def test_generation_is_deterministic() -> None:
    assert generate(attention()) == generate(attention())


def test_stage_comments_and_hoisting() -> None:
    text = generate(attention())
    loop = text[text.index("for j0") :]
    assert loop.count("# p\n") == 2
    assert "tl.arange" not in loop
    assert "stride_k_batch" not in loop[: loop.index("def attention(")]


def test_strides_are_widened_before_they_multiply() -> None:
    text = rowwise((store(X),))
    assert "(i0 * BLOCK).to(tl.int64) * stride_x_0" in text


def test_a_variable_that_only_addresses_is_wide() -> None:
    row = LoadTile("x", (Scalar(Var("i0")), Iota("c")), None, 0.0, ("c",), "float32")
    out = StoreTile("y", (Scalar(Var("i0")), Iota("c")), row, None, ("c",))
    text = rowwise((out,))
    assert "i0 = tl.program_id(0).to(tl.int64)" in text
    assert "x_ptr + i0 * stride_x_0" in text


def test_shared_launch_dimensions_are_taken_apart() -> None:
    grid = (GridAxis("i0", ceildiv(N, BLOCK), "x"), GridAxis("g", N, "x"))
    index = (Scalar(Var("g")), Iota("c"))
    out = StoreTile("y", index, LoadTile("x", index, None, 0.0, ("c",), "float32"), None, ("c",))
    text = rowwise((out,), grid)
    assert "pid_x = tl.program_id(0)" in text
    assert "g = (pid_x // tl.cdiv(n, BLOCK)).to(tl.int64)" in text
    assert "grid = (triton.cdiv(n, BLOCK) * n,)" in text


def test_sibling_loops_share_names_and_an_outer_definition_never_takes_one() -> None:
    def loop(start: Expr) -> Loop:
        pos = map_("add", Scalar(start), Iota("r"))
        load = LoadTile("x", (Rearrange(pos, "r -> r 1"), C), map_("lt", Rearrange(pos, "r -> r 1"), Scalar(N)), 0.0,
                        ("r", "c"), "float32")  # fmt: skip
        return Loop("j", Const(0, "int32"), N, (Assign("acc", map_("add", Local("acc", *ACC), load)),))

    ACC = (("r", "c"), "float32")
    body = (Assign("acc", X), loop(Var("j") * BLOCK), loop(Var("j") + 1), loop(N + N), store(Local("acc", *ACC)))
    text = rowwise(body)
    assert text.count("        idx_r = j * BLOCK + offs_r") == 1
    assert text.count("        idx_r = j + 1 + offs_r") == 1
    # The third is invariant, so that it moves out, where a loop's own name would be carried.
    assert "\n    idx_r_1 = n + n + offs_r" in text


def test_scalar_loads_in_bounds_are_named_once() -> None:
    bound = Load("x", (Const(0, "int32"), Const(1, "int32")), "float32")
    loop = Loop("j", Const(0, "int32"), cast(bound, "int32"), (store(X),))
    text = rowwise((loop, loop))
    assert text.count("tl.load(x_ptr + 1)") == 1


def test_floats_keep_their_order_and_integers_lose_parentheses() -> None:
    a, b, c = Text("a"), Text("b"), Text("c")
    assert str(infix("add", a, infix("add", b, c, "float32"), "float32")) == "a + (b + c)"
    assert str(infix("add", a, infix("add", b, c))) == "a + b + c"
    assert str(infix("mul", infix("add", a, b), c)) == "(a + b) * c"
    assert str(infix("and", infix("lt", a, b), infix("eq", b, c))) == "(a < b) & (b == c)"


def test_constants() -> None:
    assert str(constant(op("mul", Const(0.08838834764831845, "float32"), op("log2e")))) == "0.12751743"
    assert constant(op("mul", Var("scale", "float32"), op("log2e"))) is None
    assert constant(op("mul", Const(2.0, "float32"), Const(3.0, "float32"))) is None
    assert str(literal(-math.inf, "float32")) == 'float("-inf")'
    assert str(literal(1e-6, "float32")) == "1e-06"


def scalar(e: Expr) -> str:
    """A scalar in a kernel in which only `n` is known not to be negative."""
    printer = ScalarPrinter(str, lambda x, g: Text(x.buffer), lambda e: None, lambda v: v == "n", lambda h: None)
    return str(printer(e))


def test_floor_division_of_what_may_be_negative() -> None:
    w, four = Var("w"), Const(4, "int32")
    assert scalar(op("floordiv", N, four)) == "n // 4"
    assert scalar(op("floordiv", maximum(w, 0), four)) == "tl.maximum(w, 0) // 4"
    assert scalar(op("floordiv", w, four)) == "tl.where(w < 0, w - (4 - 1), w) // 4"
    assert scalar(op("mod", w - N, four)) == "((w - n) % 4 + 4) % 4"
    assert scalar(ceildiv(N, Var("BLOCK"))) == "tl.cdiv(n, BLOCK)"
    assert nonnegative(N * 3 + 1, lambda v: v == "n") and not nonnegative(N - 1, lambda v: v == "n")


def test_launch_expressions_use_python() -> None:
    e = select(N < 4, op("floordiv", N, Const(2, "int32")), ceildiv(N, 8))
    assert str(host_expr(e, str)) == "n // 2 if n < 4 else triton.cdiv(n, 8)"
    with pytest.raises(InternalError):
        host_expr(Load("x", (N,), "int32"), str)


def test_dims_are_placed() -> None:
    assert place("t", ("m",), ("m", "n")) == "t[:, None]"
    assert place("t", ("n", "m"), ("m", "n")) == "tl.trans(t)"
    assert place("t", ("a", "b", "c"), ("c", "a", "b")) == "tl.permute(t, [2, 0, 1])"
    assert place("t", ("m", "1"), ("m", "n")) == "t"
    with pytest.raises(InternalError):
        place("t", ("m",), ("n",))


def test_a_permuted_load_is_loaded_permuted() -> None:
    mask = map_("lt", column("r"), Scalar(N))
    load = LoadTile("x", (column("r"), C), mask, 0.0, ("r", "c"), "float32")
    assert oriented(mask, ("r", "c"), ("c", "r")).dims == ("1", "r")
    sums = Reduce("sum", "c", Rearrange(load, "r c -> c r"))
    value = map_("mul", Rearrange(sums, "r -> r 1"), lit(2.0))
    text = rowwise((store(Map("add", (value, X), ("r", "c"), "float32")),))
    assert "tl.trans" not in text
    assert "mask=idx_r[None, :] < n" in text and "tl.sum(x, axis=0)" in text


def test_long_lines_break_at_commas() -> None:
    line = f"    value = function({', '.join(f'argument_number_{k}' for k in range(9))})"
    lines = wrap(line)
    assert len(lines) == 11 and lines[1] == "        argument_number_0," and lines[-1] == "    )"
    assert "".join(x.strip() + " " for x in lines).replace("( ", "(").replace(", )", ")").strip() == line.strip()


def test_headers_cannot_end_the_docstring() -> None:
    text = generate(softmax(), header='odd """ header \\')
    assert ast.get_docstring(ast.parse(text)) == 'odd """ header \\'
