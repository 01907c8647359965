"""bounds: where a walk begins and ends, for one consumer and for its group, each under a name.

j0_end = min(cdiv(s_kv, 128), …)           the consumer's
j0_clean_end = min(s_kv // 128, …)         where the tiles end that need no mask
j0_all_end = …                             the last of its group's ends

group_bounds: loops that end where data of their rows says so, by the data of all rows of a group.

qd_min = min(qd[i0 * B + iota(i)]); j0_first = …     →    qd_min_all = min(qd[group * (NW * B) + iota(i_all)]); …
for j0 in [j0_first, …): …                                for j0 in [j0_first_all, …): …

Bounds of the kernel whose tiles have the rows of a whole group are bounds for each of its parts: tiles beyond a
consumer's own are masked for it. So all roles compute the same bounds, and none depends on what another one reads.
Three consumers look at a fourth tile of rows, since a tile's extent is a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from neptune.codegen.triton.expr import ceiling, nonnegative
from neptune.hopper.bodies.consumers import ConsumerKernel
from neptune.hopper.bodies.pieces import Group, Run
from neptune.hopper.bodies.producer import pruned
from neptune.ir.expr import (
    Const,
    Expr,
    Load,
    Op,
    Var,
    args_of,
    binary,
    cast,
    loads,
    maximum,
    minimum,
    rewrite,
    substitute,
)
from neptune.tile.ir import (
    Assign,
    Branch,
    Full,
    Iota,
    LoadTile,
    Local,
    Loop,
    Rearrange,
    Reduce,
    TExpr,
    TileKernel,
    TStmt,
    map_stmt,
)
from neptune.tile.passes.copies import drop_dead
from neptune.tile.passes.util import Block, assigns, free_name, names_in
from neptune.tile.scalars import define, in_block, local, reads_var, var


@dataclass(frozen=True)
class Bounds:
    """`edges` of a consumer's pieces, and where its group begins and ends, by names, numbers and sizes; `defined` says
    what the names are, `shared` what those of the group are in the producer."""

    edges: tuple[Expr, ...]
    all_begin: Expr
    all_end: Expr
    defined: Block
    shared: Block


@dataclass
class _Named:
    """Names of bounds as they are defined, none of which is `taken`, and which lie below the end."""

    var: str
    taken: frozenset[str]
    lines: list[TStmt] = field(default_factory=list)
    known: dict[Expr, Expr] = field(default_factory=dict)
    below: set[Expr] = field(default_factory=set)

    def name(self, word: str, e: Expr) -> Expr:
        if isinstance(e, Const | Var | Load):
            return e
        name = free_name(f"{self.var}_{word}", self.taken)
        self.lines.append(define(name, e))
        return local(name)

    def short(self, e: Expr) -> Expr:
        """An expression by the names that there are."""
        return rewrite(e, self.known.get)

    def of_all(self, shared: _Named, group: Group, e: Expr, ref: Expr, *, largest: bool) -> Expr:
        """The bound of a group, which is named in the producer (`shared`) too: the consumer's own `ref` where it is the
        same for all."""
        of_group = group.extreme(e, largest=largest)
        if of_group == e:
            shared.lines += [s for s in self.lines if isinstance(s, Assign) and ref == local(s.name)]
            return ref
        word = "all_end" if largest else "all_begin"
        shared.name(word, of_group)
        return self.name(word, group.of_consumer(of_group))


def bounds(run: Run, group: Group, taken: frozenset[str]) -> Bounds:
    """Bounds of a walk. Each lies between the one before and the end, also for a consumer behind the last row, whose
    loads have to be as many as those of the others."""
    zero = run.lo == Const(0, "int32")
    named = _Named(run.var, taken)
    words = _words(run)
    end = named.known[run.hi] = named.name("end", run.hi)
    lo = run.lo if zero and nonnegative(run.hi, group.is_size) else minimum(run.lo, run.hi)
    begin = named.known[run.lo] = named.name("begin", named.short(lo))
    named.below |= {begin, end}
    edges = [begin]
    for word, p in zip(words, run.pieces[:-1], strict=True):
        edge = named.short(p.hi)
        low = edges[-1]
        if not (_above(low, edge) or (low == Const(0, "int32") and nonnegative(p.hi, group.is_size))):
            edge = maximum(edge, low)
        if not (_at_most(edge, end, named.below) or _at_most(p.hi, run.hi, set())):
            edge = minimum(edge, end)
        edges.append(named.known.setdefault(p.hi, named.name(word, edge)))
        named.below.add(edges[-1])
    edges.append(end)
    shared = _Named(run.var, taken)
    # The end first: a begin may be cut off there.
    all_end = named.of_all(shared, group, run.hi, end, largest=True)
    all_begin = named.of_all(shared, group, lo, begin, largest=False)
    return Bounds(tuple(edges), all_begin, all_end, tuple(named.lines), tuple(shared.lines))


def _above(low: Expr, e: Expr) -> bool:
    return e == low or any(_above(low, x) for x in args_of(e, "max"))


def _at_most(a: Expr, b: Expr, below: set[Expr]) -> bool:
    """True where a <= b can be read off: min(a, …) <= a <= max(a, …), x // w is at most x / w rounded up, and each of
    `below` is at most the end."""
    if a == b or a in below or any(_at_most(x, b, below) for x in args_of(a, "min")):
        return True
    if len(high := args_of(a, "max")) == 2:
        return all(_at_most(x, b, below) for x in high)
    return isinstance(a, Op) and a.name == "floordiv" and ceiling(b) == a.args


def _words(run: Run) -> list[str]:
    """Words for the edges inside of a run."""
    clean = [k for k, p in enumerate(run.pieces) if p.facts]
    words = [f"edge_{k}" for k in range(1, len(run.pieces))]
    if len(clean) == 1:
        (k,) = clean
        if k > 0:
            words[k - 1] = "clean_begin"
        if k < len(words):
            words[k] = "clean_end"
    return words


# --- the bounds of a group --------------------------------------------------------------------------


def by_group(single: ConsumerKernel, staged: frozenset[str], group: str, consumers: int) -> TileKernel:
    """The kernel with bounds that follow from data of rows computed for the group, whose variable is `group`."""
    kernel = single.kernel
    needed = {
        n
        for s in kernel.body
        if isinstance(s, Loop | Branch) and assigns(s) & staged
        for e in ((s.lo, s.hi) if isinstance(s, Loop) else (s.pred,))
        for n in (x.buffer for x in loads(e) if not x.index)
    }
    slice_ = pruned(kernel.body, frozenset(needed))
    if not needed or not any(reads_var(s, single.rows) for s in slice_):
        return kernel
    walks = tuple(s for s in kernel.body if assigns(s) & staged and isinstance(s, Loop | Branch))
    if not all(_by_positions(s, single) for s in (*slice_, *(replace(s, body=()) for s in walks))):
        return kernel
    change = _Change(single, frozenset(n for s in slice_ for n in assigns(s)), group, consumers)
    body: list[TStmt] = []
    for s in kernel.body:
        body += change.block(pruned((s,), change.made)) if assigns(s) & change.made else ()
        body.append(change.bounds(s) if assigns(s) & staged and isinstance(s, Loop | Branch) else s)
    axes = (*kernel.axes, *((name, change.extent) for name in change.axes.values()))
    return replace(kernel, axes=axes, body=drop_dead(tuple(body)))


def _by_positions(s: TStmt, single: ConsumerKernel) -> bool:
    """True if a statement knows its rows by where they lie, `rows * block`, which a group's rows have as well; what is
    kept for each tile of rows, such as the number of its expert, says nothing of a group."""
    rows, block = var(single.rows), var(single.block)
    pairs = [(rows, block), (cast(rows, "int64"), cast(block, "int64"))]
    places = {binary("mul", *x) for a, b in pairs for x in ((a, b), (b, a))}
    (hidden,) = in_block((s,), lambda e: rewrite(e, lambda x: cast(block, x.dtype) if x in places else None))
    return not reads_var(hidden, single.rows)


class _Change:
    """Statements of one consumer as those of its group: locals, rows and their axis have other names."""

    def __init__(self, single: ConsumerKernel, changed: frozenset[str], group: str, consumers: int) -> None:
        taken = names_in(single.kernel) | {name for name, _ in single.kernel.axes}
        self.made = changed
        self.names = {n: free_name(f"{n}_all", taken) for n in changed}
        self.axes = {single.axis: free_name(f"{single.axis}_all", taken)}
        block = var(single.block)
        tiles = 1 << (consumers - 1).bit_length()
        self.extent = binary("mul", block, tiles)
        self.env: dict[str, Expr] = {single.rows: var(group), single.block: binary("mul", block, consumers)}

    def block(self, body: Block) -> Block:
        """A body for the group."""
        return tuple(self._renamed(s) for s in in_block(body, self.scalar))

    def bounds(self, s: Loop | Branch) -> TStmt:
        """A loop or a branch that runs where the group's does."""
        if isinstance(s, Loop):
            return replace(s, lo=self.scalar(s.lo), hi=self.scalar(s.hi), facts=tuple(map(self.scalar, s.facts)))
        return replace(s, pred=self.scalar(s.pred))

    def scalar(self, e: Expr) -> Expr:
        def local(x: Expr) -> Expr | None:
            known = isinstance(x, Load) and not x.index and x.buffer in self.names
            return replace(x, buffer=self.names[x.buffer]) if known and isinstance(x, Load) else None

        return rewrite(substitute(e, self.env), local)

    def _renamed(self, s: TStmt) -> TStmt:
        if isinstance(s, Loop | Branch):
            return replace(s, body=tuple(self._renamed(x) for x in s.body))
        renamed = map_stmt(s, lambda e: rewrite(e, self._tile))
        return replace(renamed, name=self.names[renamed.name]) if isinstance(renamed, Assign) else renamed

    def _dims(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(self.axes.get(d, d) for d in dims)

    def _tile(self, e: TExpr) -> TExpr | None:
        """A tile expression over the group's rows, its parts included; None for what has no dims of its own."""
        match e:
            case Iota(axis):
                return Iota(self.axes.get(axis, axis))
            case Local(name, dims, _):
                return replace(e, name=self.names.get(name, name), dims=self._dims(dims))
            case Full(_, dims, _):
                return replace(e, dims=self._dims(dims))
            case LoadTile(buffer, index, mask, other, dims, dtype):
                inner = None if mask is None else rewrite(mask, self._tile)
                return LoadTile(
                    buffer, tuple(rewrite(i, self._tile) for i in index), inner, other, self._dims(dims), dtype
                )
            case Reduce(reducer, axis, arg):
                return Reduce(reducer, self.axes.get(axis, axis), rewrite(arg, self._tile))
            case Rearrange(arg, pattern):
                return Rearrange(rewrite(arg, self._tile), " ".join(self.axes.get(w, w) for w in pattern.split()))
        return None
