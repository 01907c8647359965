"""Write docs/schedule.md: every primitive with programs before and after it, made by running it, and a refusal.

python docs/generate_schedule.py            rewrites the page
python docs/generate_schedule.py --check    fails where it is out of date
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from neptune.errors import NeptuneError
from neptune.frontend.builder import build, compute, exp, max, placeholder, reduce_axis, sum, var
from neptune.fusion.schedule import PRIMITIVES, Schedule
from neptune.ir.expr import Expr
from neptune.ir.program import Program

PAGE = Path(__file__).with_name("schedule.md")
M, N, K = var("m"), var("n"), var("k")
ROWS, COLS = var("rows"), var("cols")


# --- the programs ----------------------------------------------------------------------------------


def product() -> Program:
    """c = a b, d = 2 c."""
    a, b = placeholder((M, K), name="a"), placeholder((K, N), name="b")
    p = reduce_axis((0, K), "p")
    c = compute((M, N), lambda i, j: sum(a[i, p] * b[p, j], axis=p), "c")
    return build(compute((M, N), lambda i, j: c[i, j] * 2.0, "d"), name="product")


def neighbours() -> Program:
    """t = 2 x, y[i] = t[i] + t[i + 1]."""
    x = placeholder((M + 1,), name="x")
    t = compute((M + 1,), lambda i: x[i] * 2.0, "t")
    return build(compute((M,), lambda i: t[i] + t[i + 1], "y"), name="neighbours")


def normalised() -> Program:
    """m is the maximum of each row, e = exp(x - m), l the row sums of e."""
    x = placeholder((ROWS, COLS), name="x")
    j, k = reduce_axis((0, COLS), "j"), reduce_axis((0, COLS), "j")
    m = compute((ROWS,), lambda i: max(x[i, j], axis=j), "m")
    e = compute((ROWS, COLS), lambda i, j: exp(x[i, j] - m[i]), "e")
    return build(compute((ROWS,), lambda i: sum(e[i, k], axis=k), "l"), name="normalised")


def scaled() -> Program:
    """r are the row sums of x, y = r w."""
    x, w = placeholder((ROWS, COLS), name="x"), placeholder((N,), name="w")
    k = reduce_axis((0, COLS), "k")
    r = compute((ROWS,), lambda i: sum(x[i, k], axis=k), "r")
    return build(compute((ROWS, N), lambda i, j: r[i] * w[j], "y"), name="scaled")


def weighted() -> Program:
    """y = x w, with a scale for each row."""
    x, w = placeholder((M, K), "float16", "x"), placeholder((K, N), "float16", "w")
    s, p = placeholder((M,), "float32", "s"), reduce_axis((0, K), "p")

    def value(i: Expr, j: Expr) -> Expr:
        return sum(x[i, p].astype("float32") * s[i] * w[p, j].astype("float32"), axis=p)

    return build(compute((M, N), value, "y"), inputs=[x, w, s], name="weighted")


def grouped() -> Program:
    """Scores of 8 query heads, of which every 4 share a key head."""
    q, k = placeholder((8, M, 16), name="q"), placeholder((2, N, 16), name="k")
    d = reduce_axis((0, 16), "d")
    s = compute((8, M, N), lambda h, i, j: sum(q[h, i, d] * k[h // 4, j, d], axis=d), "s")
    return build(compute((8, M, N), lambda h, i, j: s[h, i, j] * 0.25, "score"), name="grouped")


def one_query() -> Program:
    """The same for one query, without an axis for it."""
    q, k = placeholder((8, 16), name="q"), placeholder((2, N, 16), name="k")
    d = reduce_axis((0, 16), "d")
    s = compute((8, N), lambda h, j: sum(q[h, d] * k[h // 4, j, d], axis=d), "s")
    return build(compute((8, N), lambda h, j: s[h, j] * 0.25, "score"), name="one_query")


# --- the examples ----------------------------------------------------------------------------------

Call = Callable[[Schedule], object]


@dataclass(frozen=True)
class Example:
    """One primitive: calls that prepare the program, the call shown, and one that is refused; another form, if any.

    The code that is shown is the trace of the calls.
    """

    program: Callable[[], Program]
    call: Call
    refused: Call
    before: Call = lambda sch: None
    also: Example | None = None


def _tiled(sch: Schedule) -> None:
    i, j, _ = sch.loops("c")
    sch.tile([i, j], [sch.param("BM", [64, 128]), sch.param("BN", [64])])


def _split(sch: Schedule) -> None:
    part = sch.split_k(sch.loop("m", "j"), "NUM_SPLITS")
    sch.bind(sch.loops("m_split")[:2], ["grid.y", "grid.x"])
    for stage in sch.stages:
        if stage in ("e", "l_split"):
            sch.fuse_at(stage, sch.loop("m_split", "i"))
    assert part.var == "part"


EXAMPLES: dict[str, Example] = {
    "param": Example(product, lambda s: s.param("BM", [64, 128]), lambda s: s.param("BM", [48])),
    "split": Example(
        neighbours,
        lambda s: s.split(s.loop("y", "i"), s.param("BM", [64, 128])),
        lambda s: s.split(s.loop("y", "j"), 4),
    ),
    "cover": Example(
        normalised, lambda s: s.cover(s.loop("m", "j"), "BLOCK_N"), lambda s: s.cover(s.loop("m", "j"), "m")
    ),
    "fuse": Example(
        product,
        lambda s: s.fuse(s.loop("c", "i"), s.loop("c", "j")),
        lambda s: s.fuse(s.loop("c", "j"), s.loop("c", "p")),
    ),
    "rename": Example(
        neighbours,
        lambda s: s.rename(s.loop("y", "i0"), "tile"),
        lambda s: s.rename(s.loop("y", "i0"), "i1"),
        lambda s: s.split(s.loop("y", "i"), 64),
    ),
    "pack": Example(
        grouped,
        lambda s: s.pack(s.loop("s", "h"), s.loop("s", "i")),
        lambda s: s.pack(s.loop("s", "j"), s.loop("s", "i")),
        also=Example(
            one_query,
            lambda s: s.pack(s.loop("s", "h")),
            lambda s: s.pack(s.loop("s", "j")),
        ),
    ),
    "reorder": Example(
        product,
        lambda s: s.reorder(s.loop("c", "p"), s.loop("c", "i")),
        lambda s: s.reorder(s.loop("c", "p"), s.loop("d", "i")),
    ),
    "bind": Example(
        product,
        lambda s: s.bind(s.loop("c", "i"), "grid.x"),
        lambda s: s.bind(s.loops("c"), ["grid.z", "grid.y", "grid.x"]),
    ),
    "reverse": Example(
        neighbours,
        lambda s: s.reverse(s.loop("y", "i0")),
        lambda s: s.reverse(s.loop("y", "i1")),
        lambda s: s.bind(s.split(s.loop("y", "i"), 64)[0], "grid.x"),
    ),
    "inline": Example(neighbours, lambda s: s.inline("t"), lambda s: s.inline("y")),
    "compute_at": Example(
        neighbours,
        lambda s: s.compute_at("t", s.loop("y", "i0")),
        lambda s: s.compute_at("y", s.loop("y", "i0")),
        lambda s: s.split(s.loop("y", "i"), 64),
    ),
    "replicate": Example(
        scaled,
        lambda s: s.replicate("r", s.loop("y", "j0")),
        lambda s: s.replicate("r", s.loop("y", "j1")),
        lambda s: s.split(s.loop("y", "j"), s.param("BN", [64])),
    ),
    "fuse_at": Example(
        normalised,
        lambda s: s.fuse_at("e", s.loop("m", "j")),
        lambda s: s.fuse_at("l", s.loop("m", "j")),
    ),
    "reverse_compute_at": Example(
        product,
        lambda s: s.reverse_compute_at("d", s.loop("c", "j0")),
        lambda s: s.reverse_compute_at("d", s.loop("c", "p")),
        _tiled,
    ),
    "rolling_update": Example(
        normalised,
        lambda s: s.rolling_update("l", s.loop("m", "j")),
        lambda s: s.rolling_update("e", s.loop("m", "j")),
    ),
    "hoist_factor": Example(
        weighted,
        lambda s: s.hoist_factor("y"),
        lambda s: (s.hoist_factor("y"), s.hoist_factor("y")),
    ),
    "split_k": Example(
        normalised,
        lambda s: s.split_k(s.loop("m", "j"), "NUM_SPLITS"),
        lambda s: s.split_k(s.loop("m", "i"), "NUM_SPLITS"),
    ),
    "write_directly": Example(
        normalised,
        lambda s: s.write_directly(s.loop("m_split", "part")),
        lambda s: s.write_directly(s.loop("m_split", "i")),
        _split,
    ),
    "privatize": Example(
        normalised,
        lambda s: s.privatize("m", s.loop("m", "j0")),
        lambda s: s.privatize("e", s.loop("e", "j")),
        lambda s: s.split(s.loop("m", "j"), 64),
    ),
    "cache_read": Example(product, lambda s: s.cache_read("c", "a"), lambda s: s.cache_read("d", "a")),
    "cache_write": Example(
        product, lambda s: s.cache_write("c"), lambda s: (s.fuse_at("d", s.loop("c", "j")), s.cache_write("c"))
    ),
    "set_scope": Example(product, lambda s: s.set_scope("c", "tile"), lambda s: s.set_scope("d", "tile")),
    "decompose_reduction": Example(
        product,
        lambda s: s.decompose_reduction("c", s.loop("c", "j")),
        lambda s: s.decompose_reduction("d", s.loop("d", "j")),
    ),
    "partition": Example(
        normalised,
        lambda s: s.partition(s.loop("m", "j0")),
        lambda s: s.partition(s.loop("l", "j")),
        lambda s: s.split(s.loop("m", "j"), s.param("BN", [64])),
    ),
}

INTRODUCTION = """\
# The schedule language

