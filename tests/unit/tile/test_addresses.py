"""The last tile pass: what it says of memory, statement by statement; its verifier, against every way to be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeVar

import pytest

from neptune.errors import InternalError
from neptune.ir.expr import Const, Load, Var, ceildiv
from neptune.ir.program import Buffer, Tunable
from neptune.ir.program import Scalar as Size
from neptune.tile.address import GROUPS, Address, Addressed, Part, Pointers, Sum
from neptune.tile.boxes import Box
from neptune.tile.index import Term
from neptune.tile.ir import (
    Assign,
    Branch,
    GridAxis,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Scalar,
    StoreTile,
    TExpr,
    TileKernel,
    TileProgram,
    TStmt,
)
from neptune.tile.passes.addresses import Addresses, addressed
from neptune.tile.verify_addresses import verify_addresses
from tests.examples.tile_examples import at, attention, map_, softmax
from tests.texts import generate

N, I0, J0, BLOCK = Var("n"), Var("i0"), Var("j0"), Var("BLOCK")
R, C = Rearrange(at(I0 * BLOCK, "r"), "r -> r 1"), Rearrange(Iota("c"), "c -> 1 c")
ZERO, TWO = Const(0, "int32"), Const(2, "int32")
DIMS = ("r", "c")


def kernel(*body: TStmt, more: tuple[Buffer, ...] = ()) -> TileProgram:
    """x[n, n, 64] → y[n, 64] by rows r and columns c, with idx[n] and len[n, n] of int32."""
    width = Const(64, "int32")
    grid = (GridAxis("i0", ceildiv(N, BLOCK), "x"), GridAxis("b", N, "y"))
    made = TileKernel("one", grid, (("r", BLOCK), ("c", width)), body)
    inputs = (Buffer("x", (N, N, width), "float32"), Buffer("idx", (N,), "int32"), Buffer("len", (N, N), "int32"))
    out = (Buffer("y", (N, width), "float32"),)
    return TileProgram("run", (*inputs, *more), out, (), (Size("n", lo=1),), (Tunable("BLOCK", (16, 32)),), (made,))


def x(*index: TExpr, mask: TExpr | None = None) -> LoadTile:
    return LoadTile("x", index, mask, 0.0, DIMS, "float32")


def below(e: TExpr) -> TExpr:
    return map_("lt", e, Scalar(N))


def put(value: TExpr) -> StoreTile:
    return StoreTile("y", (R, C), value, below(R), DIMS)


IDX = LoadTile("idx", (R.arg,), below(R.arg), 0.0, ("r",), "int32")
LEN = Load("len", (Var("b"), ZERO), "int32")
START = Load("t", (), "int32")
PROGRAMS = {
    "attention": attention(64),
    "softmax": softmax(),
    "rows": kernel(put(x(Scalar(Var("b")), R, C, mask=below(R)))),
    "halves": kernel(put(x(Scalar(Var("b")), map_("floordiv", R, Scalar(TWO)), C, mask=below(R)))),
    "gathered": kernel(
        put(x(Scalar(Var("b")), Rearrange(IDX, "r -> r 1"), C))
    ),
    "paged": kernel(
        Loop("j0", ZERO, LEN, (put(x(Scalar(Load("idx", (J0,), "int32")), map_("sub", R, Scalar(LEN)), C)),)),
    ),
    "under a branch": kernel(
        Branch(I0 < N, (Loop("j0", ZERO, LEN, (put(x(Scalar(LEN), map_("add", R, Scalar(J0)), C)),)),)),
    ),
    "reassigned": kernel(
        Assign("t", Scalar(LEN)),
        Loop("j0", ZERO, START, (put(x(Scalar(START), R, C)), Assign("t", Scalar(J0)))),
    ),
    "permuted": kernel(
        Assign("t", Rearrange(LoadTile("x", (Scalar(TWO), R, C), below(R), 0.0, DIMS, "float32"), "r c -> c r")),
        put(Rearrange(Local("t", ("c", "r"), "float32"), "c r -> r c")),
    ),
    "read back": kernel(
        put(x(Scalar(ZERO), R, C)), put(LoadTile("y", (R, C), below(R), 0.0, DIMS, "float32"))
    ),
}  # fmt: skip


def made(name: str, boxes: bool = False, int64: bool = False) -> list[Addressed]:
    program = PROGRAMS[name]
    return [addressed(program, k, boxes=boxes, int64=int64) for k in program.kernels]


def said(name: str, boxes: bool = False, int64: bool = False) -> str:
    return "\n".join(map(str, made(name, boxes, int64)))


# --- what is said ------------------------------------------------------------------------------


def test_attention() -> None:
    assert said("attention").startswith("""\
