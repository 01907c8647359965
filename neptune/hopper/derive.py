"""From a TileProgram to its asynchronous form: each step of `neptune.hopper`, in order.

walk      producer and consumers, on tiles; checked against the expression
forms     consumers, stages and tiles that fit, the best first
roles     rings, turns, waits; verified
generate  the text
check     the text's protocol, for all interleavings
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

from neptune.errors import InternalError
from neptune.hopper.check import Report, check
from neptune.hopper.gluon import GluonText, generate
from neptune.hopper.ir import AsyncKernel, Levers
from neptune.hopper.memory import Counts, forms
from neptune.hopper.refusal import Refusal
from neptune.hopper.roles import roles
from neptune.hopper.trials import trials
from neptune.hopper.verify import verify_async
from neptune.hopper.walk import walk
from neptune.hopper.walked import Walked
from neptune.runtime.addressing import Asynchronous
from neptune.tile.ir import TileKernel, TileProgram

ARCHITECTURE = "cuda:90"
TRIED = 4
"""Forms that are compiled before none is found to do."""
LOG = logging.getLogger("neptune.codegen")
Differs = Callable[[TileProgram], "str | None"]


@dataclass(frozen=True)
class Derived:
    """One form of a kernel: what its roles do, its text, and what the check of its protocol came to."""

    walked: Walked
    kernel: AsyncKernel
    text: GluonText
    protocol: Report

    @property
    def levers(self) -> dict[str, int | str]:
        """What was chosen, as plain numbers and words."""
        of = self.kernel.levers
        return {**of.tiles, "consumers": of.consumers, "stages": of.stages, "persistent": of.persistent}

    def plain(self) -> Asynchronous:
        """What a kernel keeps of it; the verdict is for `neptune.hopper.accept`."""
        return Asynchronous(
            self.text.text, self.text.aligned, self.text.kernel, self.levers, ARCHITECTURE, spans=self.text.spans
        )

    def said(self) -> dict[str, Any]:
        """What explain() says of it."""
        needs = Counts(self.walked).needs(self.kernel.levers)
        most, least = self.kernel.levers.registers
        return {
            "architecture": ARCHITECTURE,
            "levers": self.levers,
            "aligned": list(self.text.aligned),
            "tiles": [{"name": r.name, "stages": r.stages, "own": r.own} for r in self.kernel.rings],
            "late": list(self.walked.late),
            "kept": list(self.walked.kept),
            "shared_bytes": needs.shared,
            "registers": {"consumer": most, "producer": least, "estimate": round(needs.registers)},
            "protocol": {"programs": self.protocol.programs, "actions": self.protocol.actions},
        }


def derived(
    program: TileProgram,
    header: str,
    shapes: Mapping[str, int],
    differs: Differs,
    broken: Callable[[Derived], bool] = lambda _: False,
) -> Derived:
    """The asynchronous form for sm_90, of the first levers that fit.

    `shapes` are typical sizes, `differs` says how a tile program differs from the expression (None: it does not).
    `broken` says of a form that what it compiles to will not do: then the next levers are tried, a few; where none will
    do, the first form is the result. Raises Refusal with the reason where there is no such form.
    """
    kernel = only_kernel(program)
    first = walked_of(program, kernel, Levers(tiles=_covering(program, shapes)), differs)
    tried = list(islice(_by_registers(forms(first, program)), TRIED))
    if not tried:
        raise Refusal("no tile sizes, consumers and stages of it fit into a program", kernel.name)
    made = (form_of(program, first, levers, header) for levers in tried)
    best = next(made)
    return next((x for x in chain((best,), made) if not broken(x)), best)


def only_kernel(program: TileProgram) -> TileKernel:
    """The kernel of a program; Refusal where it has several."""
    if len(program.kernels) == 1:
        return program.kernels[0]
    names = ", ".join(k.name for k in program.kernels)
    raise Refusal(f"it is {len(program.kernels)} kernels ({names}), and the form is of one", legal=["one kernel"])


def walked_of(program: TileProgram, kernel: TileKernel, levers: Levers, differs: Differs) -> Walked:
    """The walk of a kernel, checked against the expression; Refusal where it has none."""
    found = walk(program, kernel, levers)
    assert found.symbolic is not None
    wrong = differs(replace(program, kernels=(found.symbolic,)))
    if wrong is not None:
        raise Refusal(f"another order of its tiles is another function: {wrong}", kernel.name)
    return found


def form_of(program: TileProgram, walked: Walked, levers: Levers, header: str = "") -> Derived:
    """One form; `walked` is of any levers. Refusal where its text says too little of what it does, InternalError where
    its protocol is wrong."""
    start = time.perf_counter()
    again = walk(program, only_kernel(program), levers)
    kernel = roles(again, program, replace(levers, tiles=dict(again.values)))
    verify_async(kernel, program)
    text = generate(program, kernel, header=header)
    protocol = check(text.text, trials(program, kernel))
    if protocol.unread:
        raise Refusal(f"what its roles do is not known before they run: {protocol.unread}", kernel.name)
    if not protocol.ok:
        raise InternalError(f"the roles of `{program.name}` do not keep in step\n{protocol}")
    LOG.info("asynchronous form of `%s`: %s, %.0f ms", program.name, protocol, 1e3 * (time.perf_counter() - start))
    return Derived(again, kernel, text, protocol)


def _by_registers(found: Iterable[Levers]) -> Iterator[Levers]:
    """The first of all forms with the same consumers and tiles: more stages hold no fewer registers."""
    seen: set[tuple[Any, ...]] = set()
    for levers in found:
        key = (levers.consumers, *sorted(levers.tiles.items()))
        if key not in seen:
            seen.add(key)
            yield levers


def _covering(program: TileProgram, shapes: Mapping[str, int]) -> dict[str, int]:
    """Tile sizes that are a size of the call: from typical sizes."""
    from neptune.runtime.modules import covers

    known = {s.name for s in program.scalars} <= shapes.keys()
    return covers(program, shapes) if known else {}
