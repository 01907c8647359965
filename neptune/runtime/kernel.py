"""A compiled kernel: callable on torch tensors, and able to show and explain itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import torch

from neptune.boundary import public
from neptune.errors import NeptuneError, RecordError, ScheduleError, TargetError
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr
from neptune.ir.parser import parse_program
from neptune.ir.program import Program
from neptune.runtime.arguments import Signature, checked_call_sizes
from neptune.runtime.artifact import Artifact, Packed, pack, unpack
from neptune.runtime.chosen import Chosen
from neptune.runtime.empty import is_empty, run_empty
from neptune.runtime.facts import Facts
from neptune.runtime.launch import Launch, Target, free_scalars, gpu_target, make_launch, parse_target
from neptune.runtime.modules import Form, Modules, covers
from neptune.runtime.plans import NOTHING, Plans, Special, Specialisation
from neptune.runtime.products import check_products, products
from neptune.runtime.workspace import Place, deal, places
from neptune.runtime.workspace import check as check_workspace
from neptune.runtime.workspace import size as bytes_of
from neptune.versions import versions

if TYPE_CHECKING:
    from neptune.codegen.compile import Compiled
    from neptune.runtime.build import Build
    from neptune.runtime.resources import Resources

Stage: TypeAlias = Literal["loops", "scheduled", "fused", "tile"]
STAGES: tuple[Stage, ...] = ("loops", "scheduled", "fused", "tile")
TYPICAL_SIZE = 1024
"""The size that offline compilation assumes where a tile covers one and no typical shape was given."""


class Kernel:
    """A compiled kernel; made by `neptune.compile` or `neptune.load`.

    Calling it takes the input tensors in the order of `inputs`, then the scalars of `scalars`, and returns a
    tensor, or a tuple of them in the order of `outputs`. Tensors are used where they are, with any strides
    (the last dimension dense), never copied; `out=` gives the memory to write.

        kernel = neptune.compile(prefill_causal(), "flash_attention")
        o = kernel(q, k, v)                     # q, k, v: float16 [batch, heads, length, 128]
        kernel(q, k, v, out=o)

    `workspace=` is memory for temporaries that the caller owns (see `workspace`), `params=` gives the numbers that
    launches choose, such as {"NUM_SPLITS": 8}: nothing is compiled anew for them.

    Raises ShapeError for arguments that do not fit, TargetError where the target is not there.
    """

    def __init__(
        self, artifact: Artifact, loops: Program | None = None, build: Callable[[], Build] | None = None
    ) -> None:
        """`loops` is the Program of the artifact's text, where it is at hand; `build` makes what `.build` gives."""
        self._artifact = artifact
        self._target = parse_target(artifact.target)
        self._loops = parse_program(artifact.programs["loops"]) if loops is None else loops
        self._make_build = build
        self._signature = Signature(self._loops, self._target.device, artifact.bounds)
        self._plans = Plans(len(self._loops.inputs), [is_float(s.dtype) for s in self._signature.free])
        self._compiled: dict[Target, list[Compiled]] = {}
        tiles = {n: v for n, v in artifact.params.items() if n not in artifact.chosen}
        self._modules = Modules(artifact.modules, artifact.declarations, tiles)

    @public
    def __call__(
        self, *args: Any, out: Any = None, workspace: Any = None, params: Mapping[str, int] | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        special = NOTHING if workspace is None and params is None else Special(workspace, params)
        done = self._plans.replay(args, out, special)
        if done is not None:
            return done
        call = self._signature.bind(args, out)
        if is_empty(self._loops, (*call.inputs, *call.outputs), call.scalars):
            run_empty(self._loops, call.inputs, call.outputs, call.scalars)
        else:
            device = call.outputs[0].device
            scalars = {**call.scalars, **self._chosen.numbers(self._sizes(call.scalars), device, params)}
            check_products(self.program, self._products, scalars)
            own: dict[str, torch.Tensor] = {}
            if workspace is not None:
                found = self._places(scalars)
                others = (*call.inputs, *call.outputs)
                check_workspace(workspace, bytes_of(found), device, others, f"call of kernel `{self.name}`")
                own = dict(zip((p.name for p in found), deal(workspace, found), strict=True))
            plan = self._launch(call.inputs, call.outputs, scalars, own)
            if plan is not None:
                self._plans.learn(args, out, plan, special)
        return call.outputs[0] if len(call.outputs) == 1 else call.outputs

    @public
    def workspace(self, **sizes: int) -> int:
        """The bytes that a call with these sizes needs for temporaries: what `workspace=` of a call must hold.

        Sizes that are not named are those of `bounds`. With bounds for the sizes that decide the number of parts, calls
        up to them need no more than the call at them; without, a smaller call may choose more parts. On a GPU, for the
        present one. Raises ShapeError where a size is missing, or no size.

            kernel = neptune.compile(prefill_global(), "flash_decoding", bounds={"s_kv": 65536})
            memory = torch.empty(kernel.workspace(batch=8, heads=32, s_q=1), dtype=torch.uint8, device="cuda")
            kernel(q, k, v, workspace=memory)
        """
        full = checked_call_sizes(self._loops, {**self._artifact.bounds, **sizes}, f"workspace of kernel `{self.name}`")
        device = torch.device(self._target.device)
        return bytes_of(self._places({**full, **self._chosen.numbers(self._sizes(full), device)}))

    def _sizes(self, scalars: Mapping[str, int | float]) -> dict[str, int | float]:
        """The sizes of a call and the tiles that it uses."""
        return {**scalars, **covers(self._modules.declared, scalars), **self._modules.params}

    def _places(self, scalars: Mapping[str, int | float]) -> tuple[Place, ...]:
        return places(self._modules.declared.temporaries, self._sizes(scalars))

    @cached_property
    def _chosen(self) -> Chosen:
        artifact = self._artifact
        given = {n: v for n, v in artifact.params.items() if n in artifact.chosen}
        grids = [k["grid"] for k in artifact.explanation["kernels"]]
        return Chosen(self._modules.declared, grids, artifact.bounds, given)

    def __repr__(self) -> str:
        return f"<neptune.Kernel {self._signature} for {self.target}>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold what a saved kernel holds: no `build`."""
        return _unpickled, (pack(self._artifact, versions()),)

    @cached_property
    def _products(self) -> tuple[Expr, ...]:
        return products(self.program)

    @cached_property
    def _launch(self) -> Launch:
        return make_launch(self._target, self.program, self._modules)

    # --- what it is ---

    @property
    def name(self) -> str:
        """The name of the program, and of the launch function in `source`."""
        return self._artifact.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the input tensors, in the order of a call."""
        return tuple(b.name for b in self._loops.inputs)

    @property
    def scalars(self) -> tuple[str, ...]:
        """The names of the scalar arguments that follow the tensors."""
        return free_scalars(self._loops)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results, in the order in which they are returned."""
        return tuple(b.name for b in self._loops.outputs)

    @property
    def params(self) -> dict[str, int]:
        """Tile sizes, num_warps and num_stages. A tile that covers a size is chosen at the call and not in here."""
        return self._artifact.params

    @property
    def target(self) -> str:
        """What it was compiled for."""
        return self._artifact.target

    @property
    def source(self) -> str:
        """Its Triton module, as it runs on the target: with tensor descriptors on sm_90 and later, else pointers."""
        return self._modules.source(Form(self._target.loads))

    @cached_property
    def program(self) -> Program:
        """The fused program, which every target executes."""
        return parse_program(self._artifact.programs["fused"])

    @property
    @public
    def build(self) -> Build:
        """Everything the compilation made, as programs; where it came from the cache, it is made again.

        Raises RecordError for a kernel that was loaded: it has texts. So it does where the template of a cached
        kernel has become another since.
        """
        return self._build

    @cached_property
    def _build(self) -> Build:
        if self._make_build is None:
            raise RecordError(
                f"kernel.build of `{self.name}`",
                "this kernel was loaded, and a saved kernel holds no programs but their texts",
                hint="kernel.ir(stage), .facts and .explain() need none; neptune.compile gives a kernel that has them",
            )
        return self._make_build()

    @public
    def ir(self, stage: Stage = "fused") -> str:
        """The program as text: "loops" as imported, "scheduled" before its repairs, "fused", or "tile".

        Raises ScheduleError for any other stage.
        """
        if stage not in STAGES:
            raise ScheduleError(f"kernel.ir({stage!r})", "there is no such stage", legal=STAGES)
        return self._artifact.programs[stage]

    # --- what it does ---

    @cached_property
    def facts(self) -> Facts:
        """Kernels, loops, temporaries, and how often each input is read."""
        return self._artifact.facts

    @overload
    def explain(self, json: Literal[False] = False) -> str: ...

    @overload
    def explain(self, json: Literal[True]) -> dict[str, Any]: ...

    def explain(self, json: bool = False) -> str | dict[str, Any]:
        """What was fused, deferred and rolled, how it was proved, which masks were split, and the facts.

        As text for people, or with `json` as a dict of plain values.
        """
        from neptune.runtime.explain import as_text

        return deepcopy(self._artifact.explanation) if json else as_text(self._artifact.explanation)

    @public
    def for_target(self, target: str) -> Kernel:
        """The same kernel for another target: all of them run the same programs, with the same params.

        Raises TargetError for a target that there is not.
        """
        chosen = parse_target(target)
        make = None if self._make_build is None else lambda: replace(self.build, target=chosen)
        return Kernel(self._artifact.for_target(str(chosen)), self._loops, make)

    @public
    def save(self, path: str | PathLike[str]) -> None:
        """Write a folder of plain Triton source and a manifest, for `neptune.load`.

        The sources run without Neptune, too: `from kernel_pointer import <name>`. A saved kernel that is there
        already is replaced at once. Raises RecordError where anything else is, or nothing can be written.

            kernel.save("attention")
            o = neptune.load("attention")(q, k, v)
        """
        from neptune.runtime.saved import save

        save(self._artifact, path)

    @property
    def specialisations(self) -> tuple[Specialisation, ...]:
        """The binaries that calls on a GPU have needed so far. Lengths make no new one; tile sizes do, tensors at
        other alignments, and strides and lengths of rows that are 1, divisible by 16, or beyond 32 bits where others
        were not."""
        return self._plans.specialisations

    @public
    def report(self, path: str | Path) -> Path:
        """Write explain() with every step of the schedule and every pass, as differences, to one HTML file.

        The file needs nothing else: no network, no script. Raises NeptuneError where it cannot be written.

            kernel.report("attention.html")
        """
        from neptune.runtime.report import report

        if self._make_build is None:
            raise RecordError(
                f"kernel.report of `{self.name}`",
                "this kernel was loaded, and a saved kernel does not hold the passes that made it",
                hint="kernel.explain() needs none; a kernel of neptune.compile has a report",
            )
        page = report(self.build, self.facts)
        try:
            Path(path).write_text(page, encoding="utf-8")
        except (OSError, TypeError, ValueError) as error:
            raise NeptuneError(f"kernel.report({path!r})", f"it cannot be written: {error}") from None
        return Path(path)

    @public
    def asm(self, target: str | None = None) -> dict[str, str]:
        """The assembly of each kernel by name: PTX, or AMDGCN. Needs no GPU where `target` names an
        architecture ("cuda:90"); by default that of the kernel's target or of the GPU here.

        Raises TargetError for a target that cannot be compiled for.
        """
        return {c.name: c.asm for c in self._offline(target)}

    @public
    def resources(self, target: str | None = None) -> list[Resources]:
        """Registers, spills, shared memory and matrix instructions of each kernel; `target` as in `asm`."""
        from neptune.runtime.resources import resources_of

        return [resources_of(c) for c in self._offline(target)]

    def _offline(self, target: str | None) -> list[Compiled]:
        from neptune.codegen.compile import compile_kernels

        chosen = self._architecture(target)
        if chosen not in self._compiled:
            params = {**covers(self._modules.declared, self._typical()), **self.params}
            source, kernels = self._modules.source(Form(chosen.loads)), self._artifact.modules[chosen.loads].kernels
            self._compiled[chosen] = compile_kernels(source, kernels, str(chosen), params)
        return self._compiled[chosen]

    def _architecture(self, target: str | None) -> Target:
        """A GPU target with its architecture."""
        wanted = self._target if target is None else parse_target(target)
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
        shapes = self._artifact.shapes
        return {s.name: shapes.get(s.name, TYPICAL_SIZE) for s in self._modules.declared.scalars}


def _unpickled(packed: Packed) -> Kernel:
    return Kernel(unpack(packed))
