"""rotate: a product of what its iteration has computed is issued one tile later, behind the next tile's first product.

for j: s = dot(q, k[j]); p = f(s); acc = acc * r; acc = acc + dot(p, v[j])
→
s = dot(q, k[0]); p = f(s); acc = acc * r
for j from 1: s = dot(q, k[j]); acc = acc + dot(p, v[j - 1]); p = f(s); acc = acc * r
acc = acc + dot(p, v[last])

The additions to `acc` and its rescalings keep their order. What moves is the product with the copy that it reads, past
statements that touch neither: that is looked at here. (The form is that of FlashAttention-3, arXiv 2407.08608, §3.2.)
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from neptune.ir.expr import Op
from neptune.ir.reducers import BY_OP
from neptune.tile.ir import Assign, Dot, LoadTile, Local, TExpr, bare, read_by, walk_stmts
from neptune.tile.passes.operands import accumulated, multiplied
from neptune.tile.passes.util import Block, assigns, uses


@dataclass(frozen=True)
class Rotated:
    """A body in parts: `front` ends with the last leading product, `late` is done behind it for the tile before,
    `back` is the rest."""

    front: Block
    late: Block
    back: Block

    @property
    def names(self) -> tuple[str, ...]:
        """The products that are late, by what they are assigned to."""
        return tuple(s.name for s in self.late if isinstance(s, Assign) and not isinstance(s.value, LoadTile))

    @property
    def carried(self) -> frozenset[str]:
        """What late products read of the iteration that they belong to."""
        return frozenset(n for s in self.late if isinstance(s, Assign) for n in read_by(s.value)) - {
            s.name for s in self.late if isinstance(s, Assign)
        }


def rotated(body: Block, staged: frozenset[str]) -> Rotated | str:
    """A body with its late products apart, or why they may not be late; "" where it has none."""
    if not all(isinstance(s, Assign) for s in body):
        return "there is a loop inside of it" if _consumes(body, staged) else ""
    assigned: set[str] = set()
    late: list[Assign] = []
    leading: list[int] = []
    for k, s in enumerate(body):
        assert isinstance(s, Assign)
        dot = accumulated(s)
        if dot is not None and leading and (read_by(dot.a) - staged) & assigned:
            late.append(s)
        elif multiplied(s) is not None:
            if late:
                return f"`{s.name}` multiplies behind `{late[0].name}`"
            leading.append(k)
        assigned.add(s.name)
    if not late:
        return ""
    return _parts(body, late, leading[-1] + 1, staged)


def _consumes(body: Block, staged: frozenset[str]) -> bool:
    """True if a sum of products reads what the body computes."""
    computed = {n for s in body for n in assigns(s)} - staged
    return any(read_by(d.a) & computed for s in walk_stmts(body) if (d := accumulated(s)) is not None)


def _parts(body: Block, late: list[Assign], split: int, staged: frozenset[str]) -> Rotated | str:
    # Behind its product a sum is the next tile's.
    for product in late:
        for s in body[body.index(product) + 1 :]:
            assert isinstance(s, Assign)
            if product.name in read_by(s.value) | {s.name}:
                return f"`{s.name}` reads a sum behind its product"
    moved = {b.name for s in late if (d := accumulated(s)) and isinstance(b := bare(d.b), Local)}
    loads = [s for s in body if isinstance(s, Assign) and s.name in moved]
    front = tuple(s for s in body[:split] if s not in loads)
    back = tuple(s for s in body[split:] if s not in loads and s not in late)
    parts = Rotated(front, (*loads, *late), back)
    return _unmovable(parts, {s.name for s in late}, moved, staged) or parts


def _unmovable(parts: Rotated, sums: set[str], moved: set[str], staged: frozenset[str]) -> str | None:
    """Why late products may not be issued behind the next tile's first products."""
    if not moved <= staged:
        return f"`{sorted(moved - staged)[0]}`, which is multiplied late, is not copied"
    for s in (*parts.front, *parts.back):
        assert isinstance(s, Assign)
        if read_by(s.value) & moved:
            return f"`{s.name}` reads what is multiplied late"
    for s in parts.front:
        assert isinstance(s, Assign)
        if s.name in sums | parts.carried or read_by(s.value) & sums:
            return f"`{s.name}` is computed in front of the first product"
    for s in parts.back:
        # `acc = acc * r` is done in its place, behind the late product of the tile before.
        assert isinstance(s, Assign)
        if not read_by(s.value) & sums <= {s.name}:
            return f"`{s.name}` reads a sum in the loop"
    for s in parts.late:
        if isinstance(s, Assign) and isinstance(s.value, LoadTile) and read_by(s.value):
            return f"where `{s.name}` lies is computed in the loop"
    return None


def any_order(body: Block, escaping: Collection[str]) -> str | None:
    """Why the iterations of a body may not come in another order; None where every local that it carries, or that is
    read behind the loop (`escaping`), is a fold by a commutative reducer, perhaps rescaled. That the rescalings compose
    is for the exact check of the whole."""
    assigned: set[str] = set()
    kept: set[str] = set(escaping)
    for s in body:
        assert isinstance(s, Assign)
        kept |= read_by(s.value) - assigned
        assigned.add(s.name)
    for s in body:
        if isinstance(s, Assign) and s.name in kept and not _folds(s.name, s.value):
            return f"`{s.name}` is no sum, maximum or minimum that may be taken in any order"
    return None


def _folds(name: str, e: TExpr) -> bool:
    """True for `c ⊕ x`, `c * f`, `c * f ⊕ x` and a product added to c, of which nothing but c reads c."""
    if uses(e, name) != 1:
        return False
    match e:
        case Dot(_, _, Local(n, _, _), _) if n == name:
            return True
        case Op(op, (a, b), _) if op in BY_OP and BY_OP[op].commutative:
            state, value = (a, b) if uses(a, name) else (b, a)
            return not uses(value, name) and (isinstance(state, Local) or (op == "add" and _scaled(name, state)))
    return False


def _scaled(name: str, e: TExpr) -> bool:
    match e:
        case Op("mul", (a, b), _):
            return any(isinstance(x, Local) and x.name == name for x in (a, b))
    return False
