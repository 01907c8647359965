"""The asynchronous form as a row of the table of forms (`neptune.forms`); what compiles is imported where it is asked.

FORM.lower(Source(tiles), Wanted({"consumers": 2}))   →  Made(data=Asynchronous("import …", …), …)
FORM.lower(Source(tiles_of_a_softmax), Wanted())      →  Unsupported("it has no product of matrices …")
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from neptune.errors import TargetError, Unsupported
from neptune.forms import Form, Inspected, Made, RoleResources, Source, Space, Time, Wanted
from neptune.hopper.explain import LEVERS, lines
from neptune.runtime.executable import Executable
from neptune.runtime.forms import FormData
from neptune.runtime.hopper import accepted
from neptune.runtime.hopper.data import ASYNCHRONOUS, Asynchronous, Roles
from neptune.runtime.launching import launch
from neptune.tune.model.machine import Machine

if TYPE_CHECKING:
    from neptune.hopper.derive import Derived, Draft
    from neptune.hopper.validate.compile import Built
    from neptune.tile.ir import TileProgram
    from neptune.tune.gains import Asked


class Hopper:
    """The form in which one warp loads for warpgroups that compute (`neptune.forms.Form`)."""

    name = ASYNCHRONOUS
    targets: tuple[str, ...] = ("cuda:90", "cuda")
    reason = "one warp that loads for warpgroups that compute is a form of sm_90"
    levers = LEVERS

    def fits(self, of: Source, choice: Wanted) -> Unsupported | None:
        from neptune.hopper.derive import unsupported

        return unsupported(of, choice)

    def lower(self, of: Source, choice: Wanted) -> Made | Unsupported:
        from neptune.hopper.derive import derived

        # Compiled here, too, where no GPU is: the form is the same on all machines, and a saved one runs elsewhere.
        form = derived(of, choice, broken, _begin)
        if isinstance(form, Unsupported):
            return form
        tiles = form.kernel.levers.tiles
        levers = {n: v for n, v in form.levers.items() if n not in tiles}
        return Made(form.plain(), form.said(), levers, tiles)

    def time(self, of: Source, choice: Wanted, at: Sequence[Asked]) -> Sequence[Time]:
        from neptune.hopper.choice.space import estimated

        return estimated(of, choice, at)

    def tile_names(self, tiles: TileProgram) -> frozenset[str]:
        from neptune.hopper.choice.space import tile_names

        return tile_names(tiles)

    def space(
        self, tiles: TileProgram, sizes: Mapping[str, int], machine: Machine, given: Mapping[str, int] | None = None
    ) -> Space:
        from neptune.hopper.choice.space import offers

        return offers(tiles, sizes, machine, given)

    def validate(self, kernel: Executable) -> Mapping[str, Any] | None:
        from neptune.hopper.validate.kernel import record_of

        return record_of(kernel)

    def decided(self, data: FormData) -> bool:
        from neptune.hopper.validate.kernel import is_decided

        assert isinstance(data, Asynchronous)
        return is_decided(data)

    def explain(self, said: Mapping[str, Any]) -> Iterator[str]:
        return lines(said)

    def inspect(self, data: FormData) -> Sequence[Inspected]:
        from neptune.hopper.validate.compile import compile_gluon
        from neptune.hopper.validate.verdicts import kernels_of, numbers

        assert isinstance(data, Asynchronous)
        # Registers are read off the code.
        every = kernels_of(data, (0, 0))
        return [_inspected(x, compile_gluon(data.text, x.kernel, numbers(x.levers))) for x in every]

    def ready(self) -> None:
        """Processes: one compiles a form, and one compares it, where there is a GPU for it. What they import takes as
        long as what comes before."""
        from neptune.codegen.compile import WORKER

        WORKER.start()
        if str(launch.gpu_target()) in self.targets:
            from neptune.hopper.validate import beside

            beside.WORKER.start()


FORM: Form = Hopper()


def _begin(form: Draft) -> None:
    from neptune.hopper.validate.verdicts import begun

    begun(form.plain(), form.parts[0].kernel.levers.registers)


def broken(form: Derived) -> dict[str, str]:
    """The kernels whose machine code spills, or is refused otherwise, and why; the verdict is kept for later."""
    from neptune.hopper.validate.verdicts import judged

    names = [p.kernel.name for p in form.parts]
    verdict = judged(form.plain(), form.kernel.levers.registers, protocol=lambda: accepted.CLEAN)
    if isinstance(verdict, TargetError):
        return dict.fromkeys(names, verdict.wrong)
    if verdict is None:
        return {}
    unfit = {n: "; ".join(f.unfit) for n, f in zip(names, (verdict, *verdict.others), strict=True) if f.unfit}
    # What is known from an earlier run is of the program.
    rest = "; ".join(why for why in verdict.faults if why != accepted.NOT_COMPARED)
    return unfit or (dict.fromkeys(names, rest) if rest else {})


def _inspected(roles_of: Roles, built: Built) -> Inspected:
    """The numbers of an asynchronous kernel."""
    lint = built.lint
    roles = RoleResources(
        consumer=min(lint.consumers, default=built.registers),
        producer=max(lint.producers, default=built.registers),
        consumers=int(roles_of.levers["consumers"]),
        stages=int(roles_of.levers["stages"]),
        barriers=built.mbarriers,
    )
    words = (built.name, built.registers, built.spill_bytes, built.shared_bytes, "wgmma", built.warnings)
    return Inspected(*words, roles, built.ptx)
