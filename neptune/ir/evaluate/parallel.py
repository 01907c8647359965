"""Classification of a Program's loops, by which the evaluator runs some as one array operation.

- A *lane* loop has independent iterations: every buffer that its body writes is accessed, in all reads
  and writes of the body, at a location that determines the iteration.  All its iterations run in lockstep.
- A *fold* loop feeds a single Update whose target does not depend on it: its values are reduced at once.
- Any other loop is *serial*.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator

from neptune.ir.expr import Const, Expr, Op, Var, loads, variables
from neptune.ir.program import Alloc, For, If, Stage, Stmt, starts, values, walk, writes
from neptune.ir.reducers import REDUCERS

Access = tuple[str, tuple[Expr, ...]]


def statement_exprs(s: Stmt) -> tuple[Expr, ...]:
    """The expressions of one statement, not of its parts."""
    match s:
        case For():
            return (s.lo, s.hi)
        case If():
            return (s.pred,)
        case Stage():
            guard = () if s.when is None else (s.when,)
            return (*s.action.index, *values(s.action), *starts(s.action), *guard)
        case _:
            return ()


def accesses(s: Stmt) -> Iterator[Access]:
    """Every read and write under `s`."""
    for x in walk(s):
        if isinstance(x, Stage):
            for buffer in writes(x.action):
                yield buffer, x.action.index
        for e in statement_exprs(x):
            for load in loads(e):
                yield load.buffer, load.index


def _terms(e: Expr) -> list[Expr]:
    if isinstance(e, Op) and e.name == "add":
        return _terms(e.args[0]) + _terms(e.args[1])
    return [e]


def _factor(e: Expr, var: str) -> Expr | None:
    """B where `e` is `var * B`."""
    if isinstance(e, Op) and e.name == "mul":
        for v, other in (e.args, e.args[::-1]):
            if isinstance(v, Var) and v.name == var and var not in variables(other):
                return other
    return None


def _within(r: Expr, extent: Expr, inner: dict[str, list[For]]) -> bool:
    """Return True if `r` is an inner loop variable that stays in [0, extent)."""
    if not isinstance(r, Var) or r.name not in inner:
        return False

    def capped(hi: Expr) -> bool:
        return hi == extent or (isinstance(hi, Op) and hi.name == "min" and any(capped(a) for a in hi.args))

    return all(isinstance(f.lo, Const) and f.lo.value == 0 and capped(f.hi) for f in inner[r.name])


def slice_key(e: Expr, var: str, inner: dict[str, list[For]]) -> Hashable:
    """A key such that equal keys in two accesses put different `var` at different indices; None: unknown.

    `inner` are the loops below that of `var`, whose variables vary within one iteration of it.
    """
    with_var = [t for t in _terms(e) if var in variables(t)]
    rest = [t for t in _terms(e) if var not in variables(t)]
    if len(with_var) != 1 or any(loads(t) for t in rest):
        return None
    varying = [t for t in rest if variables(t) & inner.keys()]
    # A multiset: i + a and i + a + a are different places.
    fixed = frozenset(Counter(t for t in rest if not variables(t) & inner.keys()).items())
    if with_var[0] == Var(var, with_var[0].dtype):
        return None if varying else ("offset", fixed)
    block = _factor(with_var[0], var)
    if block is None or variables(block) & inner.keys() or loads(block):
        return None
    if len(varying) > 1 or (varying and not _within(varying[0], block, inner)):
        return None
    return ("block", block, fixed)


def is_lane(loop: For) -> bool:
    """Return True if the form of its accesses shows the iterations of `loop` to be independent."""
    inner: dict[str, list[For]] = {}
    private: set[str] = set()
    written: set[str] = set()
    for s in walk(loop.body):
        if isinstance(s, For):
            inner.setdefault(s.var, []).append(s)
        elif isinstance(s, Alloc):
            private.add(s.buffer.name)
        elif isinstance(s, Stage):
            written.update(writes(s.action))
    found: dict[str, list[tuple[Expr, ...]]] = {}
    for buffer, index in accesses(loop.body):
        if buffer in written and buffer not in private:
            found.setdefault(buffer, []).append(index)
    for indices in found.values():
        keys = [[slice_key(e, loop.var, inner) for e in index] for index in indices]
        if not any(len(set(column)) == 1 and column[0] is not None for column in zip(*keys, strict=True)):
            return False
    return True


def is_fold(loop: For) -> bool:
    """Return True if `loop` with its body is one reduction whose target it does not index."""
    s: Stmt = loop
    while isinstance(s, For | If):
        s = s.body
    if not isinstance(s, Stage) or not s.folds:
        return False
    if loop.var in frozenset[str]().union(*(variables(i) for i in s.action.index)):
        return False
    targets = set(s.action.buffers)
    exprs = [e for x in walk(loop) for e in statement_exprs(x)]
    return REDUCERS[s.action.reducer].commutative and not any(
        load.buffer in targets for e in exprs for load in loads(e)
    )


def classify(loop: For) -> str:
    """ "lane", "fold" or "serial"."""
    return "fold" if is_fold(loop) else "lane" if is_lane(loop) else "serial"
