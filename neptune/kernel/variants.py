"""The variants of a kernel: what each is, when a launch takes it, and the kernel that it is on its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from neptune import config
from neptune.errors import ShapeError
from neptune.ir.dtypes import is_float
from neptune.runtime.artifact import AT, PINNED, Artifact
from neptune.runtime.executable import Executable
from neptune.runtime.facts import Facts
from neptune.runtime.family import FAMILY, SHARED, Decided, Members, conditions, shares, sizes_of, tree_json

if TYPE_CHECKING:
    from neptune.kernel import Kernel
    from neptune.kernel.shown import Stage
    from neptune.report.resources import Resources
    from neptune.tune.chooser import Chooser

MakeVariant: TypeAlias = "Callable[[int], Kernel]"
"""The kernel of a variant, by its number."""
Accept: TypeAlias = "Callable[[Kernel], None]"
"""It raises NeptuneError for a variant that is not to be used."""


@dataclass(frozen=True)
class Variant:
    """One schedule of a kernel, for the sizes that `when` says ("" for all).

    `name` tells it from the others, `template` and `params` say what it is, and `why`, of the one that `kernel.chosen`
    gives, what is predicted at its sizes, and what comes next. The rest is as of a Kernel; what is not compiled yet is
    compiled then.
    """

    name: str
    template: str
    params: Mapping[str, int]
    when: str
    make: Callable[[], Kernel] = field(repr=False, compare=False)
    why: str = field(default="", compare=False)

    def __repr__(self) -> str:
        params = ", ".join(f"{n}={v}" for n, v in self.params.items())
        where = f"where {self.when}" if self.when else ""
        return f"<Variant {self.name}: {'; '.join(filter(None, (params, self.why or where)))}>"

    @property
    def kernel(self) -> Kernel:
        """The variant as a kernel for all sizes."""
        return self.make()

    @property
    def source(self) -> str:
        """Its Triton module."""
        return self.kernel.source

    @property
    def facts(self) -> Facts:
        """Kernels, loops, temporaries, and how often each input is read."""
        return self.kernel.facts

    def ir(self, stage: Stage = "fused") -> str:
        """The program as text, as `Kernel.ir`."""
        return self.kernel.ir(stage)

    def explain(self, json: bool = False) -> str | dict[str, Any]:
        """The decisions, as `Kernel.explain`."""
        return self.kernel.explain(json=True) if json else self.kernel.explain()

    def asm(self, target: str | None = None, form: str | None = None) -> dict[str, str]:
        """The assembly of each kernel by name, as `Kernel.asm`."""
        return self.kernel.asm(target, form)

    def resources(self, target: str | None = None) -> list[Resources]:
        """Registers, spills, shared memory and matrix instructions, as `Kernel.resources`."""
        return self.kernel.resources(target)


class KernelFamily:
    """The variants of one kernel as kernels of their own, each made once."""

    def __init__(self, own: Kernel, described: Mapping[str, Any], make: MakeVariant, accept: Accept | None) -> None:
        self.own, self.described, self._make, self._accept = int(described["own"]), described, make, accept
        self._pinned = tuple(own.executable.artifact.explanation.get(PINNED, ()))
        alone = Executable(own.executable.artifact.alone(), own.executable.loops)
        self._kernels: dict[int, Kernel] = {self.own: type(own)(alone, own._make_build)}
        self.members: Members[Executable] = Members(described, alone, lambda k: self.kernel(k).executable)
        self._executable = own.executable
        if own.executable.artifact.counts:
            self.members.decide = lambda sizes: self.decided(sizes)

    @cached_property
    def decided(self) -> Decided:
        """What tells the variants apart, as far as it is known, without the model."""
        from neptune.driver.cache import source_stamp
        from neptune.driver.device import machine_for

        artifact, loops = self._executable.artifact, self._executable.loops
        fixed = json.loads(artifact.counts)["fixed"]
        names = [s.name for s in loops.scalars if s.upto is None and not is_float(s.dtype) and s.name not in fixed]
        record = None if artifact.form is None else artifact.form.record
        stamp, machine = source_stamp(), repr(machine_for(self._executable.target))
        parts = [artifact.counts, self.described["variants"], record, artifact.target, str(loops), stamp, machine]
        key = hashlib.sha256(json.dumps(parts, default=str).encode("utf-8", "surrogatepass")).hexdigest()
        root = None if stamp is None else config.read().cache_dir
        kept = None if root is None else (root, key)
        return Decided(names, len(self.described["variants"]), lambda sizes: self.chooser.number(sizes), kept)

    @cached_property
    def chooser(self) -> Chooser:
        """What tells the variants apart by the model, on the target of the kernel."""
        from neptune.driver.counted import in_form
        from neptune.driver.device import machine_for
        from neptune.tune.chooser import Chooser

        artifact, machine = self._executable.artifact, machine_for(self._executable.target)
        form = in_form(artifact, machine)
        return Chooser.read(artifact.counts, self.described, self._executable.loops, machine, form)

    def saved(self) -> Artifact:
        """The kernel as it is saved: by comparisons of sizes, without the model."""
        artifact = self._executable.artifact
        if not artifact.counts:
            return artifact
        tree, lost = self.chooser.tree(artifact.bounds)
        variants = [{**v, "when": conditions(tree, k)} for k, v in enumerate(self.described["variants"])]
        by_tree = {**self.described, "tree": tree_json(tree), "variants": variants, "saved": shares(lost)}
        return replace(artifact.without_model(), explanation={**artifact.explanation, FAMILY: by_tree})

    @property
    def deciding(self) -> frozenset[str]:
        """The sizes that variants follow from."""
        return frozenset(self.decided.names) if self._executable.artifact.counts else sizes_of(self.members.tree)

    def why(self, sizes: Mapping[str, int]) -> str:
        """What the model predicts at these sizes; "" for a kernel that has none."""
        return self.chooser.why(sizes) if self._executable.artifact.counts else ""

    def kernel(self, k: int) -> Kernel:
        """Variant k, for all sizes. Another one of the same template differs in values alone: nothing is proved anew.

        Raises NeptuneError where it cannot be made.
        """
        if k not in self._kernels:
            choice = self.described["variants"][k]
            others = (v for v in self._kernels.values() if v.executable.artifact.template == choice["template"])
            like = next(others, None)
            # The asynchronous form of a variant is not made of values, and one that is shared is timed anew.
            like = None if choice.keys() & {"levers", SHARED} else like
            kernel = self._make(k) if like is None else _at_sizes(like.with_params(choice["params"]), choice)
            # Stages that the choice gave are not the caller's.
            if PINNED in kernel.executable.artifact.explanation:
                kernel = kernel.keeping(kernel.executable.artifact.pinning(self._pinned))
            if self._accept is not None:
                self._accept(kernel)
            self._kernels[k] = kernel
        return self._kernels[k]


def _at_sizes(kernel: Kernel, choice: Mapping[str, Any]) -> Kernel:
    """The kernel of a variant, which speaks of sizes that the variant is for."""
    executable = kernel.executable
    return type(kernel)(Executable(executable.artifact.unjudged(choice.get(AT)), executable.loops), kernel._make_build)


def family_of(kernel: Kernel, make: MakeVariant, accept: Accept | None) -> KernelFamily | None:
    """The family of a kernel, of which its executable learns; None where it is the only one."""
    described = kernel.executable.artifact.family
    if described is None:
        return None
    family = KernelFamily(kernel, described, make, accept)
    kernel.executable.members = family.members
    return family


def variants_of(kernel: Kernel) -> tuple[Variant, ...]:
    """All variants of a kernel."""
    artifact, family = kernel.executable.artifact, kernel._family
    if family is None:
        return (Variant(artifact.template, artifact.template, artifact.params, "", lambda: kernel),)
    return tuple(
        Variant(name, v["template"], dict(v["params"]), v["when"], lambda k=k: family.kernel(k))  # type: ignore[misc]
        for k, (name, v) in enumerate(zip(family.members.names, family.described["variants"], strict=True))
    )


def chosen(kernel: Kernel, sizes: Mapping[str, Any]) -> Variant:
    """The variant that these sizes take, with what is predicted there."""
    request = f"kernel.chosen({', '.join(f'{n}={v!r}' for n, v in sizes.items())}) of `{kernel.name}`"
    known = [s.name for s in kernel.executable.loops.scalars]
    for name, value in sizes.items():
        if name not in known:
            raise ShapeError(request, f"it has no size `{name}`", legal=known)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ShapeError(request, f"{name}={value!r} is no size", legal=("an integer of at least 0",))
    family = kernel._family
    if family is None:
        return variants_of(kernel)[0]
    if missing := sorted(family.deciding - sizes.keys()):
        raise ShapeError(request, f"no value was given for {', '.join(missing)}", legal=[f"{n}=…" for n in missing])
    return replace(variants_of(kernel)[family.members.number_of(sizes)], why=family.why(sizes))


def others_of(kernel: Kernel) -> dict[int, Artifact]:
    """What is to be kept of the other variants of a kernel, all of them made."""
    family = kernel._family
    if family is None:
        return {}
    numbers = (k for k in range(len(family.members.names)) if k != family.own)
    return {k: family.members.member(k).artifact for k in numbers}
