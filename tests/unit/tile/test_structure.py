"""What generated attention kernels are made of: counted on the tiles, whatever the text looks like."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest

from neptune.ir.expr import Op, Select, walk
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.templates.flash_attention import flash_attention
from neptune.tile.ir import (
    Assign,
    Branch,
    Dot,
    LoadTile,
    Loop,
    Reduce,
    Scalar,
    StoreTile,
    TExpr,
    TileProgram,
    TStmt,
    stmt_exprs,
    walk_stmts,
)
from tests.examples.lowering import lowered, scheduled
from tests.goldens import check_golden
from tests.texts import generate

Block = tuple[TStmt, ...]


@functools.cache
def kernel(name: str, dtype: str = "float16", depth: int = 64) -> TileProgram:
    expression = {"causal": prefill_causal, "global": prefill_global}[name](depth=depth, dtype=dtype, lse=True)
    return lowered(scheduled(expression, flash_attention))


def body(program: TileProgram) -> Block:
    (only,) = program.kernels
    return only.body


def pieces(program: TileProgram) -> list[Loop | Branch]:
    """The pieces of the key loop."""
    return [s for s in body(program) if isinstance(s, Loop | Branch)]


def around(program: TileProgram) -> Block:
    """What is not in the key loop."""
    return tuple(s for s in body(program) if not isinstance(s, Loop | Branch))


def nodes(block: Block) -> Iterator[TExpr]:
    for s in walk_stmts(block):
        for e in stmt_exprs(s):
            yield from walk(e)


def operators(block: Block) -> list[str]:
    """Operators of tiles and of the scalars in them."""
    found = [n.name for n in nodes(block) if isinstance(n, Op)]
    scalars = [x for n in nodes(block) if isinstance(n, Scalar) for x in walk(n.expr)]
    return found + [x.name for x in scalars if isinstance(x, Op)]


def loads(block: Block, buffer: str) -> list[LoadTile]:
    return [n for n in nodes(block) if isinstance(n, LoadTile) and n.buffer == buffer]


@pytest.mark.parametrize("name", ["causal", "global"])
@pytest.mark.parametrize("dtype, depth", [("float16", 64), ("bfloat16", 128), ("float32", 80)])
def test_every_kernel(name: str, dtype: str, depth: int) -> None:
    program = kernel(name, dtype, depth)
    assert len(program.kernels) == 1 and program.temporaries == ()
    assert {s.buffer for s in walk_stmts(body(program)) if isinstance(s, StoreTile)} == {"o", "lse"}
    assert len(loads(around(program), "q")) == 1 and not loads(around(program), "k") + loads(around(program), "v")
    for piece in pieces(program):
        assert [len(loads(piece.body, b)) for b in "qkv"] == [0, 1, 1]
        assert sum(isinstance(n, Dot) for n in nodes(piece.body)) == 2
        assert sorted(n.reducer for n in nodes(piece.body) if isinstance(n, Reduce)) == ["max", "sum"]
        assert not any(isinstance(s, Loop | Branch | StoreTile) for s in piece.body)
    # One division per row, and no other.
    divisions = [n for n in nodes(body(program)) if isinstance(n, Op) and n.name == "div"]
    assert len(divisions) == 1 and len(divisions[0].dims) == 1
    assert "exp" not in operators(body(program)) and operators(body(program)).count("exp2") == 2 * len(pieces(program))


def test_global_attention_has_one_loop_over_keys() -> None:
    clean, tail = pieces(kernel("global"))
    assert isinstance(clean, Loop) and isinstance(tail, Branch)


def test_causal_attention_has_a_clean_and_a_masked_loop() -> None:
    clean, masked = pieces(kernel("causal"))
    assert isinstance(clean, Loop) and isinstance(masked, Loop) and clean.hi == masked.lo


@pytest.mark.parametrize("name", ["causal", "global"])
def test_the_clean_loop_has_no_mask(name: str) -> None:
    clean = pieces(kernel(name))[0].body
    assert not any(isinstance(n, Select) for n in nodes(clean))
    assert not any(isinstance(n, Scalar) and isinstance(n.expr, Select) for n in nodes(clean))
    assert [n.mask for n in nodes(clean) if isinstance(n, LoadTile)] == [None, None]
    assert not {"lt", "le", "gt", "ge", "eq", "and"} & set(operators(clean))


@pytest.mark.parametrize("name", ["causal", "global"])
def test_one_product_add_per_score(name: str) -> None:
    """exp2(s·c - m): beside the product of the matrices and the power, one fused operation."""
    for piece in pieces(kernel(name)):
        per_score = [
            n for n in nodes(piece.body) if isinstance(n, Op) and set(n.dims) == {"i1", "j1"} and n.dtype != "bool"
        ]
        assert sorted(n.name for n in per_score) == ["exp2", "mul", "sub"]
        (power,) = [n for n in per_score if n.name == "exp2"]
        (difference,) = power.args
        assert isinstance(difference, Op) and difference.name == "sub"
        assert isinstance(difference.args[0], Op) and isinstance(difference.args[0].args[1], Scalar)


@pytest.mark.parametrize("name", ["causal", "global"])
def test_the_masked_piece_masks_scores_once(name: str) -> None:
    masked = pieces(kernel(name))[1].body
    assert sum(isinstance(n, Select) for n in nodes(masked)) == 1
    assert all(n.mask is not None for n in nodes(masked) if isinstance(n, LoadTile))


@pytest.mark.parametrize("dtype, depth", [("float16", 64), ("float32", 128)])
def test_only_rows_are_masked_at_exact_depths(dtype: str, depth: int) -> None:
    """A depth that is a power of two needs no mask over features."""
    program = kernel("causal", dtype, depth)
    for n in nodes(body(program)):
        if isinstance(n, LoadTile) and n.mask is not None:
            assert not {"d", "e"} & set(n.mask.dims)


def test_sums_and_products_stay_in_float32() -> None:
    for piece in pieces(kernel("causal")):
        assert {
            s.value.dtype for s in piece.body if isinstance(s, Assign) and s.name in ("s", "m", "l", "acc", "p")
        } == {"float32"}
        assert {n.a.dtype for n in nodes(piece.body) if isinstance(n, Dot)} == {"float16"}
        assert not any(n.allow_tf32 for n in nodes(piece.body) if isinstance(n, Dot))


def test_golden() -> None:
    """The whole pipeline's text."""
    check_golden("prefill_causal_pointer.py.txt", generate(kernel("causal"), loads="pointer"))
