"""Generated Triton source: goldens of the fixtures, and the rules of the text piece by piece."""

from __future__ import annotations

import ast
import math

import pytest
import torch

import neptune
from neptune.codegen.compile import compile_offline
from neptune.codegen.modules import descriptor_alignment
from neptune.codegen.triton import module
from neptune.codegen.triton.access import place
from neptune.codegen.triton.expr import HostPrinter, ScalarPrinter, nonnegative
from neptune.codegen.triton.notes import Piece, accumulators, pieces
from neptune.codegen.triton.text import Text, constant, infix, literal, wrap
from neptune.errors import InternalError
from neptune.frontend import builder as nt
from neptune.ir.expr import Cast, Const, Expr, Load, Op, Var, cast, ceildiv, maximum, op, select
from neptune.ir.program import Buffer, Tunable
from neptune.ir.program import Scalar as ScalarParam
from neptune.runtime.processes.interpret import run_interpreted
from neptune.tile.boxes import aligned_rows
from neptune.tile.index import oriented
from neptune.tile.ir import (
    Assign,
    Branch,
    GridAxis,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
)
from tests.examples.tile_examples import at, attention, lit, map_, softmax
from tests.goldens import check_golden
from tests.texts import generate

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
@pytest.mark.parametrize("program", [softmax(), attention(64, "bfloat16")])
def test_source_is_valid_and_nothing_is_dead(program: TileProgram, loads: str) -> None:
    tree = ast.parse(generate(program, loads=loads))
    for fn in (n for n in tree.body if isinstance(n, ast.FunctionDef)):
        names = [n for n in ast.walk(fn) if isinstance(n, ast.Name)]
        read = {n.id for n in names if isinstance(n.ctx, ast.Load)}
        written = {n.id for n in names if isinstance(n.ctx, ast.Store)}
        assert written <= read, f"dead in {fn.name}: {written - read}"
        assert {a.arg for a in fn.args.args} <= read


def boxes(*widths: Expr, dtype: str = "float32", mask: TExpr | None = None, other: float = 0.0) -> TileProgram:
    """One input x0, x1, … of shape [n, width] per width, each copied to y0, y1, … [n, 64] by tiles of 64 columns."""

    def read(name: str) -> LoadTile:
        return LoadTile(name, (column("r"), C), mask, other, ("r", "c"), dtype)

    def write(name: str, value: TExpr) -> StoreTile:
        return StoreTile(name, (column("r"), C), value, map_("lt", column("r"), Scalar(N)), ("r", "c"))

    body = tuple(write(f"y{k}", read(f"x{k}")) for k in range(len(widths)))
    axes = (("r", BLOCK), ("c", Const(64, "int32")))
    kernel = TileKernel("one", (GridAxis("i0", ceildiv(N, BLOCK), "x"),), axes, body)
    inputs = tuple(Buffer(f"x{k}", (N, w), dtype) for k, w in enumerate(widths))
    outputs = tuple(Buffer(f"y{k}", (N, Const(64, "int32")), dtype) for k in range(len(widths)))
    scalars = tuple(ScalarParam(v.name, lo=1) for v in dict.fromkeys((N, *widths)) if isinstance(v, Var))
    return TileProgram("run", inputs, outputs, (), scalars, (Tunable("BLOCK", (16,)),), (kernel,))


WIDE = Const(64, "int32")


def test_descriptor_loads_need_masks_that_mean_inside_the_buffer() -> None:
    inside = map_("lt", column("r"), Scalar(N))
    shifted = map_("lt", column("r"), Scalar(N - 1))
    assert "x0_desc.load" in generate(boxes(WIDE, mask=inside), loads="descriptor")
    assert "x0_desc.load" not in generate(boxes(WIDE, mask=shifted), loads="descriptor")
    assert "x0_desc.load" not in generate(boxes(WIDE, mask=inside, other=-math.inf), loads="descriptor")


