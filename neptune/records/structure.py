"""The structure of a program: a digest of all but the names of its buffers, loops and stages.

    program softmax                     program rows
      in x: f32[rows, cols]               in a: f32[rows, cols]
      …                                   …
      for i in [0, rows):                 for r in [0, rows):
        top: m[i] max= x[i, j]              best: c[r] max= a[r, j]
                                →  one digest

Two programs of one structure are one computation. What was measured of one holds for others of its kin, too, in which
constants have other values; the tuner keeps records by that, and they are read by both. Sizes and scalars keep their
names, since the sizes of a record, and `shapes=` of a call, are given by them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from neptune.ir.expr import Expr, Load, Var, rewrite
from neptune.ir.program import Alloc, Buffer, For, If, Program, Seq, Stage, Stmt, map_action, retarget, stages
from neptune.ir.text.printer import print_program

DIGITS = 32
"""Hexadecimal digits of a structure: 128 bits, and lines that stay short."""
LARGEST_KEPT = 16
_NUMBER = re.compile(r"(?<![\w.$])\d+(?:\.\d*(?:e[+-]?\d+)?|e[+-]?\d+)")
"""A constant of a float, in the text of a program; integers have no point."""


def structure_of(program: Program) -> str:
    """The structure of a program as it was defined, before anything was scheduled: 32 hexadecimal digits.

    Renaming leaves it as it is. Any change of an operator, a dtype, a constant, a reducer, a mask, a shape, a bound of
    a size, or the order of inputs and outputs gives another one.
    """
    return keys_of(program)[1]


def kin_of(program: Program) -> str:
    """The structure of a program but for the values of its constants, such as an epsilon, a scale, a cap: programs of
    one kin compute other numbers in the same time. Whole and half numbers up to 16 stay, as exponents have them, and 0.

    rms_norm, eps=1e-6:  rsqrt(s / n + 1e-06)    →    rsqrt(s / n + c)
    """
    return keys_of(program)[0]


def keys_of(program: Program) -> tuple[str, str]:
    """What records of a program are kept by, its kin, and its structure, by which they were kept before."""
    text = print_program(canonical(program))
    return _digest(_NUMBER.sub(_of_any_value, text)), _digest(text)


def _of_any_value(number: re.Match[str]) -> str:
    value = float(number[0])
    return number[0] if abs(value) <= LARGEST_KEPT and (2 * value).is_integer() else "c"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def canonical(program: Program) -> Program:
    """The program with its buffers, loops and stages numbered in order of appearance, under names no user can give."""
    buffers = {name: f"${k}" for k, name in enumerate(program.buffers)}
    named = {s.name: "" for s in stages(program.body)}
    renamer = _Renamer(buffers, {name: f"${k}" for k, name in enumerate(named)})
    body = renamer.stmt(program.body, {})
    inputs, outputs, temporaries = (
        tuple(renamer.buffer(b, {}) for b in group) for group in (program.inputs, program.outputs, program.temporaries)
    )
    return replace(program, name="program", inputs=inputs, outputs=outputs, temporaries=temporaries, body=body)


@dataclass
class _Renamer:
    """`loops`, an argument of all methods, are the loops around: siblings may share a name, and are told apart."""

    buffers: Mapping[str, str]
    stages: Mapping[str, str]
    count: int = 0

    def expr(self, e: Expr, loops: Mapping[str, str]) -> Expr:
        def fn(x: Expr) -> Expr | None:
            if isinstance(x, Var):
                return Var(loops.get(x.name, x.name), x.dtype)
            if isinstance(x, Load):
                return Load(self.buffers.get(x.buffer, x.buffer), tuple(self.expr(i, loops) for i in x.index), x.dtype)
            return None

        return rewrite(e, fn)

    def buffer(self, b: Buffer, loops: Mapping[str, str]) -> Buffer:
        return replace(b, name=self.buffers[b.name], shape=tuple(self.expr(d, loops) for d in b.shape))

    def stage(self, s: Stage, loops: Mapping[str, str]) -> Stage:
        action = retarget(map_action(s.action, lambda e: self.expr(e, loops)), self.buffers)
        when = None if s.when is None else self.expr(s.when, loops)
        # What a stage was made of may be a buffer.
        provenance = None if s.made is None else replace(s.made, of=self.stages.get(s.made.of, s.made.of))
        return replace(s, name=self.stages[s.name], action=action, when=when, made=provenance)

    def stmt(self, s: Stmt, loops: Mapping[str, str]) -> Stmt:
        match s:
            case For(var, lo, hi, body, _, facts):
                # A loop's bounds stand outside of it.
                lo, hi = self.expr(lo, loops), self.expr(hi, loops)
                fresh = f"${self.count}"
                self.count += 1
                inner = {**loops, var: fresh}
                held = tuple(self.expr(f, inner) for f in facts)
                return replace(s, var=fresh, lo=lo, hi=hi, facts=held, body=self.stmt(body, inner))
            case If(pred, body):
                return If(self.expr(pred, loops), self.stmt(body, loops))
            case Alloc(buffer, body):
                return Alloc(self.buffer(buffer, loops), self.stmt(body, loops))
            case Seq(parts):
                return Seq(tuple(self.stmt(x, loops) for x in parts))
            case Stage():
                return self.stage(s, loops)
