"""Comments of generated kernels, as far as the tile IR knows what a reader wants to be told.

Accumulators say what they hold, and the pieces that a loop was cut into say what they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from neptune.ir.expr import Op, Select, args_of, walk
from neptune.ir.reducers import REDUCERS
from neptune.tile.ir import (
    Assign,
    Dot,
    LoadTile,
    Local,
    Loop,
    Reduce,
    TileKernel,
    TStmt,
    bare,
    read_by,
    stmt_exprs,
    walk_stmts,
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Names for the bounds of a loop, and a comment on it."""

    begin: str
    end: str
    comment: str = ""


def accumulators(kernel: TileKernel) -> dict[str, str]:
    """Describe the tile variables that loops fold into: `m` → `running maximum, in units of log2`."""
    exponents = set(_subtracted_exponents(kernel))
    notes: dict[str, str] = {}
    for loop in (s for s in walk_stmts(kernel.body) if isinstance(s, Loop)):
        for s in loop.body:
            if isinstance(s, Assign) and (kind := _fold(s)) is not None:
                units = ", in units of log2" if kind in ("max", "min") and s.name in exponents else ""
                notes.setdefault(s.name, f"running {REDUCERS[kind].word}{units}")
    return notes


def _fold(s: Assign) -> str | None:
    """The reducer by which `s` folds into its own variable."""
    if s.name not in read_by(s.value):
        return None
    op = "add" if isinstance(s.value, Dot) else s.value.name if isinstance(s.value, Op) else None
    nodes = list(walk(s.value))
    kinds = {x.reducer for x in nodes if isinstance(x, Reduce)} | {"sum" for x in nodes if isinstance(x, Dot)}
    return next((k for k in sorted(kinds) if REDUCERS[k].op == op), None)


def _subtracted_exponents(kernel: TileKernel) -> Iterator[str]:
    """Variables x of exp2(… - x)."""
    for e in (x for s in walk_stmts(kernel.body) for root in stmt_exprs(s) for x in walk(root)):
        for difference in args_of(e, "exp2"):
            yield from (m.name for x in args_of(difference, "sub")[1:] if isinstance(m := bare(x), Local))


def pieces(body: tuple[TStmt, ...]) -> dict[int, Piece]:
    """The loops directly in a body, by position; neighbours over one variable that meet are one loop cut up."""
    notes: dict[int, Piece] = {}
    run: list[Loop] = []
    for k, s in enumerate(body):
        if not isinstance(s, Loop):
            run = []
            continue
        run = [*run, s] if run and (run[-1].var, run[-1].hi) == (s.var, s.lo) else [s]
        notes |= {k - len(run) + 1 + place: p for place, p in enumerate(_names(run))}
    return notes


def _names(run: list[Loop]) -> list[Piece]:
    """`j0_begin`, `j0_clean_begin`, `j0_clean_end`, `j0_end`: clean is the one piece without masks, if there is one."""
    var = run[0].var
    masked = [_masks(s) for s in run]
    clean = masked.index(False) if masked.count(False) == 1 and len(run) > 1 else None
    cuts = [f"{var}_cut_{k}" for k in range(1, len(run))]
    if clean is not None:
        cuts[max(clean - 1, 0) : clean + 1] = [f"{var}_clean_begin"] * (clean > 0) + [f"{var}_clean_end"]
    names = [f"{var}_begin", *cuts[: len(run) - 1], f"{var}_end"]
    comments = [""] * len(run) if clean is None else [_comment(k, clean) for k in range(len(run))]
    return [Piece(names[k], names[k + 1], comments[k]) for k in range(len(run))]


def _comment(k: int, clean: int) -> str:
    if k == clean:
        return "Tiles that need no mask."
    return "The other tiles." if k > clean else "Tiles that need a mask."


def _masks(loop: Loop) -> bool:
    """True where elements are masked in a loop."""
    nodes = (x for s in walk_stmts(loop.body) for root in stmt_exprs(s) for x in walk(root))
    return any(isinstance(x, Select) or (isinstance(x, LoadTile) and x.mask is not None) for x in nodes)