def test_descriptors_are_for_rows_of_whole_16_bytes() -> None:
    """Rows of 66 and of w elements need not start at a multiple of 16 bytes; the same kernel reads them by pointers."""
    program = boxes(WIDE, Const(66, "int32"), Var("w"), dtype="float16")
    text = generate(program, loads="descriptor")
    assert "x0_desc.load" in text and "tl.load(x1_base + " in text and "x2_desc.load" in text
    assert descriptor_alignment(program) == ["x0", "x2", "y0", "y1", "y2"]
    assert descriptor_alignment(softmax()) == []
    assert "x0: float16 [n, 64], 16-byte aligned in address and strides\n" in text
    assert "x1: float16 [n, 66]\n" in text
    (compiled,) = compile_offline(text, program, "cuda:90", loads="descriptor")
    assert "cp.async.bulk.tensor" in compiled.asm and "ld.global" in compiled.asm


def test_descriptors_and_pointers_in_one_kernel() -> None:
    program = boxes(WIDE, Const(66, "int32"), Var("w"), dtype="float16", mask=map_("lt", column("r"), Scalar(N)))
    inputs = [torch.randn(21, w).half() for w in (64, 66, 72)]
    outputs = [torch.zeros(21, 64).half() for _ in inputs]
    run_interpreted(generate(program, loads="descriptor"), "run", [*inputs, *outputs])
    for x, y in zip(inputs, outputs, strict=True):
        assert torch.equal(y, x[:, :64])


@pytest.mark.parametrize(("dtype", "width", "fits"), [("float32", 4, 1), ("float16", 4, 0), ("int8", 80, 1)])
def test_alignment_counts_bytes(dtype: str, width: int, fits: int) -> None:
    assert aligned_rows(Buffer("x", (N, Const(width, "int32")), dtype)) == bool(fits)
    assert not aligned_rows(Buffer("x", (), dtype))


def test_comments_say_what_names_do_not() -> None:
    text = generate(attention())
    loop = text[text.index("for j0") :]
    assert loop.count("# m\n") == 2, "alpha is of stage m"
    assert "# p\n" not in text and "# acc\n" not in text
    assert "l = tl.zeros([BLOCK_M], tl.float32)  # running sum\n" in text


def test_invariant_parts_are_outside_of_loops_and_what_only_the_end_needs_is_behind_them() -> None:
    text = generate(attention())
    loop = text[text.index("for j0") :]
    assert "tl.arange" not in loop
    assert "stride_k_batch" not in loop[: loop.index("def attention(")]
    assert text.index("out_base =") > text.rindex("for j0")


def test_bounds_of_pieces_are_named_by_what_they_end() -> None:
    text = generate(attention())
    assert "# Tiles that need no mask.\n    for j0 in range(j0_clean_end):" in text
    assert "# The other tiles.\n    for j0 in range(j0_clean_end, j0_end):" in text


def test_pieces() -> None:
    def loop(lo: Expr, hi: Expr, masked: bool, var: str = "j") -> Loop:
        load = LoadTile("x", X.index, map_("lt", column("r"), Scalar(N)) if masked else None, 0.0, X.dims, X.dtype)
        return Loop(var, lo, hi, (store(load),))

    a, b, c = Var("a"), Var("b"), Var("c")
    zero = Const(0, "int32")
    one = pieces((store(X), loop(zero, N, False)))
    assert one == {1: Piece("j_begin", "j_end")}
    window = pieces((loop(a, b, True), loop(b, c, False), loop(c, N, True)))
    assert [(p.begin, p.end) for p in window.values()] == [
        ("j_begin", "j_clean_begin"),
        ("j_clean_begin", "j_clean_end"),
        ("j_clean_end", "j_end"),
    ]
    assert [p.comment for p in window.values()] == [
        "Tiles that need a mask.", "Tiles that need no mask.", "The other tiles."
    ]  # fmt: skip
    first_masked = pieces((loop(a, b, True), loop(b, N, False)))
    assert first_masked[0] == Piece("j_begin", "j_clean_begin", "Tiles that need a mask.")
    assert first_masked[1] == Piece("j_clean_begin", "j_end", "Tiles that need no mask.")
    alike = pieces((loop(a, b, False), loop(b, N, False)))
    assert alike == {0: Piece("j_begin", "j_cut_1"), 1: Piece("j_cut_1", "j_end")}
    assert pieces((loop(a, b, False), loop(b, N, True, "k")))[1] == Piece("k_begin", "k_end")