kernel attention  int64(b, h)
  load q  global<m d>  in program
    base program: q.0 i64 b, q.1 i64 h, q.2 i64 cast(i0 * BLOCK_M)
    offsets program: q.2 i32 iota(m), q.3 i32 iota(d)
    mask (rearrange((i0 * BLOCK_M + iota(m)), 'm -> m 1') < s_q) else 0.0
  load k  global<d n>  in j0
    base program: k.0 i64 b, k.1 i64 h
    base j0: k.2 i64 cast(j0 * BLOCK_N)
    offsets program: k.2 i32 iota(n), k.3 i32 iota(d)
  load v  global<n d>  in j0
    base program: v.0 i64 b, v.1 i64 h
    base j0: v.2 i64 cast(j0 * BLOCK_N)
    offsets program: v.2 i32 iota(n), v.3 i32 iota(d)
""")
    assert "offsets program: k.2 i64 cast(iota(n)), k.3 i32 iota(d)" in said("attention", int64=True)


def test_boxes_have_coordinates_of_int32() -> None:
    assert said("attention", boxes=True).startswith("""\
kernel attention
  load q  global<m d>  in program
    box b, h, i0 * BLOCK_M .. m, 0 .. d
  load k  global<d n>  in j0
    box b, h, j0 * BLOCK_N .. n, 0 .. d
""")


def test_what_is_no_factor_of_an_axis_is_rows_and_what_is_read_is_a_gather() -> None:
    assert "    rows r program: x.1 i64 cast(((i0 * BLOCK + iota(r)) // 2))\n" in said("halves")
    assert """\
  load idx  global<r>  in program
    base program: idx.0 i32 i0 * BLOCK
    offsets program: idx.0 i32 iota(r)
    mask ((i0 * BLOCK + iota(r)) < n) else 0.0
  load x  global<r c>  in program
    base program: x.0 i64 b
    gather x.1 i64 cast(rearrange(masked(idx[(i0 * BLOCK + iota(r))]<r>, ((i0 * BLOCK + iota(r)) < n), 0), 'r -> r 1'))
    offsets program: x.2 i32 iota(c)
""".replace(", 0), '", ", 0.0), '") in said("gathered")  # fmt: skip


def test_what_reads_memory_stays_where_it_is_first_read() -> None:
    """The loop's bound is read in front of it, the page in it."""
    assert """\
  len[b, 0]: len.0 i64 b
  idx[j0]: idx.0 i32 j0
  load x  global<r c>  in j0
    base program: x.1 i64 cast(i0 * BLOCK - len[b, 0])
    base j0: x.0 i64 cast(idx[j0])
    offsets program: x.1 i32 iota(r), x.2 i32 iota(c)
""" in said("paged")
    assert "base j0: x.0 i64 cast(t[])" in said("reassigned")
    assert """\
  load x  global<r c>  in j0
    base program: x.1 i64 cast(i0 * BLOCK)
    base branch: x.0 i64 cast(len[b, 0])
    base j0: x.1 i64 cast(j0)
""" in said("under a branch")


def test_what_is_read_is_int32_whatever_its_place_is() -> None:
    """`b` is int64 and `len[b, 0]` is not: its product with a stride may be behind 2**31."""
    assert "int64(b)" in said("paged")
    assert "len_value.to(tl.int64) * stride_x_0" in generate(PROGRAMS["under a branch"])


def test_a_load_is_loaded_permuted() -> None:
    assert "  load x  global<c r>  in program\n" in said("permuted")


def test_multiples_of_strides_are_int64() -> None:
    """2 · 2**30 elements are behind int32; once a stride is not."""
    assert "    base program: x.0 i64 cast(2), x.1 i64 cast(i0 * BLOCK)\n" in said("permuted")
    assert "tl.cast(2, tl.int64) * stride_x_0" in generate(PROGRAMS["permuted"])
    once = kernel(put(x(Scalar(Const(1, "int32")), R, C)))
    assert "x_ptr + 1 * stride_x_0 + " in generate(once)


def test_what_a_kernel_reads_back_goes_through_pointers_between_barriers() -> None:
    assert said("read back").count("  store y  global<r c>  in program  fenced\n") == 2
    boxes = said("read back", boxes=True)
    assert "  load x  global<r c>  in program\n    box 0, i0 * BLOCK .. r, 0 .. c\n" in boxes
    assert boxes.count("box") == 1 and boxes.count("fenced") == 2
    assert "y_desc" not in generate(PROGRAMS["read back"], loads="descriptor")


def test_spans_are_what_int32_offsets_add_up() -> None:
    (one,) = made("rows")
    assert [(s.buffer, s.axes) for s in one.spans] == [
        ("x", ((1, BLOCK, 1), (2, Const(64, "int32"), 1))),
        ("y", ((0, BLOCK, 1), (1, Const(64, "int32"), 1))),
    ]
    assert made("rows", boxes=True)[0].spans == () == made("rows", int64=True)[0].spans


def test_a_program_of_several_groups_has_a_scope_more() -> None:
    program = PROGRAMS["rows"]
    (k,) = program.kernels
    body = Addresses(program, k, scopes=GROUPS).body(k.body)
    found = Addressed(program, replace(k, body=body), frozenset(), {}, scopes=GROUPS)
    verify_addresses(found, k)
    assert "base program: x.0 i64 cast(b), x.1 i64 cast(i0 * BLOCK)" in str(found)
    assert "offsets launch: x.1 i32 iota(r), x.2 i32 iota(c)" in str(found)


