"""A kernel that runs: arguments are bound, launches planned and carried out, from an Artifact alone.

Nothing here or below compiles, schedules or proves: a saved kernel enters this room, `neptune.ir` and what reads
settings, and no other.

Binaries come before the first call where that is asked for (`warm_up`): Triton compiles what a launch with tensors of
some sizes needs, and runs nothing. The generated launch function is called on tensors without memory, with kernels in
it that compile instead of running. So all that Triton specialises on follows as it does in a call: strides, lengths,
alignment, tiles, numbers of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from neptune.errors import ShapeError, TargetError
from neptune.ir.dtypes import is_float
from neptune.ir.expr import Expr
from neptune.ir.integers import evaluate_size
from neptune.ir.program import Buffer, Program
from neptune.ir.text.parser import parse_program
from neptune.runtime.artifact import AT, WIDER, Artifact
from neptune.runtime.calls.arguments import Call, Signature, checked_call_sizes
from neptune.runtime.calls.empty import is_empty, run_empty
from neptune.runtime.calls.indices import Lookup, check_indices, lookups
from neptune.runtime.calls.products import Widths, check_products, products
from neptune.runtime.calls.workspace import Place, deal, places
from neptune.runtime.calls.workspace import check as check_workspace
from neptune.runtime.calls.workspace import size as bytes_of
from neptune.runtime.family import Members, Standby
from neptune.runtime.forms import FormData
from neptune.runtime.launching import refused
from neptune.runtime.launching.capability import check_dtypes
from neptune.runtime.launching.launch import (
    Launch,
    Target,
    capturing,
    gpu_target,
    make_launch,
    parse_target,
    runs_other,
)
from neptune.runtime.launching.plans import NOTHING, Plan, Plans, Special
from neptune.runtime.launching.recording import Launcher
from neptune.runtime.modules import Form, Modules, covers
from neptune.runtime.parts import Numbers, Parts

FAR = 4
"""Times as long as where it was chosen: a tile beyond that is another variant's."""