def test_what_a_loop_leaves_is_called_so() -> None:
    whole = op("floordiv", N, BLOCK)
    loop = Loop("j", Const(0, "int32"), whole, (store(X),))
    rest, unrelated = Branch(whole < ceildiv(N, BLOCK), (store(X),)), Branch(N < 4, (store(X),))
    text = rowwise((loop, rest, unrelated))
    assert "    # What is left.\n    if j_end < tl.cdiv(n, BLOCK):" in text
    assert text.count("# What is left.") == 1


def test_accumulators() -> None:
    m, s = Local("m", ("r",), "float32"), Local("s", ("r", "c"), "float32")
    running = Assign("m", map_("max", m, Reduce("max", "c", X)))
    power = Assign("s", map_("exp2", map_("sub", X, Rearrange(m, "r -> r 1"))))
    plain = Assign("s", map_("exp2", map_("sub", X, Rearrange(map_("add", m, m), "r -> r 1"))))
    prod = Assign("t", map_("mul", Local("t", ("r",), "float32"), Reduce("prod", "c", s)))
    scaled = Assign("u", map_("mul", Local("u", ("r",), "float32"), Reduce("sum", "c", s)))

    def notes(*body: TStmt) -> dict[str, str]:
        return accumulators(TileKernel("one", (), (), (Loop("j", Const(0, "int32"), N, body),)))

    assert notes(running, power) == {"m": "running maximum, in units of log2"}
    assert notes(running, plain) == {"m": "running maximum"}
    assert notes(prod, scaled) == {"t": "running product"}
    assert accumulators(TileKernel("one", (), (), (running,))) == {}


def test_strides_are_widened_before_they_product() -> None:
    masked = LoadTile("x", X.index, map_("lt", column("r"), Scalar(N)), 0.0, X.dims, X.dtype)
    text = rowwise((store(masked),))
    assert "(i0 * BLOCK).to(tl.int64) * stride_x_0" in text


def test_a_variable_that_only_addresses_is_wide() -> None:
    row = LoadTile("x", (Scalar(Var("i0")), Iota("c")), None, 0.0, ("c",), "float32")
    out = StoreTile("y", (Scalar(Var("i0")), Iota("c")), row, None, ("c",))
    text = rowwise((out,))
    assert "i0 = tl.program_id(0).to(tl.int64)" in text
    assert "x_ptr + i0 * stride_x_0" in text


def copy_rows(grid: tuple[GridAxis, ...], *index: str) -> str:
    """A row each program, over a grid."""
    at_row = (Scalar(sum((Var(v) for v in index[1:]), Var(index[0]))), Iota("c"))
    out = StoreTile("y", at_row, LoadTile("x", at_row, None, 0.0, ("c",), "float32"), None, ("c",))
    return rowwise((out,), grid)


def test_shared_launch_dimensions_are_taken_apart() -> None:
    text = copy_rows((GridAxis("i0", ceildiv(N, BLOCK), "x"), GridAxis("g", N, "x")), "g")
    assert "pid_x = tl.program_id(0)\n    i0_count = tl.cdiv(n, BLOCK)" in text
    assert "g = (pid_x // i0_count).to(tl.int64)" in text
    assert "grid = (triton.cdiv(n, BLOCK) * n,)" in text


