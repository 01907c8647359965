"""What a compiled kernel shows of itself: names and programs, facts, reasons, and what it compiles to.

Every method that needs a compiler or a report is a call of a function of the room that has it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from neptune.base.boundary import public
from neptune.errors import RecordError, ScheduleError
from neptune.ir.program import Program
from neptune.runtime.artifact import WARNINGS, facts_of
from neptune.runtime.executable import Executable
from neptune.runtime.facts import Facts, Remark
from neptune.runtime.launching.plans import Specialisation

if TYPE_CHECKING:
    from neptune.driver.build import Build
    from neptune.mirage.ir import Graph
    from neptune.report.resources import Resources

Stage: TypeAlias = Literal["loops", "scheduled", "fused", "tile"]
STAGES: tuple[Stage, ...] = ("loops", "scheduled", "fused", "tile")


class Shown:
    """A kernel that runs, and what there is to read of it; `neptune.Kernel` is called, changed and saved, too."""

    def __init__(self, executable: Executable, build: Callable[[], Build] | None) -> None:
        """`build` makes what `.build` gives."""
        self.executable = executable
        self._make_build = build

    def __repr__(self) -> str:
        return f"<neptune.Kernel {self.executable.signature} for {self.target}>"

    # --- what it is ---

    @property
    def name(self) -> str:
        """The name of the program, and of the launch function in `source`."""
        return self.executable.artifact.name

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the input tensors, in the order of a call."""
        return tuple(b.name for b in self.executable.loops.inputs)

    @property
    def scalars(self) -> tuple[str, ...]:
        """The names of the scalar arguments that follow the tensors."""
        return tuple(s.name for s in self.executable.signature.free)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the results, in the order in which they are returned."""
        return tuple(b.name for b in self.executable.loops.outputs)

    @property
    def params(self) -> dict[str, int]:
        """Tile sizes, num_warps and num_stages, and the numbers of parts that were given; `with_params` gives others.

        A tile that covers a size is chosen at the call and not in here, as is a number of parts that was not given.
        """
        return self.executable.artifact.params

    @property
    def target(self) -> str:
        """The target that the kernel was compiled for."""
        return self.executable.artifact.target

    @property
    def source(self) -> str:
        """Its Triton module, as it runs on the target: with tensor descriptors on sm_90 and later, else pointers."""
        return self.executable.source

    @property
    @public
    def graph(self) -> Graph | None:
        """The µGraph that the kernel computes, where a search has found it (`neptune.superoptimize`); None elsewhere.

        print_graph(neptune.superoptimize(expr, shapes=sizes).graph)
        """
        from neptune.report.search import graph_of

        return graph_of(self._explanation)

    @property
    def program(self) -> Program:
        """The fused program, which every target executes; on llvm with its sums in parts."""
        return self.executable.program

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
        return self.executable.artifact.programs[stage]

    # --- what it does ---

    @cached_property
    def facts(self) -> Facts:
        """Kernels with their numbers of programs and their products of tiles, loops, temporaries, and how often each
        input is read."""
        return facts_of(self._explanation)

    @property
    @public
    def warnings(self) -> tuple[Remark, ...]:
        """What makes this kernel slower than it need be: `code`, `stage`, `message` and `remedy` of each.

        Of several variants, of the one that `params` speaks of; nothing compiles anew for it.

            for w in kernel.warnings: print(w.message, w.remedy)
        """
        remarks = self.executable.artifact.warnings
        if remarks is not None:
            return remarks
        from neptune.driver.explanation import with_judgement

        return tuple(Remark(**row) for row in with_judgement(self.executable.artifact)[WARNINGS])

    @overload
    def explain(self, json: Literal[False] = False) -> str: ...

    @overload
    def explain(self, json: Literal[True]) -> dict[str, Any]: ...

    def explain(self, json: bool = False) -> str | dict[str, Any]:
        """Return the decisions: what was fused, deferred and rolled, its proofs, which masks were split; and the facts.

        First what makes it slow (`warnings`), then what the cost model predicts: at the sizes of `shapes=`, else at
        usual ones, with what it is bound by, and other choices.

        As text for people, or with `json` as a dict of plain values.
        """
        from neptune.report.explain import as_text, with_verdict

        e = with_verdict(self._explanation, self.executable.form)
        return deepcopy(e) if json else as_text(e)

    @cached_property
    def _explanation(self) -> dict[str, Any]:
        """What is kept of the compilation; with other parameters than then, judged anew."""
        artifact = self.executable.artifact
        if artifact.warnings is not None:
            return artifact.explanation
        try:
            from neptune.driver.explanation import with_judgement
        except ModuleNotFoundError:
            # A loaded kernel needs torch and Triton alone, the cost model NumPy as well.
            return artifact.explanation
        return with_judgement(artifact)

    @property
    def specialisations(self) -> tuple[Specialisation, ...]:
        """The binaries that calls on a GPU have needed so far. Lengths make no new one; tile sizes do, tensors at
        other alignments, and strides and lengths of rows that are 1, divisible by 16, or beyond 32 bits where others
        were not."""
        return self.executable.plans.specialisations

    @public
    def report(self, path: str | Path) -> Path:
        """Write explain() with every step of the schedule and every pass, as differences, to one HTML file.

        The file needs nothing else: no network, no script. Raises NeptuneError where it cannot be written.

            kernel.report("attention.html")
        """
        if self._make_build is None:
            raise RecordError(
                f"kernel.report of `{self.name}`",
                "this kernel was loaded, and a saved kernel does not hold the passes that made it",
                hint="kernel.explain() needs none; a kernel of neptune.compile has a report",
            )
        from neptune.report.page import write_report

        return write_report(self._page, path)

    @property
    def _page(self) -> str:
        """The report as HTML."""
        from neptune.driver.explanation import explanation
        from neptune.report.page import report

        return report(explanation(self.build, self.facts), self.build.trail)

    def _repr_html_(self) -> str:
        """The report in a frame, as notebooks show a kernel; of a loaded one, what explain() says."""
        if self._make_build is None:
            return f"<pre>{escape(self.explain())}</pre>"
        # A frame of its own: the page's style is not that of the notebook.
        return f'<iframe srcdoc="{escape(self._page)}" style="width: 100%; height: 40em; border: 0"></iframe>'

    @public
    def asm(self, target: str | None = None, form: str | None = None) -> dict[str, str]:
        """The assembly of each kernel by name: PTX, or AMDGCN. Needs no GPU where `target` names an
        architecture ("cuda:90"); by default that of the kernel's target or of the GPU here.

        `form` is "asynchronous" or "triton"; None is that of dense tensors on 16 bytes: asynchronous, where a kernel is
        so on the target, once that form is accepted. Raises TargetError for a target that cannot be compiled for, and
        for a form that the kernel does not have there.
        """
        from neptune.report.resources import asm

        return asm(self.executable, target, form)

    @public
    def resources(self, target: str | None = None) -> list[Resources]:
        """Registers, spills, shared memory and matrix instructions of each kernel; `target` as in `asm`.

        Asynchronous kernels stand first (`form`), with what each of their roles has (`roles`), beside all kernels in
        the Triton form.
        """
        from neptune.report.resources import resources

        return resources(self.executable, target)
