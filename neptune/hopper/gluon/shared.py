"""Names and texts of what lies in shared memory: the tiles of rings and of results, and their barriers.

The ring `k` has `k_tiles`, `k_full` and `k_empty`, each indexed by the stage of a turn; a barrier completes a phase per
use, so that a turn waits for the parity of the uses before it. Rings that share barriers have `a_b_full`, `a_b_empty`.
"""

from __future__ import annotations

from neptune.codegen.triton.text import AND, ATOM, MUL, TL_DTYPES, Text
from neptune.errors import InternalError
from neptune.hopper.ir import AsyncKernel, Out, Ring
from neptune.hopper.roles.ring_groups import groups

CONSUMERS = "CONSUMERS"
CONSUMER = "W"
"""The number of a consumer, a constant of its function."""
STAGES, BAND = "STAGES", "BAND"


class Shared:
    """The rings and outs of one kernel, by name."""

    def __init__(self, kernel: AsyncKernel) -> None:
        self.rings = {r.name: r for r in kernel.rings}
        self.outs = {o.name: o for o in kernel.outs}
        self.consumers = kernel.levers.consumers
        counts = {r.stages for r in kernel.rings if r.stages > 1}
        self.constants = {CONSUMERS: self.consumers} | ({BAND: kernel.levers.band} if kernel.levers.band else {})
        self.layouts: dict[str, str] = {}
        self.groups = groups(kernel.rings)
        self.barriers = {leader: "_".join(members) for leader, members in self.groups.items()}
        if len(names := {*self.barriers.values()}) < len(self.barriers) or names & self.rings.keys() - {*self.barriers}:
            self.barriers = {leader: leader for leader in self.groups}
        self._extents = kernel.extents
        self._stages: dict[str, str] = {}
        for r in kernel.rings:
            if r.stages > 1:
                self._stages[r.name] = STAGES if len(counts) == 1 else f"{r.name.upper()}_{STAGES}"
                self.constants[self._stages[r.name]] = r.stages

    def stages(self, ring: Ring) -> str:
        """The number of stages of a ring, by name where there are several."""
        return self._stages.get(ring.name, "1")

    def stage(self, ring: Ring, turn: Text) -> Text:
        """The stage that a turn uses."""
        return Text("0") if ring.stages == 1 else Text(f"{turn.at(MUL)} % {self.stages(ring)}", MUL)

    def phase(self, ring: Ring, turn: Text) -> Text:
        """The parity of the uses that the stage of a turn had before."""
        uses = turn.at(ATOM) if ring.stages == 1 else f"({turn.at(MUL)} // {self.stages(ring)})"
        return Text(f"{uses} & 1", AND)

    def members(self, ring: Ring) -> tuple[str, ...]:
        """The rings whose tiles come and go with those of a ring, itself among them."""
        return self.groups[ring.barrier or ring.name]

    def barrier(self, ring: Ring, kind: str) -> str:
        """The name of its `full` or `empty` barriers."""
        return f"{self.barriers[ring.barrier or ring.name]}_{kind}"

    def full(self, ring: Ring, turn: Text) -> str:
        return f"{self.barrier(ring, 'full')}.index({self.stage(ring, turn)})"

    def empty(self, ring: Ring, turn: Text) -> str:
        return f"{self.barrier(ring, 'empty')}.index({self.stage(ring, turn)})"

    def layout(self, name: str, dims: tuple[str, ...], dtype: str) -> str:
        """The name of the layout of a tile: that of the first one of its form."""
        shape = [self._extents[d] for d in dims]
        text = f"gl.NVMMASharedLayout.get_default_for({shape}, {TL_DTYPES[dtype]})"
        return self.layouts.setdefault(text, f"{name.upper()}_SHARED")

    def tile(self, ring: Ring, turn: Text, consumer: str = CONSUMER) -> str:
        """The tile of a turn; in a ring of `own` tiles that of a consumer."""
        stage = self.stage(ring, turn)
        if not ring.own:
            return f"{ring.name}_tiles.index({stage})"
        index = consumer if ring.stages == 1 else f"{stage.at(MUL)} * {CONSUMERS} + {consumer}"
        return f"{ring.name}_tiles.index({index})"

    def memory(self, out: Out) -> str:
        """The name of the memory through which a result leaves."""
        return f"{out.name if out.over is None else out.over}_tiles"

    def result(self, out: Out) -> str:
        """The tile of a consumer through which a result leaves."""
        if out.over is not None and (self.rings[out.over].stages > 1 or not self.rings[out.over].own):
            raise InternalError(f"{out.name} cannot lie in {out.over}, which has other tiles for each turn")
        return f"{self.memory(out)}.index({CONSUMER})"

    @property
    def names(self) -> list[str]:
        """All names, in the order of parameters."""
        names = []
        for r in self.rings.values():
            names.append(f"{r.name}_tiles")
            if r.name == self.members(r)[-1]:
                names += [self.barrier(r, kind) for kind in ("full", "empty")]
        return names + [f"{o.name}_tiles" for o in self.outs.values() if o.over is None]