@pytest.mark.parametrize(
    ("y", "z", "grid"), [(N, 2, "n * n * 2,"), (65535, 2, "n, 65535, 2"), (65536, 2, "n * 65536 * 2,")]
)
def test_what_may_not_fit_y_and_z_goes_onto_x(y: Expr | int, z: int, grid: str) -> None:
    def extent(e: Expr | int) -> Expr:
        return Const(e, "int32") if isinstance(e, int) else e

    axes = (GridAxis("i", N, "x"), GridAxis("h", extent(y), "y"), GridAxis("b", extent(z), "z"))
    assert f"grid = ({grid})" in copy_rows(axes, "i", "h", "b")


def test_heads_and_rows_share_x() -> None:
    """y[g, i] = x[g, i], one element a program."""
    g, i = Var("g"), Var("i")
    here = (Scalar(g), Scalar(i))
    out = StoreTile("y", here, LoadTile("x", here, None, 0.0, (), "float32"), None, ())
    shape = (Var("h"), Var("n"))
    kernel = TileKernel("one", (GridAxis("i", Var("n"), "x"), GridAxis("g", Var("h"), "y")), (), (out,))
    scalars = (ScalarParam("h", lo=1), ScalarParam("n", lo=1))
    program = TileProgram("run", (Buffer("x", shape, "float32"),), (Buffer("y", shape, "float32"),), (), scalars, (),
                          (kernel,))  # fmt: skip
    source = generate(program)
    assert "grid = (n * h,)" in source
    x, y = torch.rand(40, 3), torch.zeros(40, 3)
    run_interpreted(source, "run", [x, y])
    assert torch.equal(x, y)


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


def test_scalar_loads_in_a_choice_are_guarded() -> None:
    """The side of a choice that is not taken is computed, but must not be read."""
    guards: list[str] = []

    def load(x: Load, guard: Text | None) -> Text:
        guards.append(str(guard))
        return Text(x.buffer)

    printer = ScalarPrinter(str, load, lambda e: None, lambda v: False, lambda h: None)
    a, b = (Load(name, (N,), "int32") for name in "ab")
    inner = select(N < 4, b, Const(0, "int32"))
    assert str(printer(select(N < 8, a, inner))) == "tl.where(n < 8, a, tl.where(n < 4, b, 0))"
    assert guards == ["n < 8", "(not n < 8) & (n < 4)"]


def test_floor_division_of_what_may_be_negative() -> None:
    w, four = Var("w"), Const(4, "int32")
    assert scalar(op("floordiv", N, four)) == "n // 4"
    assert scalar(op("floordiv", maximum(w, 0), four)) == "tl.maximum(w, 0) // 4"
    assert scalar(op("floordiv", w, four)) == "w >> 2"
    assert scalar(op("mod", w - N, four)) == "w - n & 3"
    assert scalar(ceildiv(N, Var("BLOCK"))) == "tl.cdiv(n, BLOCK)"
    assert nonnegative(N * 3 + 1, lambda v: v == "n") and not nonnegative(N - 1, lambda v: v == "n")
    # A cast of what fits keeps its sign, one that may wrap does not.
    assert nonnegative(Cast(Load("b", (), "bool"), "int32"), lambda _: False)
    assert not nonnegative(Cast(Var("k", "int64"), "int32"), lambda _: True)


def test_launch_expressions_use_python() -> None:
    e = select(N < 4, op("floordiv", N, Const(2, "int32")), ceildiv(N, 8))
    assert str(HostPrinter(str)(e)) == "n // 2 if n < 4 else triton.cdiv(n, 8)"
    with pytest.raises(InternalError):
        HostPrinter(str)(Load("x", (N,), "int32"))


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
    text = rowwise((store(Op("add", (value, X), "float32")),))
    assert "tl.trans" not in text
    assert "mask=idx_r[None, :] < n" in text and "tl.sum(x, axis=0)" in text


def test_long_lines_break_at_commas() -> None:
    line = f"    value = function({', '.join(f'argument_number_{k}' for k in range(9))})"
    lines = wrap(line)
    assert len(lines) == 11 and lines[1] == "        argument_number_0," and lines[-1] == "    )"
    assert "".join(x.strip() + " " for x in lines).replace("( ", "(").replace(", )", ")").strip() == line.strip()