# --- the verifier ------------------------------------------------------------------------------

FORMS = [(name, boxes, int64) for name in PROGRAMS for boxes in (False, True) for int64 in (False, True)]


@pytest.mark.parametrize(("name", "boxes", "int64"), FORMS)
def test_what_the_pass_makes_is_right(name: str, boxes: bool, int64: bool) -> None:
    for found, k in zip(made(name, boxes, int64), PROGRAMS[name].kernels, strict=True):
        verify_addresses(found, k)


def wrong(found: Addressed, source: TileKernel) -> str:
    with pytest.raises(InternalError) as error:
        verify_addresses(found, source)
    return error.value.wrong


T = TypeVar("T")


def each(items: tuple[T, ...], changed: object) -> Iterator[tuple[T, ...]]:
    """The items with one in the place of each, as `changed` gives them; it gives None where one is to go."""
    for k, item in enumerate(items):
        for new in changed(item):  # type: ignore[operator]
            yield (*items[:k], *([] if new is None else [new]), *items[k + 1 :])


def other_terms(t: Term) -> Iterator[Term | None]:
    yield replace(t, negative=not t.negative)
    yield replace(t, factors=(*t.factors, TWO))
    if t.factors and t.factors != (Const(1, "int32"),):
        yield replace(t, factors=t.factors[1:])
    yield None


def other_parts(p: Part) -> Iterator[Part | None]:
    yield from (replace(p, terms=terms) for terms in each(p.terms, other_terms))
    yield replace(p, dim=p.dim + 1)
    yield replace(p, strided=not p.strided)
    yield replace(p, bits=96 - p.bits)
    if p.cast:
        yield replace(p, cast=False)
        yield replace(p, cast=False, bits=32)
    yield None


def other_sums(s: Sum) -> Iterator[Sum | None]:
    yield from (replace(s, parts=parts) for parts in each(s.parts, other_parts) if parts)
    yield None


def other_rows(rows: tuple[str, Sum]) -> Iterator[tuple[str, Sum] | None]:
    axis, sum_ = rows
    yield from (None if s is None else (axis, s) for s in other_sums(sum_))


def other_addresses(at: Address) -> Iterator[Address | None]:
    yield None
    match at:
        case Box(axes, starts):
            yield from (Box(axes, new) for new in each(starts, lambda s: each(s, other_terms)))
            yield Box(tuple(reversed(axes)), starts)
            yield Box(axes[:-1], starts[:-1])
        case Pointers():
            yield from (replace(at, bases=b) for b in each(at.bases, other_sums))
            yield from (replace(at, gathers=g) for g in each(at.gathers, other_parts))
            yield from (replace(at, rows=rows) for rows in each(at.rows, other_rows))
            yield from (replace(at, offsets=s) for s in ([] if at.offsets is None else other_sums(at.offsets)))
            yield replace(at, fenced=not at.fenced)
            # A scope further out than the one that was found.
            for k, b in enumerate(at.bases):
                if b.scope:
                    yield replace(at, bases=(*at.bases[:k], replace(b, scope=b.scope - 1), *at.bases[k + 1 :]))


def other_statements(s: TStmt) -> Iterator[TStmt]:
    """A statement with one address, mask or index changed."""
    match s:
        case Loop() | Branch():
            yield from (replace(s, body=b) for b in other_bodies(s.body))
        case Assign():
            yield from (replace(s, value=v) for v in other_values(s.value))
        case StoreTile():
            yield from (replace(s, value=v) for v in other_values(s.value))
            assert s.at is not None
            yield from (replace(s, at=a) for a in other_addresses(s.at))
            yield replace(s, mask=None)


def other_bodies(body: tuple[TStmt, ...]) -> Iterator[tuple[TStmt, ...]]:
    yield from each(body, other_statements)


def other_values(e: TExpr) -> Iterator[TExpr]:
    if isinstance(e, LoadTile):
        assert e.at is not None
        yield from (replace(e, at=a) for a in other_addresses(e.at))
        if e.mask is not None:
            yield replace(e, mask=None)
        yield replace(e, other=1.0)
    for k, p in enumerate(e.parts):
        if not isinstance(e, LoadTile):
            yield from (e.with_parts((*e.parts[:k], new, *e.parts[k + 1 :])) for new in other_values(p))


@pytest.mark.parametrize(("name", "boxes", "int64"), FORMS)
def test_every_other_address_is_wrong(name: str, boxes: bool, int64: bool) -> None:
    for found, k in zip(made(name, boxes, int64), PROGRAMS[name].kernels, strict=True):
        others = [replace(found, kernel=replace(found.kernel, body=b)) for b in other_bodies(found.kernel.body)]
        others += [replace(found, wide=found.wide ^ {"i0"})]
        for x, parts in found.reads.items():
            others += [replace(found, reads={k: p for k, p in found.reads.items() if k != x})]
            others += [replace(found, reads={**found.reads, x: p}) for p in each(parts, other_parts)]
        assert len(others) > 10
        for other in others:
            assert wrong(other, k), str(other)
