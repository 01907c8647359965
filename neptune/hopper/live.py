"""Which locals a wait holds in place: those that were made under the products it waits for, and are read behind it.

Issue acc = …; p = exp2(…); t = p · 2; Finish(0, acc, also p t); acc = acc · p
                                                →  Finish(0, acc, also p)
"""

from __future__ import annotations

from dataclasses import replace

from neptune.hopper.ir import AStmt, Body, Finish, Issue, inside, locals_of, with_inside
from neptune.tile.ir import Assign, Branch, Loop


def with_live(body: Body) -> Body:
    """The body whose waits name, of `also`, tiles alone that are read behind them."""
    return _block(body, frozenset())[0]


def _block(body: Body, live: frozenset[str]) -> tuple[Body, frozenset[str]]:
    """The block, and what is live before it, given what is behind it."""
    tiles = {s.name: s.value.dims for s in body if isinstance(s, Assign)}
    tiles |= {s.name: s.dot.dims for s in body if isinstance(s, Issue)}
    out: list[AStmt] = []
    for s in reversed(body):
        read = locals_of(s)
        match s:
            case Loop() | Branch():
                fresh, before = _block(inside(s), live)
                while isinstance(s, Loop) and not before <= live:
                    # What an iteration reads first comes from the one before.
                    live |= before
                    fresh, before = _block(inside(s), live)
                s, live = with_inside(s, fresh), live | before
            case Finish():
                s = replace(s, also=tuple(n for n in s.also if n in live and tiles[n]))
            case Assign(name, _, _) | Issue(name, _, _):
                live -= {name}
            case _:
                pass
        live |= read
        out.append(s)
    return tuple(out[::-1]), live