def test_a_launch_function_has_the_defaults_that_it_is_given() -> None:
    program = softmax()
    free, given = module.generate(program), module.generate(program, {"num_warps": 2})
    assert "BLOCK_R, BLOCK_C=None, num_warps, num_stages, launcher=lambda" in free
    assert "BLOCK_R, BLOCK_C=None, num_warps=2, num_stages, launcher=lambda" in given
    ast.parse(free)


def test_headers_cannot_end_the_docstring() -> None:
    text = generate(softmax(), header='odd """ header \\')
    assert ast.get_docstring(ast.parse(text)) == 'odd """ header \\'


# --- what the text computes ----------------------------------------------------------------------


def computed(value: TExpr, x: torch.Tensor, buffer: str = "float32") -> torch.Tensor:
    """`value`, a tile over (r, c) of one kernel, on a square x in the interpreter."""
    y = torch.full_like(x, float("nan"), dtype=getattr(torch, value.dtype))
    axes = (("r", BLOCK), ("c", Const(x.shape[1], "int32")))
    kernel = TileKernel("one", (GridAxis("i0", ceildiv(N, BLOCK), "x"),), axes, (store(value),))
    program = TileProgram(
        "run",
        (Buffer("x", (N, N), buffer),),
        (Buffer("y", (N, N), value.dtype),),
        (),
        (ScalarParam("n", lo=1),),
        (Tunable("BLOCK", (8,)),),
        (kernel,),
    )
    run_interpreted(generate(program), "run", [x, y])
    return y


UNARY = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid", "abs", "neg")


def test_tanh_where_its_two_forms_meet() -> None:
    x = torch.cat([torch.linspace(0.3, 0.7, 128), -torch.linspace(0.6, 0.65, 128)]).view(16, 16).contiguous()
    wanted = torch.tanh(x.double())
    relative = ((computed(map_("tanh", X), x).double() - wanted) / wanted).abs().max().item()
    assert relative < 2e-7


def test_loads_broadcast_and_unit_dims_go_away() -> None:
    x = torch.randn(8, 8)
    wide = LoadTile("x", (column("r"), Scalar(Const(0, "int32"))), map_("lt", C, Scalar(Const(3, "int32"))), 7.0,
                    ("r", "c"), "float32")  # fmt: skip
    expected = torch.where(torch.arange(8)[None, :] < 3, x[:, :1], torch.tensor(7.0))
    assert torch.equal(computed(wide, x), expected)
    unit = LoadTile("x", (column("r"), Scalar(Const(2, "int32"))), None, 0.0, ("r", "1"), "float32")
    there_and_back = Rearrange(Rearrange(unit, "r 1 -> r"), "r -> r 1")
    assert torch.equal(computed(map_("add", there_and_back, X), x), x[:, 2:3] + x)


def two_kernels() -> TileProgram:
    """Row sums by a kernel with fused launch dimensions, then y = x / total: a temporary between them."""
    h, n = Var("h"), Var("n")
    shape = (h, n, Const(16, "int32"))
    here = (Scalar(Var("g")), Scalar(Var("i")))
    x = LoadTile("x", (*here, Iota("c")), None, 0.0, ("c",), "float32")
    total = LoadTile("total", here, None, 0.0, (), "float32")
    grid = (GridAxis("i", n, "x"), GridAxis("g", h, "x"))
    axes = (("c", Const(16, "int32")),)
    first = TileKernel("sums", grid, axes, (StoreTile("total", here, Reduce("sum", "c", x), None, ()),))
    value = Op("div", (x, total), "float32")
    second = TileKernel("scale", grid, axes, (StoreTile("y", (*here, Iota("c")), value, None, ("c",)),))
    buffers = (Buffer("x", shape, "float32"),), (Buffer("y", shape, "float32"),), (Buffer("total", (h, n), "float32"),)
    return TileProgram("normalise", *buffers, (ScalarParam("h"), ScalarParam("n")), (), (first, second))


