"""How many tiles a mask visits, beside brute force: `python -m qa.masks [--lengths 1,…]`.

Every mask is an attention program scheduled by `flash_attention`, or with `--parts 3` by `flash_decoding` in that many
parts, whose tiles are counted together. Its own loop bounds are evaluated for every tile of
queries (`Tiles`), and the mask itself for every element. A tile is *visited* or *skipped*, and of the visited ones
those are *clean* that check no mask. By brute force: a tile is needed where the mask is true of some element, full
where it is true of all. The exit status is 1 where a needed tile is skipped, a tile is visited twice or a clean one is
not full, and, but for the masks whose remark says why, where a tile is visited in vain or a full one is checked.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from neptune.frontend.builder import placeholder, var
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Const, Expr, Op, Select, Var, binary, conjuncts, loads, select, variables
from neptune.ir.expr import walk as walk_expr
from neptune.ir.program import (
    Alloc,
    Buffer,
    For,
    If,
    Program,
    Seq,
    Stage,
    Stmt,
    Store,
    seq,
    stages,
    sub_stmts,
    values,
    walk,
    writes,
)
from neptune.ops import masks
from neptune.ops.attention import attention
from neptune.templates.flash_attention import flash_attention
from neptune.templates.flash_decoding import flash_decoding
from neptune.verify.evaluate import evaluate

Array = npt.NDArray[Any]
Sees = Callable[..., Any]
Data = Mapping[str, Array]
BATCH = 2
LENGTHS = (1, 2, 3, 16, 17, 63, 64, 65, 127, 128, 200, 257, 509, 1000, 1024, 1025, 2039, 2048, 4093, 4096)
TILES = ((16, 16), (64, 32), (128, 64), (32, 128), (128, 128))


@dataclass(frozen=True)
class Case:
    """A mask as an expression, and as numpy computes it: `sees(i, j, s_q, s_kv, data, b)`, i a column, j a row.

    `data(rng, s_q, s_kv)` gives the tensors that it reads, `scalars` the numbers. `visits`, `cleans`: visited tiles are
    those that are needed, clean ones those that are full; else `why` not.
    """

    name: str
    mask: masks.Mask
    sees: Sees
    data: Callable[[np.random.Generator, int, int], Data] = lambda rng, s_q, s_kv: {}
    scalars: Mapping[str, int] | None = None
    visits: bool = True
    cleans: bool = True
    why: str = ""


def _integers(name: str, *shape: str) -> Any:
    return placeholder(tuple(var(s) for s in shape), "int32", name)


def _lengths(rng: np.random.Generator, s_q: int, s_kv: int) -> Data:
    """Lengths from none to more than there are."""
    return {"kv_len": rng.integers(-1, s_kv + 3, BATCH), "q_len": rng.integers(0, s_q + 2, BATCH)}


def _documents(rng: np.random.Generator, s_q: int, s_kv: int) -> Data:
    """Documents that lie one behind the other, and where that of each query starts and ends."""
    cuts = np.sort(rng.integers(0, s_kv + 1, (BATCH, max(1, s_kv // 300))), axis=1)
    edges = np.concatenate([np.zeros((BATCH, 1), int), cuts, np.full((BATCH, 1), s_kv)], axis=1)
    at = np.clip(np.arange(s_q) + s_kv - s_q, 0, s_kv - 1)
    doc = np.stack([np.searchsorted(c, np.arange(s_kv), side="right") for c in cuts])
    of_query = doc[:, at]
    starts, ends = (np.take_along_axis(edges, of_query + k, axis=1) for k in (0, 1))
    return {"doc": doc, "q_doc": of_query, "start": starts, "end": ends}


def _causal(i: Array, j: Array, s_q: int, s_kv: int, data: Data, b: int) -> Any:
    return j <= i + s_kv - s_q


def _window(w: int) -> Sees:
    return lambda i, j, s_q, s_kv, data, b: (j <= i + s_kv - s_q) & (i + s_kv - s_q - j < w)


def _chunk(c: int) -> Sees:
    return lambda i, j, s_q, s_kv, data, b: j // c == (i + s_kv - s_q) // c


def _both(*sees: Sees) -> Sees:
    return lambda *a: functools.reduce(np.logical_and, [s(*a) for s in sees])


def _either(*sees: Sees) -> Sees:
    return lambda *a: functools.reduce(np.logical_or, [s(*a) for s in sees])


def _first(p: int) -> Sees:
    return lambda i, j, s_q, s_kv, data, b: (j < p) & (i >= 0)


def _kv_length(i: Array, j: Array, s_q: int, s_kv: int, data: Data, b: int) -> Any:
    return (j < data["kv_len"][b]) & (i >= 0)


def _q_length(i: Array, j: Array, s_q: int, s_kv: int, data: Data, b: int) -> Any:
    return (i < data["q_len"][b]) & (j >= 0)


def _aligned(i: Array, j: Array, s_q: int, s_kv: int, data: Data, b: int) -> Any:
    return j <= i + data["kv_len"][b] - data["q_len"][b]


def _same(i: Array, j: Array, s_q: int, s_kv: int, data: Data, b: int) -> Any:
    return data["q_doc"][b][i] == data["doc"][b][j]


def _segment(i: Array, j: Array, s_q: int, s_kv: int, data: Data, b: int) -> Any:
    return (data["start"][b][i] <= j) & (j < data["end"][b][i])


@functools.cache
def cases() -> dict[str, Case]:
    """All masks, by name."""
    kv_len, q_len = _integers("kv_len", "batch"), _integers("q_len", "batch")
    doc, q_doc = _integers("doc", "batch", "s_kv"), _integers("q_doc", "batch", "s_q")
    start, end = _integers("start", "batch", "s_q"), _integers("end", "batch", "s_q")
    causal, lengths = masks.causal(), masks.lengths(kv_len)
    data = "full: which documents meet is known from the data only"
    meet = "full: where the two sets meet, a tile is full only by both"
    apart = "visited: in a few tiles each mask is true somewhere, and both nowhere"
    found = [
        Case("causal", causal, _causal),
        *(Case(f"window {w}", masks.window(w), _window(w)) for w in (1, 5, 16, 100, 1000)),
        Case("window w", masks.window(var("w")), _window(77), scalars={"w": 77}),
        Case(
            "prefix or causal",
            masks.or_(masks.prefix(var("pre")), causal),
            _either(_first(150), _causal),
            scalars={"pre": 150},
        ),
        Case(
            "sink or window",
            masks.or_(masks.and_(masks.prefix(4), causal), masks.window(100)),
            _either(_both(_first(4), _causal), _window(100)),
            cleans=False,
            why=meet,
        ),
        Case(
            "prefix or window",
            masks.or_(masks.prefix(var("pre")), masks.window(70)),
            _either(_first(150), _window(70)),
            scalars={"pre": 150},
            cleans=False,
            why=meet,
        ),
        Case("chunked 48", masks.chunked(48), _chunk(48)),
        Case("chunked c", masks.chunked(var("c")), _chunk(200), scalars={"c": 200}),
        Case("chunked and causal", masks.and_(masks.chunked(48), causal), _both(_chunk(48), _causal)),
        Case("document", masks.document(q_doc, doc), _same, _documents, cleans=False, why=data),
        Case(
            "document and causal",
            masks.and_(masks.document(q_doc, doc), causal),
            _both(_same, _causal),
            _documents,
            visits=False,
            cleans=False,
            why=data,
        ),
        Case("segments", masks.segments(start, end), _segment, _documents),
        Case(
            "segments and causal", masks.and_(masks.segments(start, end), causal), _both(_segment, _causal), _documents
        ),
        Case("lengths", lengths, _kv_length, _lengths),
        Case("lengths of both", masks.lengths(kv_len, q_len), _both(_kv_length, _q_length), _lengths),
        Case(
            "lengths and causal",
            masks.and_(masks.lengths(kv_len, q_len), masks.causal(q_len, kv_len)),
            _both(_kv_length, _q_length, _aligned),
            _lengths,
        ),
        Case(
            "window and lengths",
            masks.and_(masks.window(100), lengths),
            _both(_window(100), _kv_length),
            _lengths,
            visits=False,
            why=apart,
        ),
    ]
    return {c.name: c for c in found}


# --- the program's own bounds ------------------------------------------------------------------


@functools.cache
def scheduled(name: str, split: bool = False) -> Program:
    """The mask's attention, fused and cut; `split`: the keys in parts."""
    sch = Schedule(attention(heads=1, depth=16, dtype="float32", mask=cases()[name].mask))
    (flash_decoding if split else flash_attention)(sch)
    return sch.program


