"""A compiled kernel: callable on torch tensors, and able to show and explain itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import torch

from neptune.errors import ScheduleError, TargetError
from neptune.ir.expr import Expr
from neptune.ir.program import Program
from neptune.runtime.arguments import Signature
from neptune.runtime.facts import Facts, read_facts
from neptune.runtime.launch import Launch, Target, free_scalars, gpu_target, make_launch, parse_target
from neptune.runtime.modules import Form, Modules, covers
from neptune.runtime.products import check_products, products
from neptune.schedule.state import Decision
from neptune.tile.ir import TileProgram
from neptune.verify.exact import ExactReport

if TYPE_CHECKING:
    from neptune.codegen.compile import Compiled
    from neptune.runtime.resources import Resources

Stage: TypeAlias = Literal["loops", "scheduled", "fused", "tile"]
STAGES: tuple[Stage, ...] = ("loops", "scheduled", "fused", "tile")
TYPICAL_SIZE = 1024
"""The size that offline compilation assumes where a tile covers one and no typical shape was given."""


@dataclass(frozen=True)
class Build:
    """What a compilation made.

    `loops` is the expression as imported, `scheduled` the program before its first repair, `fused` the
    executable fused program (inits explicit, tiles local), `tiles` what Triton is generated from, under `header`.
    `params` are the values of all free tunables, num_warps and num_stages; `trace` is what the template
    did, call by call, and `decisions` what came of it. `checks` are the exact checks by
    the name of what was checked; `bounds` and `shapes` are the caller's.
    """

    loops: Program
    scheduled: Program
    fused: Program
    tiles: TileProgram
    header: str
    target: Target
    template: str
    params: Mapping[str, int]
    trace: tuple[str, ...]
    decisions: tuple[Decision, ...]
    checks: Mapping[str, ExactReport]
    bounds: Mapping[str, int]
    shapes: Mapping[str, int]


class Kernel:
    """A compiled kernel; made by `neptune.compile`.

    Calling it takes the input tensors in the order of `inputs`, then the scalars of `scalars`, and returns a
    tensor, or a tuple of them in the order of `outputs`. Tensors are used where they are, with any strides
    (the last dimension dense), never copied; `out=` gives the memory to write.

        kernel = neptune.compile(prefill_causal(), "flash_attention")
        o = kernel(q, k, v)                     # q, k, v: float16 [batch, heads, length, 128]
        kernel(q, k, v, out=o)

    Raises ShapeError for arguments that do not fit, TargetError where the target is not there.
    """

    def __init__(self, build: Build) -> None:
        self._build = build
        self._signature = Signature(build.loops, build.target.device, build.bounds)
        self._compiled: dict[Target, list[Compiled]] = {}
        self._modules = Modules(build.tiles, build.header, build.params)

    def __call__(self, *args: Any, out: Any = None) -> torch.Tensor | tuple[torch.Tensor, ...]:
        call = self._signature.bind(args, out)
        check_products(self._build.fused, self._products, call.scalars)
        self._launch(call.inputs, call.outputs, call.scalars)
        return call.outputs[0] if len(call.outputs) == 1 else call.outputs

    def __repr__(self) -> str:
        return f"<neptune.Kernel {self._signature} for {self.target}>"

    @cached_property
    def _products(self) -> tuple[Expr, ...]:
        return products(self._build.fused)

    @cached_property
    def _launch(self) -> Launch:
        b = self._build
        return make_launch(b.target, b.fused, self._modules)

    # --- what it is ---

    @property
    def name(self) -> str:
        """The name of the program, and of the launch function in `source`."""
        return self._build.loops.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the input tensors, in the order of a call."""
        return tuple(b.name for b in self._build.loops.inputs)

    @property
    def scalars(self) -> tuple[str, ...]:
        """The names of the scalar arguments that follow the tensors."""
        return free_scalars(self._build.loops)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results, in the order in which they are returned."""
        return tuple(b.name for b in self._build.loops.outputs)

    @property
    def params(self) -> dict[str, int]:
        """Tile sizes, num_warps and num_stages. A tile that covers a size is chosen at the call and not in here."""
        return dict(self._build.params)

    @property
    def target(self) -> str:
        """What it was compiled for."""
        return str(self._build.target)

    @property
    def source(self) -> str:
        """Its Triton module, as it runs on the target: with tensor descriptors on sm_90 and later, else pointers."""
        return self._modules.source(Form(self._build.target.loads))

    @property
    def program(self) -> Program:
        """The fused program, which every target executes."""
        return self._build.fused

    @property
    def build(self) -> Build:
        """Everything the compilation made."""
        return self._build

    def ir(self, stage: Stage = "fused") -> str:
        """The program as text: "loops" as imported, "scheduled" before its repairs, "fused", or "tile".

        Raises ScheduleError for any other stage.
        """
        if stage not in STAGES:
            raise ScheduleError(f"kernel.ir({stage!r})", "there is no such stage", legal=STAGES)
        b = self._build
        return str({"loops": b.loops, "scheduled": b.scheduled, "fused": b.fused, "tile": b.tiles}[stage])

    # --- what it does ---

    @cached_property
    def facts(self) -> Facts:
        """Kernels, loops, temporaries, and how often each input is read."""
        return read_facts(self._build.tiles)

    @overload
    def explain(self, json: Literal[False] = False) -> str: ...

    @overload
    def explain(self, json: Literal[True]) -> dict[str, Any]: ...

    def explain(self, json: bool = False) -> str | dict[str, Any]:
        """What was fused, deferred and rolled, how it was proved, which masks were split, and the facts.

        As text for people, or with `json` as a dict of plain values.
        """
        from neptune.runtime.explain import as_text, explanation

        found = explanation(self._build, self.facts)
        return found if json else as_text(found)

    def asm(self, target: str | None = None) -> dict[str, str]:
        """The assembly of each kernel by name: PTX, or AMDGCN. Needs no GPU where `target` names an
        architecture ("cuda:90"); by default that of the kernel's target or of the GPU here.

        Raises TargetError for a target that cannot be compiled for.
        """
        return {c.name: c.asm for c in self._offline(target)}

    def resources(self, target: str | None = None) -> list[Resources]:
        """Registers, spills, shared memory and matrix instructions of each kernel; `target` as in `asm`."""
        from neptune.runtime.resources import resources_of

        return [resources_of(c) for c in self._offline(target)]

    def _offline(self, target: str | None) -> list[Compiled]:
        from neptune.codegen.compile import compile_offline

        chosen = self._architecture(target)
        if chosen not in self._compiled:
            b = self._build
            params = {**covers(b.tiles, self._typical()), **b.params}
            source = self._modules.source(Form(chosen.loads))
            self._compiled[chosen] = compile_offline(source, b.tiles, str(chosen), params, loads=chosen.loads)
        return self._compiled[chosen]

    def _architecture(self, target: str | None) -> Target:
        """A GPU target with its architecture."""
        wanted = self._build.target if target is None else parse_target(target)
        present = None if wanted.arch else gpu_target()
        if not wanted.arch and present is not None and (present.kind == wanted.kind or target is None):
            return present
        if not wanted.arch or not wanted.on_gpu:
            raise TargetError(
                f"compile `{self.name}` for {wanted}",
                "name the architecture to compile for",
                legal=("cuda:80", "cuda:90", "hip:gfx942"),
            )
        return wanted

    def _typical(self) -> dict[str, int]:
        """The sizes that offline compilation assumes."""
        return {s.name: self._build.shapes.get(s.name, TYPICAL_SIZE) for s in self._build.tiles.scalars}