def test_kernels_in_order_with_temporaries_and_fused_launch_dimensions() -> None:
    source = generate(two_kernels())
    check_golden("two_kernels.py.txt", source)
    x = torch.rand(3, 5, 16)
    y = torch.zeros_like(x)
    run_interpreted(source, "normalise", [x, y])
    torch.testing.assert_close(y, x / x.sum(-1, keepdim=True))


def test_loops_carry_and_branches_guard() -> None:
    """acc = Σ_{j < i0} x, for the rows whose block is not the first; the others stay 0."""
    acc = Local("acc", ("r", "c"), "float32")
    body: tuple[TStmt, ...] = (
        Assign("acc", lit(0.0)),
        Loop("j", Const(0, "int32"), Var("i0"), (Assign("acc", map_("add", acc, X)),)),
        Branch(Var("i0") > 0, (Assign("acc", map_("mul", acc, lit(2.0))),)),
        store(acc),
    )
    source = rowwise(body)
    x, y = torch.rand(64, 64), torch.zeros(64, 64)
    run_interpreted(source, "run", [x, y])
    torch.testing.assert_close(y, x * (torch.arange(64) // 16)[:, None] * 2)


def test_everything_compiles() -> None:
    """The same constructs pass the real compiler, whose typing is stricter than the interpreter's."""
    value: TExpr = X
    for name in UNARY:
        value = map_("add", value, map_(name, X))
    for power in (3.0, 0.5):
        value = map_("add", value, map_("pow", X, lit(power)))
    number = Cast(X, "int32")
    for name in ("floordiv", "mod"):
        value = map_("add", value, Cast(map_(name, number, Scalar(Const(5, "int32"))), "float32"))
    value = map_("add", value, Rearrange(Reduce("prod", "c", X), "r -> r 1"))
    offset = op("floordiv", Var("j") - Var("i0"), Const(4, "int32"))
    acc = Local("acc", ("r", "c"), "float32")
    page = LoadTile("x", (Scalar(cast(Load("x", (Var("j"), N - 1), "float32"), "int32")), C), None, 0.0, ("1", "c"),
                    "float32")  # fmt: skip
    step = map_("add", map_("mul", acc, Scalar(cast(offset, "float32"))), page)
    one = Local("one", (), "float32")
    body: tuple[TStmt, ...] = (
        Assign("acc", value),
        Assign("one", lit(0.0)),
        Loop("j", Const(0, "int32"), Var("i0"), (Assign("acc", step), Assign("one", map_("add", one, lit(1.0))))),
        Branch(op("not", Var("i0") > 3), (Assign("acc", map_("mul", acc, lit(2.0))),)),
        store(map_("mul", acc, one)),
    )
    kernel = TileKernel(
        "one", (GridAxis("i0", ceildiv(N, BLOCK), "x"),), (("r", BLOCK), ("c", Const(64, "int32"))), body
    )
    buffers = (Buffer("x", (N, N), "float32"),), (Buffer("y", (N, N), "float32"),), ()
    program = TileProgram("run", *buffers, (ScalarParam("n", lo=1),), (Tunable("BLOCK", (16,)),), (kernel,))
    for loads in ("pointer", "descriptor"):
        (compiled,) = compile_offline(generate(program, loads=loads), program, "cuda:90", loads=loads)
        assert compiled.spill_bytes == 0


def test_a_quotient_by_a_negative_number_has_a_name_too() -> None:
    n = nt.var("n")
    a = nt.placeholder((n,), "int32", "a")
    kernel = neptune.compile(nt.compute((n,), lambda i: a[i] + i // -2 + i % -3, "o"), target="interpret")
    assert "idx_i_div_minus_2" in kernel.source
    result = kernel(torch.zeros(9, dtype=torch.int32))
    assert isinstance(result, torch.Tensor) and result.tolist() == [i // -2 + i % -3 for i in range(9)]