@dataclass(frozen=True)
class Pieces:
    """A program that stores the bounds of every piece of the key loop, and which of the pieces are clean."""

    program: Program
    clean: tuple[bool, ...]


@functools.cache
def pieces(name: str, split: bool = False) -> Pieces:
    """The pieces of a case's program."""
    return pieces_of(scheduled(name, split))


def pieces_of(program: Program) -> Pieces:
    """A scheduled program with each piece of the loop j0 in place of its body storing its bounds, and nothing else."""
    grid: list[For] = []
    # What combines parts visits no tiles.
    body = program.body.stmts[0] if isinstance(program.body, Seq) else program.body
    while isinstance(body, For):
        grid.append(body)
        body = body.body
    cut = [s for s in walk(body) if _is_piece(s)]
    wanted = {x.buffer for s in cut for e in _bounds(s) for x in loads(e)}
    while more := {b for s in stages(body) if set(writes(s.action)) & wanted for b in _read(s)} - wanted:
        wanted |= more

    def kept(s: Stmt) -> list[Stmt]:
        if _is_piece(s):
            at = 2 * next(k for k, x in enumerate(cut) if x is s)
            return [_stored(at + side, e, grid) for side, e in enumerate(_bounds(s))]
        if isinstance(s, Alloc | Seq):
            parts = [t for p in sub_stmts(s) for t in kept(p)]
            return [replace(s, body=seq(*parts))] if isinstance(s, Alloc) and parts else parts
        return [s] if any(set(writes(x.action)) & wanted for x in stages(s)) else []

    result: Stmt = seq(*kept(body))
    for f in reversed(grid):
        result = replace(f, body=result)
    shape = (*(f.hi for f in grid), Const(2 * len(cut), "int32"))
    outputs = (Buffer("bounds", shape, "int32"),)
    return Pieces(replace(program, body=result, outputs=outputs, temporaries=()), tuple(not _checks(s) for s in cut))