class Executable:
    """A compiled kernel as something to call; `neptune.Kernel` adds what shows and changes it.

    `loops` is the Program of the artifact's text, where it is at hand. With `members`, calls are those of the variant
    that their sizes take; plans are shared. With `standby`, that kernel serves the calls that this one does not
    serve yet. Raises TargetError for a target that is none.
    """

    def __init__(self, artifact: Artifact, loops: Program | None = None) -> None:
        self.artifact = artifact
        self.target = parse_target(artifact.target)
        self.loops = parse_program(artifact.programs["loops"]) if loops is None else loops
        check_dtypes(self.loops, self.target)
        self.signature = Signature(self.loops, self.target.device, artifact.bounds)
        self.plans = Plans(len(self.loops.inputs), [is_float(s.dtype) for s in self.signature.free])
        tiles = {n: v for n, v in artifact.params.items() if n not in artifact.chosen and "." not in n}
        self.members: Members[Executable] | None = None
        self.standby: Standby[Executable] | None = None
        # The choices next to this one, each for where it was refused (`neptune.runtime.launching.refused`).
        self._next: dict[tuple[str, bool], Executable | None] = {}
        self._stands_in = False
        self.modules = Modules(
            artifact.modules, artifact.declarations, tiles, artifact.of_one, artifact.form, self._has_room
        )

    def call(
        self,
        args: tuple[Any, ...],
        out: Any,
        workspace: Any,
        params: Mapping[str, int] | None,
        launcher: Launcher | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Run on tensors, then scalars; see `neptune.Kernel`. A call like one before is replayed from its plan,
        unless a launcher is to see every launch."""
        special = NOTHING if workspace is None and params is None else Special(workspace, params)
        if launcher is None:
            done = self.plans.replay(args, out, special)
            if done is not None:
                return done
        else:
            self._check_launcher(launcher)
        call = self.signature.bind(args, out)
        if is_empty(self.loops, (*call.inputs, *call.outputs), call.scalars):
            run_empty(self.loops, call.inputs, call.outputs, call.scalars)
        elif (first := self._first_kernel(call, params)) is not None:
            return first.call(args, out, workspace, params, launcher)
        else:
            plan = self._served(call, workspace, params, launcher)
            if plan is not None:
                self.plans.learn(args, out, plan, special)
        return call.outputs[0] if len(call.outputs) == 1 else call.outputs

    def _served(
        self, call: Call, workspace: Any, params: Mapping[str, int] | None, launcher: Launcher | None
    ) -> Plan | None:
        """Launch the variant that the sizes take. Where its first launch is refused (no room in shared memory, wrong
        code), the choices next to it take its place, then other variants; TargetError where nothing is left."""
        numbers = params if isinstance(params, Mapping) else {}
        first = choice = self if self.members is None else self.members.of(call.scalars, numbers)
        error: TargetError | None = None
        gone: list[Executable] = []
        while True:
            one = choice.fitting()
            if one is None:
                gone.append(choice)
                other = None if self.members is None or choice._promises else self.members.instead(choice)
                if other is not None:
                    choice = other
                    continue
                if error is not None:
                    chains = [[x.artifact for x in each._choices()] for each in dict.fromkeys(gone)]
                    raise refused.none_is_left(error, chains) from None
                # What was remembered may hold no longer.
                one = choice
            try:
                plan = one._launched(call, workspace, params, launcher)
            except TargetError as found:
                if found.kind != refused.REFUSED:
                    raise
                error = error or found
                # Where there is another form it may have been refused on tiles, for these tensors alone.
                refused.remember(one._choice, found, keep=not choice._promises and one.artifact.form is None)
                continue
            if one is not first:
                refused.tell([x._choice for x in first._choices()], one.artifact)
            return plan

    def fitting(self) -> Executable | None:
        """This choice, or the first one behind it that no launch has refused; None where none is left."""
        return next((choice for choice in self._choices() if not refused.lacking(choice._choice)), None)

    def _choices(self) -> Iterator[Executable]:
        """This choice and those behind it, as far as they are known to be refused, and one more."""
        choice = self
        yield choice
        while lacking := refused.lacking(choice._choice):
            other = choice._lower(lacking, self._promises)
            if other is None:
                return
            choice = other
            yield choice

    def _lower(self, lacking: str, same_bits: bool) -> Executable | None:
        """The choice next to this one."""
        if (lacking, same_bits) not in self._next:
            artifact = refused.lower(self.artifact, lacking, same_bits)
            lower = None if artifact is None else Executable(artifact, self.loops)
            if lower is not None:
                lower._stands_in = True
            self._next.setdefault((lacking, same_bits), lower)
        return self._next[lacking, same_bits]

    @property
    def _promises(self) -> bool:
        """True where nothing that rounds otherwise may take a choice's place: which one does would follow from the
        sizes and addresses of whatever call was refused before, here or in another process."""
        return bool(self.artifact.explanation.get("promises")) or torch.are_deterministic_algorithms_enabled()

    @cached_property
    def _choice(self) -> str:
        """The name of this choice where it runs."""
        return refused.name_of(self.artifact, str(self._present() or self.target))

    def _first_kernel(self, call: Call, params: Mapping[str, int] | None) -> Executable | None:
        """The kernel of the first calls, where that serves a call: a capture must not load another one, either."""
        standby = self.standby
        if standby is None:
            return None
        stretched = standby.first._is_stretched(call.scalars)
        serves = capturing() or (not stretched and standby.serves(self.members, call.scalars, params or ()))
        return standby.first if serves else None

    def _is_stretched(self, sizes: Mapping[str, int | float]) -> bool:
        """True where a tile that covers a size is far longer than at the sizes that this choice is for: its binary
        takes longer to compile than the variant for these sizes does, and spills."""
        declared, known = self.modules.declared, {**sizes, **self.artifact.chosen_at}
        here, there = covers(declared, sizes), covers(declared, known)
        return any(n > FAR * there[name] for name, n in here.items())

    def _launched(
        self, call: Call, workspace: Any, params: Mapping[str, int] | None, launcher: Launcher | None
    ) -> Plan | None:
        """Launch everything for a call that was bound; how to do it again, where that can be told."""
        device = call.outputs[0].device
        sizes = self._sizes(call.scalars)
        numbers = self._numbers.of_call(sizes, device, params)
        # A launcher is for kernels of Triton.
        if launcher is None and self._in_own_parts((*call.inputs, *call.outputs), {**call.scalars, **numbers}):
            numbers = self._own_numbers.of_call(sizes, device, params)
        scalars = {**call.scalars, **numbers}
        check_products(self.program, self._products, scalars)
        if self.target.kind != "llvm":  # which computes in 64 bits
            self._widths.check(scalars)
        own: dict[str, torch.Tensor] = {}
        if workspace is not None:
            places = self._places(scalars)
            others = (*call.inputs, *call.outputs)
            request = f"call of kernel `{self.artifact.name}`"
            needed = bytes_of(places)
            # The caller was told what another choice needs: where that is too little, memory is this kernel's own.
            less = self._stands_in and isinstance(workspace, torch.Tensor) and workspace.numel() < needed
            check_workspace(workspace, 0 if less else needed, device, others, request)
            own = {} if less else dict(zip((p.name for p in places), deal(workspace, places), strict=True))
        more = () if launcher is None else (launcher,)
        return self.launch(call.inputs, call.outputs, scalars, own, *more)

    def on_no_memory(self, scalars: Mapping[str, int | float], launcher: Launcher) -> None:
        """Show the launches of a call with these scalars, on dense tensors that have no memory, to a launcher."""
        device = torch.device(self.target.device)
        one = self.fitting() or self
        numbers = one._numbers.of_call(one._sizes(scalars), device)
        loops = self.loops
        inputs, outputs = ([_shape_of(b, scalars) for b in buffers] for buffers in (loops.inputs, loops.outputs))
        one.launch(inputs, outputs, {**scalars, **numbers}, {}, launcher)

    def checked_call(
        self,
        args: tuple[Any, ...],
        out: Any,
        workspace: Any,
        params: Mapping[str, int] | None,
        launcher: Launcher | None = None,
    ) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """`call`, after a look at the indices that the tensors hold; ShapeError for one that leads out of a tensor."""
        if self._lookups:
            call = self.signature.bind(args, out)
            if not is_empty(self.loops, (*call.inputs, *call.outputs), call.scalars):
                tensors = dict(zip((b.name for b in self.loops.inputs), call.inputs, strict=True))
                check_indices(self._lookups, self.loops.name, tensors, call.scalars)
        return self.call(args, out, workspace, params, launcher)

    def _check_launcher(self, launcher: Launcher) -> None:
        request = f"call of kernel `{self.artifact.name}` with a launcher"
        if not callable(launcher):
            wrong = f"{launcher!r:.60} is no function of a kernel"
            raise ShapeError(request, wrong, legal=["torch.library.wrap_triton"])
        if not self.target.on_gpu:
            raise TargetError(
                request, f"its target {self.target} launches no Triton kernels in this process", legal=["cuda", "hip"]
            )

    def workspace(self, sizes: Mapping[str, int]) -> int:
        """The bytes that a call with these sizes needs for temporaries; sizes that are not named are the bounds.

        Smaller sizes may take another variant, so that it is the most of all.
        """
        if self.members is not None:
            return max((e.fitting() or e)._workspace(sizes) for e in self.members.all())
        return (self.fitting() or self)._workspace(sizes)

    def _workspace(self, sizes: Mapping[str, int]) -> int:
        request = f"workspace of kernel `{self.artifact.name}`"
        full = checked_call_sizes(self.loops, {**self.artifact.bounds, **sizes}, request)
        device, given = torch.device(self.target.device), self._sizes(full)
        # Which form runs, and so in how many parts, is for the tensors of a call to say.
        rules = (self._numbers,) if self.form is None else (self._numbers, self._own_numbers)
        return max(bytes_of(self._places({**full, **rule.of_call(given, device)})) for rule in rules)

    @property
    def source(self) -> str:
        """The module, as it runs on the target: where that has another form than tiles, that one."""
        return self.modules.source(Form(self.target.loads if self.form is None else self.form.name))

    @property
    def form(self) -> FormData | None:
        """The other form, where the kernel has one for its target; "cuda" is the GPU here, or any where none is."""
        other = self.modules.other
        # A saved one may name any target.
        if other is None or self.target.kind != str(other.architecture).partition(":")[0]:
            return None
        present = self.target if self.target.arch else self._present()
        return other if present is None or str(present) == other.architecture else None

    def _present(self) -> Target | None:
        """What is here of the target's kind: a GPU, if there is one, or this process."""
        return gpu_target() if self.target.on_gpu else self.target

    @cached_property
    def program(self) -> Program:
        """The fused program, which every target executes."""
        return parse_program(self.artifact.programs["fused"])

    @cached_property
    def launch(self) -> Launch:
        """The function that runs the program on the target; TargetError if the target is not available."""
        return make_launch(self.target, self.program, self.modules)

    def _in_own_parts(self, tensors: Sequence[torch.Tensor], scalars: Mapping[str, int | float]) -> bool:
        """True where a call takes the other form, and this chooses numbers of its own."""
        other, present = self.modules.other, self._present()
        if other is None or not other.parts or present is None or not runs_other(self.modules, present):
            return False
        return self.modules.form(tensors, scalars, present.loads, other=True).loads == other.name

    def _sizes(self, scalars: Mapping[str, int | float]) -> dict[str, int | float]:
        """The sizes of a call and the tiles that it uses."""
        return {**scalars, **covers(self.modules.declared, scalars), **self.modules.params}

    def _places(self, scalars: Mapping[str, int | float]) -> tuple[Place, ...]:
        return places(self.modules.declared.temporaries, self._sizes(scalars), self._uses)

    @cached_property
    def _uses(self) -> list[tuple[str, ...]]:
        """The temporaries of each launch."""
        return [k.temporaries for k in self.artifact.facts.kernels]

    @cached_property
    def _numbers(self) -> Numbers:
        return self._by(self.artifact.parts)

    @cached_property
    def _own_numbers(self) -> Numbers:
        """Those of the other form."""
        form = self.artifact.form
        # Kernels that were saved before these were have none.
        return self._by(self.artifact.parts if form is None else form.parts or self.artifact.parts)

    def _by(self, rules: tuple[Parts, ...]) -> Numbers:
        artifact = self.artifact
        fixed = {n: v for n, v in artifact.params.items() if n in artifact.chosen}
        return Numbers(artifact.name, rules, artifact.bounds, fixed)

    @cached_property
    def _lookups(self) -> tuple[Lookup, ...]:
        return lookups(self.loops)

    def _has_room(self, sizes: Mapping[str, int | float]) -> bool:
        return self._widths.has_room(sizes)

    @cached_property
    def _widths(self) -> Widths:
        wide, values = self.artifact.programs.get(WIDER), self.modules.params
        return Widths(self.program, values, None if wide is None else Widths(parse_program(wide), values))

    @cached_property
    def _products(self) -> tuple[Expr, ...]:
        return products(self.program)


def _shape_of(b: Buffer, sizes: Mapping[str, int | float]) -> torch.Tensor:
    shape = tuple(evaluate_size(d, sizes) for d in b.shape)
    return torch.empty(shape, dtype=getattr(torch, b.dtype), device="meta")


# --- binaries before the first call -----------------------------------------------------------------


def warm_up(kernel: Executable, sizes: Mapping[str, int]) -> bool:
    """Compile the binaries of a call with dense tensors of these sizes; whether there was something to compile for.

    What `sizes` does not tell is as in `shapes`, then as it was predicted at, then as in `bounds`. Raises TargetError
    where Triton refuses the kernel, or the GPU here is another one.
    """
    if not kernel.target.on_gpu or gpu_target() is None:
        return False
    artifact = kernel.artifact
    known = {**artifact.bounds, **artifact.explanation.get(AT, {}), **artifact.shapes, **sizes}
    scalars: dict[str, int | float] = {}
    for s in kernel.loops.scalars:
        if is_float(s.dtype):
            scalars[s.name] = 0.5
        elif s.name not in known:
            return False
        else:
            scalars[s.name] = known[s.name]
    kernel.on_no_memory(scalars, _Compiled)
    return True


class _Compiled:
    """Stands for a kernel in the launch function: compiles it and runs nothing."""

    def __init__(self, kernel: Any) -> None:
        self._kernel = kernel

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        return lambda *args, **keywords: self._kernel.warmup(*args, grid=grid, **keywords)