A schedule is a function over `sch`, a `neptune.Schedule`. It names stages by their tensors (`"c"`) and loops by
the stage they are around: `sch.loops("c")` lists them, outermost first, `sch.loop("c", "i")` is one by name,
`sch.loop_of("c", "i")` is the one that still runs an axis as it was written. Nothing has to be scheduled: an unbound
loop runs serially within a program, and a stage that is not fused gets a kernel of its own.

Every call either succeeds and is recorded, or raises an error that says what is legal and changes nothing.
`sch.trace` holds the calls; `neptune.schedule.trace` writes them as JSON, `replay` carries them out on another
program, and `sch.as_code()` prints them as a function. `tile([i, j], [BM, BN])` is `split` and `reorder` at once.

[Write a template](write_template.md) goes through one, says which primitive when, and how tunables are declared.

This page is written by `docs/generate_schedule.py`, which runs every example.
"""


def text() -> str:
    """The page."""
    parts = [INTRODUCTION]
    parts += [_section(name, example) for name, example in EXAMPLES.items()]
    missing = set(PRIMITIVES) - set(EXAMPLES)
    assert not missing, f"primitives without an example: {', '.join(sorted(missing))}"
    return "\n".join(parts)


def _section(name: str, example: Example) -> str:
    method = getattr(Schedule, name)
    parameters = ", ".join(p for p in inspect.signature(method).parameters if p != "self")
    lines = [f"## {name}({parameters})", "", inspect.getdoc(method) or "", ""]
    lines += [line for x in (example, example.also) if x is not None for line in _executed(x)]
    return "\n".join(lines)


def _executed(example: Example) -> list[str]:
    """One example, as it runs."""
    sch = Schedule(example.program())
    example.before(sch)
    mark = len(sch.trace)
    before = _body(sch.program)
    said = len(sch.decisions)
    example.call(sch)
    calls = "\n".join(str(s) for s in sch.trace[mark:])
    lines = [f"`{example.program.__name__}`: {(example.program.__doc__ or '').strip()}", ""]
    lines += [_block("", before), _block("python", calls), _block("", _body(sch.program))]
    notes = [f"{d.subject}: {d.verdict} ({d.reason})" for d in sch.decisions[said:]]
    if notes:
        lines += ["Recorded for `explain()`:", "", *(f"- {n}" for n in notes), ""]
    return [*lines, "Refused, for instance:", "", _block("", _refusal(example))]


def _body(program: Program) -> str:
    """The program without the declarations that do not change."""
    lines = str(program).rstrip().splitlines()
    kept = [x for x in lines[1:] if x.strip().split(" ")[0] in ("temp", "tunable", "owes")]
    return "\n".join([*kept, *lines[lines.index("body:") :]])


def _refusal(example: Example) -> str:
    sch = Schedule(example.program())
    example.before(sch)
    try:
        example.refused(sch)
    except NeptuneError as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"nothing was refused:\n{sch.program}")


def _block(language: str, body: str) -> str:
    return f"```{language}\n{body}\n```\n"


def main(arguments: list[str]) -> int:
    made = text()
    if "--check" in arguments:
        return 0 if PAGE.read_text() == made else 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