def _read(s: Stage) -> set[str]:
    return {x.buffer for v in values(s.action) for x in loads(v)}


def _is_piece(s: Stmt) -> bool:
    """True for a piece of the key loop; a loop that scans the keys computes no scores."""
    return (isinstance(s, If) or (isinstance(s, For) and s.var == "j0")) and any(x.name == "score" for x in stages(s))


def _bounds(s: Stmt) -> tuple[Expr, Expr]:
    """[lo, hi) of a piece; one that runs at most once is `if … and at < hi`, for the tile `at`."""
    if isinstance(s, For):
        return s.lo, s.hi
    assert isinstance(s, If)
    at = next(c.args[0] for c in conjuncts(s.pred) if isinstance(c, Op) and c.name == "lt")
    return select(s.pred, at, 0), select(s.pred, binary("add", at, 1), 0)


def _stored(k: int, e: Expr, grid: Sequence[For]) -> Stmt:
    index: tuple[Expr, ...] = (*(Var(f.var) for f in grid), Const(k, "int32"))
    return Stage(f"bound_{k}_init", Store("bounds", index, e.astype("int32")))


def _checks(s: Stmt) -> bool:
    """True where anything is masked in a piece, the rows of the last tile apart."""
    chosen = any(isinstance(x, Select) for stage in stages(s) for v in values(stage.action) for x in walk_expr(v))
    return chosen or any("j1" in variables(c) for stage in stages(s) for c in conjuncts(stage.when))


@dataclass(frozen=True)
class Count:
    """Tiles of one instance, all batch rows together."""

    mask: str
    s_q: int
    s_kv: int
    block_m: int
    block_n: int
    tiles: int
    needed: int
    visited: int
    full: int
    clean: int
    faults: tuple[str, ...]


