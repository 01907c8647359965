"""The state of writing one kernel: nested scopes, names, and what of the parameters is used.

A definition (an offset tile, a base pointer, a bound) is written once, in the outermost scope in which its
variables exist: that is what hoists the invariant parts of addresses out of loops. It stands right before the
statement that first needs it, so that what only the end of a kernel needs takes no register in its loops.
Reads of memory are not hoisted: an outer scope may run where the inner one does not.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Hashable, Iterable, Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field

from neptune.codegen.triton.expr import ScalarPrinter, nonnegative
from neptune.codegen.triton.text import ATOM, Text, call, infix
from neptune.ir.expr import Expr, Load, Var, children, variables
from neptune.ir.program import Buffer
from neptune.tile.address import Addressed, Part
from neptune.tile.ir import (
    Loop,
    StoreTile,
    TileKernel,
    TileProgram,
    walk_stmts,
)


@dataclass
class Scope:
    """A kernel, loop or branch body: its loop variables, its lines (`first` before `body`), names and their texts."""

    vars: frozenset[str]
    first: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    names: dict[Hashable, str] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def lines(self) -> list[str]:
        return self.first + self.body


class Context:
    """The state that all parts of the kernel writer share."""

    def __init__(self, addressed: Addressed, reserved: frozenset[str] = frozenset()) -> None:
        self.addressed = addressed
        self.program, self.kernel = program, kernel = addressed.program, addressed.kernel
        self.extents = dict(kernel.axes)
        self.labels = axis_labels(kernel)
        self.scopes = [Scope(frozenset(g.var for g in kernel.grid))]
        self.used: set[str] = set()
        self.helpers: set[str] = set()
        self.boxes: dict[tuple[str, tuple[str | None, ...]], str] = {}
        self.stored = frozenset(s.buffer for s in walk_stmts(kernel.body) if isinstance(s, StoreTile))
        self.ids = frozenset(g.var for g in kernel.grid)
        self._depth: dict[str, int] = {}
        self.reserved = reserved_names(program, kernel, reserved)
        self.tiles = local_names(program, kernel, reserved)
        self.locals = {n: text for n, text in self.tiles.items() if n not in program.globals}
        self._signs = {g.var: True for g in kernel.grid} | {t.name: True for t in program.tunables}
        sizes = frozenset(d.name for b in program.globals.values() for d in b.shape if isinstance(d, Var))
        self._signs |= {s.name: s.name in sizes or (s.lo or -1) >= 0 or s.lo == 0 for s in program.scalars}
        self._params = frozenset(s.name for s in program.scalars) | frozenset(t.name for t in program.tunables)
        self.scalar = ScalarPrinter(self.variable, self.scalar_load, self.named, self.is_nonnegative, self.helpers.add)

    # --- names ---------------------------------------------------------------------------------

    def fresh(self, name: str, level: int) -> str:
        """An unused name. Sibling scopes may share one; an outer scope never takes an inner one's,
        for Triton would carry it through the loop."""
        active = {n for s in self.scopes for n in s.names.values()}
        candidate, k = name, 0
        while candidate in self.reserved or candidate in active or self._depth.get(candidate, level) != level:
            k += 1
            candidate = f"{name}_{k}"
        self._depth[candidate] = level
        return candidate

    def find(self, key: Hashable) -> str | None:
        """The name a definition has in the scopes that are open."""
        return next((s.names[key] for s in self.scopes if key in s.names), None)

    def define(self, key: Hashable, name: str, text: Text | str, level: int, first: bool = False) -> str:
        """Name a value in scope `level`, once; at its head with `first`, for what depends on no other line.

        The lines of inner scopes are not in the outer one yet, so that its end is before them.
        """
        if (known := self.find(key)) is not None:
            return known
        scope = self.scopes[level]
        scope.names[key] = fresh = self.fresh(name, level)
        scope.texts[fresh] = str(text)
        (scope.first if first else scope.body).append(f"{fresh} = {text}")
        return fresh

    def forget(self, name: str) -> None:
        """A local gets another value: what was named for the one before, and what reads that, is not it any more."""
        old = {name}
        while True:
            stale = {n for s in self.scopes for n, text in s.texts.items() if n not in old and reads_any(text, old)}
            if not stale:
                break
            old |= stale
        for s in self.scopes:
            s.names = {key: n for key, n in s.names.items() if n not in old}
            s.texts = {n: text for n, text in s.texts.items() if n not in old}

    def emit(self, *lines: str) -> None:
        """Add lines to the body of the innermost scope."""
        self.scopes[-1].body.extend(lines)

    @property
    def depth(self) -> int:
        return len(self.scopes) - 1

    def layout(self, _dims: tuple[str, ...]) -> tuple[str, ...]:
        """The layout in registers of a tile that is made at this place, as arguments. Triton finds layouts itself."""
        return ()

    @contextmanager
    def scope(self, *names: str) -> Iterator[Scope]:
        """Write into a nested body that binds `names`."""
        inner = Scope(frozenset(names))
        self.scopes.append(inner)
        try:
            yield inner
        finally:
            self.scopes.pop()

    # --- variables -----------------------------------------------------------------------------

    def variable(self, name: str) -> str:
        if name in self._params:
            self.used.add(name)
        return name

    def is_nonnegative(self, name: str) -> bool:
        return self._signs.get(name, False)

    def bind_loop(self, loop: Loop) -> None:
        """Note the sign of a loop variable."""
        self._signs[loop.var] = nonnegative(loop.lo, self.is_nonnegative)

    def level(self, exprs: Iterable[Expr]) -> int:
        """The outermost scope in which all of `exprs` can be computed."""
        return max((self._level(e) for e in exprs), default=0)

    def _level(self, e: Expr) -> int:
        for k, s in enumerate(self.scopes):
            if e in s.names:
                return k
        if isinstance(e, Load):
            return self.depth
        if isinstance(e, Var):
            return max((k for k, s in enumerate(self.scopes) if e.name in s.vars), default=0)
        return self.level(children(e))

    def named(self, e: Expr) -> str | None:
        return None if isinstance(e, Var) else self.find(e)

    def name_scalar(self, e: Expr, name: str) -> str:
        """The text of a scalar, through a line of its own unless it is a literal or a variable."""
        if not children(e):
            return str(self.scalar(e))
        return self.define(e, name, self.scalar(e), self.level([e]))

    # --- parameters ----------------------------------------------------------------------------

    def pointer(self, buffer: str) -> str:
        self.used.add(f"{buffer}_ptr")
        return f"{buffer}_ptr"

    def stride(self, buffer: str, dim: int) -> str:
        """The stride parameter of a dimension that is not the last, whose stride is 1."""
        name = stride_name(self.program.globals[buffer], dim)
        self.used.add(name)
        return name

    # --- scalar reads --------------------------------------------------------------------------

    def scalar_load(self, load: Load, guard: Text | None) -> Text:
        """A read of one element, such as an entry of a page table, or of a scalar tile variable."""
        if load.buffer in self.locals:
            return Text(self.locals[load.buffer])
        address = Text(self.pointer(load.buffer))
        for p in self.addressed.reads[load]:
            address = infix("add", address, self.strided(load.buffer, p, self.scalar(load.index[p.dim], guard)))
        if guard is not None:
            return call("tl.load", address, f"mask={guard}", "other=0")
        text = call("tl.load", address)
        if load.buffer in self.stored:
            return text
        return Text(self.define(load, f"{load.buffer}_value", text, self.depth))

    def strided(self, buffer: str, part: Part, text: Text) -> Text:
        """A sum of scalars times the stride of its dimension."""
        if part.cast:
            names = frozenset[str]().union(*(variables(f) for t in part.terms for f in t.factors))
            # Loop variables are plain numbers in the interpreter, without a method `to`.
            plain = not names & self.ids
            text = call("tl.cast", text, "tl.int64") if plain else Text(f"{text.at(ATOM)}.to(tl.int64)")
        return infix("mul", text, Text(self.stride(buffer, part.dim))) if part.strided else text


def reads_any(text: str, names: Set[str]) -> bool:
    """True if one of some names occurs in a text.

    >>> reads_any("j0_end - 1", {"end"}), reads_any("j0_end - 1", {"j0_end"})
    (False, True)
    """
    return not names.isdisjoint(re.findall(r"\w+", text))


def stride_name(b: Buffer, dim: int) -> str:
    """`stride_<buffer>_<dim>`, by the name of its size where that says which dimension is meant."""
    size = b.shape[dim]
    plain = isinstance(size, Var) and sum(size == d for d in b.shape) == 1
    return f"stride_{b.name}_{size.name if plain and isinstance(size, Var) else dim}"


def axis_labels(kernel: TileKernel) -> dict[str, str]:
    """Map each tile axis to its name in variables of positions: `i` for `i1`, half of loop i, if no other axis is."""
    stems = [axis.rstrip("0123456789") or axis for axis, _ in kernel.axes]
    return {axis: stem if stems.count(stem) == 1 else axis for stem, (axis, _) in zip(stems, kernel.axes, strict=True)}


def reserved_names(program: TileProgram, kernel: TileKernel, more: frozenset[str] = frozenset()) -> frozenset[str]:
    """Names that no definition may take: parameters, loop variables, tile variables, modules, and `more`."""
    names = {"tl", "triton", "torch", "TensorDescriptor", "range", "float", *keyword.kwlist, *more}
    names |= {s.name for s in program.scalars} | {t.name for t in program.tunables}
    names |= {g.var for g in kernel.grid} | {s.var for s in walk_stmts(kernel.body) if isinstance(s, Loop)}
    names |= set(local_names(program, kernel, more).values())
    for b in program.globals.values():
        names |= {f"{b.name}_ptr", f"{b.name}_desc", *(stride_name(b, k) for k in range(len(b.shape)))}
    return frozenset(names)


def local_names(program: TileProgram, kernel: TileKernel, more: frozenset[str] = frozenset()) -> dict[str, str]:
    """The Python name of each tile variable: its own, unless a size, a loop variable or something in `more` has it."""
    used = {"tl", "triton", "torch", "range", "float", *keyword.kwlist, *more}
    used |= {s.name for s in program.scalars} | {t.name for t in program.tunables}
    used |= {g.var for g in kernel.grid} | {s.var for s in walk_stmts(kernel.body) if isinstance(s, Loop)}
    names: dict[str, str] = {}
    for s in walk_stmts(kernel.body):
        name = getattr(s, "name", None)
        if isinstance(name, str) and name not in names:
            names[name] = f"{name}_tile" if name in used else name
    return names
