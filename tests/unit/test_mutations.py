"""The checks see the mistakes that a fusing compiler makes: each mutant of a right kernel is caught.

By the numeric criterion of design §8 on hostile inputs, and by the exact check. Where one of them accepts a mutant,
the row says why it must: the results are equal in that check's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import pytest

from neptune import Kernel
from neptune.codegen.triton import generate
from neptune.errors import InternalError
from neptune.ir.expr import Const, Expr, Load, Op, Select, Var, maximum
from neptune.runtime.launch import parse_target
from neptune.tile.ir import Local, Map, Reduce, Scalar, TExpr, Where
from neptune.verify.exact import check_exact
from tests import mutants as m
from tests.numerics.cases import attention_sizes, attention_subject, families, figure1_subject
from tests.numerics.harness import Families, Subject, judge

INF = float("inf")
LOWEST = -3.4028234663852886e38


@dataclass(frozen=True)
class Mutant:
    """A mistake, and which checks see it."""

    make: Callable[[Any], Any]
    numeric: bool = True
    exact: bool = True
    why: str = ""


def number(value: float) -> Const:
    return Const(float(value), "float32")


def local(name: str, *index: str) -> Load:
    return Load(name, tuple(Var(i) for i in index), "float32")


def overlap(lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    return maximum(lo - 1, 0), hi


def late(lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    return lo + 1, hi


def short(lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    return lo, hi - 1


def long(lo: Expr, hi: Expr) -> tuple[Expr, Expr]:
    return lo, hi + 1


def numerator(e: Expr) -> Expr | None:
    return e.args[0] if isinstance(e, Op) and e.name == "div" else None


FORGOTTEN = "the first rescale, by exp(lowest - m) = 0, forgets what a finite sum started from"

SCORE = local("score", "i1", "j1")
ATTENTION_LOOPS = {
    "clean piece loses its last tile": Mutant(lambda p: m.piece(p, "j0", 0, short)),
    "masked piece loses its last tile": Mutant(lambda p: m.piece(p, "j0", 1, short)),
    "clean piece starts late": Mutant(lambda p: m.piece(p, "j0", 0, late)),
    "masked piece starts late": Mutant(lambda p: m.piece(p, "j0", 1, late)),
    "pieces overlap": Mutant(lambda p: m.piece(p, "j0", 1, overlap)),
    "clean piece goes on too long": Mutant(lambda p: m.piece(p, "j0", 0, long)),
    "l is not rescaled": Mutant(lambda p: m.drop(p, "l_repair")),
    "acc is not rescaled": Mutant(lambda p: m.drop(p, "acc_repair")),
    "l is rescaled after the sum": Mutant(lambda p: m.swap(p, "l_repair", "l")),
    "rescale reversed": Mutant(lambda p: m.change(p, "m_rescale", m.reverse)),
    "l sums p before the new maximum": Mutant(
        lambda p: m.change(
            p, "l", m.put(local("p", "i1", "j1"), Op("exp", (SCORE - local("m_prev", "i1"),), "float32"))
        )
    ),
    "mask excludes the diagonal": Mutant(lambda p: m.change(p, "score", m.rename("le", "lt"))),
    "mask includes one key more": Mutant(lambda p: m.change(p, "score", m.one_more)),
    "no tail mask": Mutant(lambda p: m.unguard(p, ("p", "l"), "j0 * BLOCK_N + j1 < s_kv")),
    "acc starts from 1": Mutant(
        lambda p: m.change(p, "acc_init", m.put(number(0), number(1))), numeric=False, exact=False, why=FORGOTTEN
    ),
    "acc starts from inf": Mutant(lambda p: m.change(p, "acc_init", m.put(number(0), number(INF)))),
    "l starts from 1": Mutant(lambda p: m.change(p, "l_init", m.put(number(0), number(1)))),
    "m starts from 0": Mutant(lambda p: m.change(p, "m_init", m.put(number(LOWEST), number(0)))),
    "m starts from -inf": Mutant(lambda p: m.change(p, "m_init", m.put(number(LOWEST), number(-INF)))),
    "no final division": Mutant(lambda p: m.change(p, "o", numerator)),
    "scale left out of the maximum": Mutant(lambda p: m.change(p, "m", m.put(SCORE, SCORE * 4.0))),
    "scale left out": Mutant(lambda p: m.change(p, "score", m.put(number(0.25), number(1)))),
    "exp2 for exp in p": Mutant(lambda p: m.change(p, "p", m.rename("exp", "exp2"))),
    "exp2 for exp in the rescale": Mutant(lambda p: m.change(p, "m_rescale", m.rename("exp", "exp2"))),
    "exp2 for exp in both": Mutant(
        lambda p: m.change(m.change(p, "m_rescale", m.rename("exp", "exp2")), "p", m.rename("exp", "exp2"))
    ),
}