def count(case: Case, s_q: int, s_kv: int, block_m: int, block_n: int, seed: int = 0, parts: int = 0) -> Count:
    """Visited and clean tiles of the program, with its keys in so many parts (0: whole), beside needed and full ones
    of the mask."""
    data = _data(case, s_q, s_kv, seed)
    own = pieces(case.name, parts > 0)
    sizes = {"batch": BATCH, "s_q": s_q, "s_kv": s_kv, "BLOCK_M": block_m, "BLOCK_N": block_n, **(case.scalars or {})}
    sizes |= {"NUM_SPLITS": parts} if parts else {}
    inputs = {b.name: data.get(b.name, np.zeros((1,) * len(b.shape))) for b in own.program.inputs}
    program = replace(own.program, inputs=tuple(b for b in own.program.inputs if b.name in data))
    bounds = evaluate(program, {n: a for n, a in inputs.items() if n in data}, sizes)["bounds"]
    rows, columns = -(-s_q // block_m), -(-s_kv // block_n)
    # Batch row, tile of queries, part and piece, side.
    bounds = np.asarray(bounds).reshape(max(parts, 1), BATCH, rows, len(own.clean), 2)
    bounds = np.moveaxis(bounds, 0, 2).reshape(BATCH, rows, -1, 2)
    tile = np.arange(columns)
    runs = (tile >= bounds[..., :1]) & (tile < bounds[..., 1:])
    times, clean = runs.sum(axis=2), runs[:, :, np.tile(np.array(own.clean, bool), max(parts, 1))].any(axis=2)
    truth = [_truth(_seen(case.name, s_q, s_kv, seed, b), block_m, block_n) for b in range(BATCH)]
    needed, full = (np.stack(x) for x in zip(*truth, strict=True))
    outside = ((bounds[..., 1] > columns) | (bounds[..., 0] < 0)) & (bounds[..., 1] > bounds[..., 0])
    faults = {
        "needed tiles are skipped": needed & (times == 0),
        "tiles are visited twice": times > 1,
        "clean tiles are not full": clean & ~full,
        "tiles beyond the keys are visited": outside,
    }
    if case.visits:
        faults["tiles are visited in vain"] = (times > 0) & ~needed
    if case.cleans:
        faults["full tiles are checked"] = full & ~clean
    return Count(
        case.name,
        s_q,
        s_kv,
        block_m,
        block_n,
        times.size,
        int(needed.sum()),
        int((times > 0).sum()),
        int(full.sum()),
        int(clean.sum()),
        tuple(f"{int(wrong.sum())} {what}" for what, wrong in faults.items() if wrong.any()),
    )


def _data(case: Case, s_q: int, s_kv: int, seed: int) -> Data:
    return case.data(np.random.default_rng((seed, s_q, s_kv)), s_q, s_kv)


@functools.lru_cache(maxsize=BATCH)
def _seen(name: str, s_q: int, s_kv: int, seed: int, b: int) -> Array:
    """The mask itself, for every element."""
    case = cases()[name]
    i, j = np.arange(s_q)[:, None], np.arange(s_kv)[None, :]
    return np.broadcast_to(case.sees(i, j, s_q, s_kv, _data(case, s_q, s_kv, seed), b), (s_q, s_kv))


def _truth(seen: Array, block_m: int, block_n: int) -> tuple[Array, Array]:
    """Where the mask is true of some, and of all elements; a tile that sticks out beyond the keys is not full."""
    s_q, s_kv = seen.shape
    rows, columns = np.arange(0, s_q, block_m), np.arange(0, s_kv, block_n)
    # How many it is true of: sums along the rows of memory first, which are few afterwards.
    true = np.add.reduceat(np.add.reduceat(seen, rows, axis=0, dtype=np.int32), columns, axis=1)
    height, width = (
        np.minimum(block, n - starts) for block, n, starts in ((block_m, s_q, rows), (block_n, s_kv, columns))
    )
    return true > 0, (true == height[:, None] * width) & (width == block_n)


def instances(lengths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """(s_q, s_kv): equal, one query, and both ways unequal."""
    for n in lengths:
        yield from dict.fromkeys([(n, n), (1, n), (n, max(1, n // 3)), (max(1, n // 3), n)])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--masks", default="", help="names, separated by commas; all by default")
    parser.add_argument("--lengths", default=",".join(map(str, LENGTHS)))
    parser.add_argument("--parts", type=int, default=0, help="in how many parts the keys are folded; 0 does not split")
    options = parser.parse_args()
    chosen = [c for n, c in cases().items() if not options.masks or n in options.masks.split(",")]
    lengths = [int(n) for n in options.lengths.split(",")]
    shapes = [(q, n, bm, bn) for q, n in instances(lengths) for bm, bn in TILES]
    counts = [count(c, *shape, parts=options.parts) for c in chosen for shape in shapes]
    print(f"{'mask':22} {'tiles':>9} {'needed':>9} {'visited':>9} {'full':>9} {'clean':>9}  instances, remarks")
    for case in chosen:
        mine = [c for c in counts if c.mask == case.name]
        total = [sum(getattr(c, f) for c in mine) for f in ("tiles", "needed", "visited", "full", "clean")]
        faults = [f"s_q {c.s_q} s_kv {c.s_kv} {c.block_m}x{c.block_n}: {', '.join(c.faults)}" for c in mine if c.faults]
        remark = faults[0] if faults else case.why or "as brute force"
        print(f"{case.name:22} {' '.join(f'{n:9}' for n in total)}  {len(mine)}, {remark}")
    return int(any(c.faults for c in counts))


if __name__ == "__main__":
    sys.exit(main())
