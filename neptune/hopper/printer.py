"""Print asynchronous kernels: the notation of tile programs, with the statements of roles."""

from __future__ import annotations

from dataclasses import fields

from neptune.hopper.ir import (
    AStmt,
    AsyncKernel,
    Await,
    Drain,
    Fill,
    Finish,
    Issue,
    Levers,
    Out,
    Release,
    Ring,
    Send,
    inside,
    with_inside,
)
from neptune.ir.dtypes import DTYPES
from neptune.ir.printer import print_expr
from neptune.tile.ir import Assign, Branch, Loop, StoreTile
from neptune.tile.printer import print_grid, print_texpr, print_tstmt


def print_async(kernel: AsyncKernel) -> str:
    """The whole kernel as text."""
    axes = ", ".join(f"{name}: {extent}" for name, extent in kernel.axes)
    lines = [
        f"async kernel {kernel.name}  grid({print_grid(kernel.grid)})  axes({axes})",
        f"  groups {kernel.group} of {kernel.rows}",
        f"  levers {_levers(kernel.levers)}",
        *(f"  {_ring(r)}" for r in kernel.rings),
        *(f"  {_out(o)}" for o in kernel.outs),
        f"  counters {' '.join(kernel.counters)}",
    ]
    if kernel.weight is not None:
        lines.append(f"  weight {print_expr(kernel.weight)}")
    for role, body in (("producer", kernel.producer), ("consumer", kernel.consumer)):
        lines += [f"{role}:", *(line for s in body for line in print_astmt(s, 1))]
    return "\n".join(lines) + "\n"


def _levers(levers: Levers) -> str:
    """Values by name, tunables last."""
    named = {f.name: getattr(levers, f.name) for f in fields(Levers) if f.name not in ("tiles", "producer")}
    if levers.producer != Levers.producer:
        named["producer"] = levers.producer
    return ", ".join(f"{name}={value}" for name, value in (named | dict(levers.tiles)).items())


def _ring(r: Ring) -> str:
    own = ", own" if r.own else ""
    shared = "" if r.barrier is None else f", barrier {r.barrier}"
    return f"ring {r.name}<{' '.join(r.dims)}> of {r.tensor}: {DTYPES[r.dtype].short}, {r.stages} stages{own}{shared}"


def _out(o: Out) -> str:
    over = "" if o.over is None else f", over {o.over}"
    return f"out {o.name}<{' '.join(o.dims)}> of {o.tensor}: {DTYPES[o.dtype].short}{over}"


def print_astmt(s: AStmt, indent: int) -> list[str]:
    """The lines of a statement."""
    pad = "  " * indent
    match s:
        case Loop() | Branch():
            head = print_tstmt(with_inside(s, ()), indent)
            return head + [line for x in inside(s) for line in print_astmt(x, indent + 1)]
        case Fill(ring, turn, load):
            return [f"{pad}fill {ring}({print_expr(turn)}) = {print_texpr(load)}"]
        case Await(ring, turn):
            return [f"{pad}await {ring}({print_expr(turn)})"]
        case Release(ring, turn):
            return [f"{pad}release {ring}({print_expr(turn)})"]
        case Issue(name, dot, stage):
            return [f"{pad}issue {print_tstmt(Assign(name, dot, stage), 0)[0]}"]
        case Finish(pending, names, also):
            tail = f" also {' '.join(also)}" if also else ""
            return [f"{pad}finish {pending}: {' '.join(names)}{tail}".rstrip()]
        case Send(out, buffer, index, value, mask, dims, _):
            return [f"{pad}send {out}: {print_tstmt(StoreTile(buffer, index, value, mask, dims), 0)[0]}"]
        case Drain(out):
            return [f"{pad}drain {out}"]
        case _:
            return print_tstmt(s, indent)
