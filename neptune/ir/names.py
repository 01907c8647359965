"""Names that generated Python, Triton and einops patterns may use, and programs with such names."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from neptune.ir.expr import Expr, Var, redirected, substitute
from neptune.ir.program import (
    Alloc,
    Buffer,
    For,
    Program,
    Scalar,
    Stage,
    Stmt,
    map_exprs,
    retarget,
    sub_stmts,
    walk,
    with_stmts,
)

# What generated modules use themselves.
_MODULES = ("tl", "triton", "torch", "TensorDescriptor")
_ARGUMENTS = ("grid", "num_warps", "num_stages", "launcher")
_BUILTINS = ("range", "float", "int", "max", "min", "abs", "inf", "nan")
RESERVED = frozenset((*_MODULES, *_ARGUMENTS, *_BUILTINS))
_GENERATED = re.compile(
    r"(stride_|offs_|idx_|pid_).*|.*(_ptr|_desc|_base|_offs|_kernel|_end)(_\d+)?|tl_.*|_.*|.*_|libdevice"
)


def fits(name: str) -> bool:
    """True for a plain ASCII identifier that generated code does not use itself.

    >>> fits("score"), fits("lambda"), fits("tl"), fits("q_ptr"), fits("m'")
    (True, False, False, False, False)
    """
    if not (name.isidentifier() and name.isascii()) or keyword.iskeyword(name) or name in RESERVED:
        return False
    return _GENERATED.fullmatch(name) is None


def usable(name: str) -> str:
    """A name itself where generated code may use it, else one like it that it may.

    >>> usable("score"), usable("max"), usable("x_ptr"), usable("a_"), usable("_")
    ('score', 'max1', 'of_x_ptr1', 'a1', 'of_1')
    """
    plain = re.sub(r"\W", "", name, flags=re.ASCII).strip("_")
    return next(n for n in (name, f"{plain}1", f"of_{plain}1") if fits(n))


def with_usable_names(program: Program) -> Program:
    """The program with other names where generated code uses those of its buffers, sizes, stages or loops itself."""
    body = list(walk(program.body))
    buffers = [*program.globals, *(s.buffer.name for s in body if isinstance(s, Alloc))]
    named = [program.name, *buffers, *(s.name for s in program.scalars), *(t.name for t in program.tunables)]
    named += [s.name if isinstance(s, Stage) else s.var for s in body if isinstance(s, Stage | For)]
    names: dict[str, str] = {}
    for name in dict.fromkeys(named):
        if not fits(name):
            names[name] = fresh_name([*named, *names.values()], usable(name))
    return _renamed(program, names) if names else program


def _renamed(program: Program, names: Mapping[str, str]) -> Program:
    variables: dict[str, Expr] = {old: Var(new) for old, new in names.items()}

    def of(name: str) -> str:
        return names.get(name, name)

    def expr(e: Expr) -> Expr:
        return substitute(redirected(e, names), variables)

    def buffer(b: Buffer) -> Buffer:
        return replace(b, name=of(b.name), shape=tuple(map(expr, b.shape)))

    def stmt(s: Stmt) -> Stmt:
        match s:
            case For():
                return replace(s, var=of(s.var), body=stmt(s.body))
            case Alloc():
                return Alloc(buffer(s.buffer), stmt(s.body))
            case Stage():
                provenance = s.made and replace(s.made, of=of(s.made.of))
                return replace(s, name=of(s.name), action=retarget(s.action, names), made=provenance)
            case _:
                return with_stmts(s, tuple(map(stmt, sub_stmts(s))))

    def scalar(s: Scalar) -> Scalar:
        return replace(s, name=of(s.name), upto=None if s.upto is None else expr(s.upto))

    def buffers(group: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(map(buffer, group))

    return replace(
        program,
        name=of(program.name),
        inputs=buffers(program.inputs),
        outputs=buffers(program.outputs),
        temporaries=buffers(program.temporaries),
        scalars=tuple(map(scalar, program.scalars)),
        tunables=tuple(
            replace(t, name=of(t.name), covers=None if t.covers is None else expr(t.covers)) for t in program.tunables
        ),
        body=stmt(map_exprs(program.body, expr)),
        owes=tuple(replace(o, stage=of(o.stage), on=of(o.on), loop=of(o.loop)) for o in program.owes),
    )


def fresh_name(taken: Iterable[str], wish: str) -> str:
    """`wish`, or `wish_1`, `wish_2`, … if it is taken."""
    used = set(taken)
    if wish not in used:
        return wish
    k = 1
    while f"{wish}_{k}" in used:
        k += 1
    return f"{wish}_{k}"
