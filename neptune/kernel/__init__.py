"""A compiled kernel: callable on torch tensors, and able to show and explain itself.

Calling and saving enter `neptune.runtime` and `neptune.ir` alone. Every method that needs more (a compiler, a report)
is a call of a function of the room that has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from neptune import config
from neptune.base.boundary import public
from neptune.errors import RecordError
from neptune.ir.program import Program
from neptune.kernel.shown import Shown
from neptune.kernel.variants import Accept, MakeVariant, Variant, chosen, family_of, others_of, variants_of
from neptune.runtime import custom_op, saved
from neptune.runtime.artifact import Artifact, Packed, pack, unpack, unpack_variants
from neptune.runtime.bench import Timing, time_calls
from neptune.runtime.executable import Executable, warm_up
from neptune.runtime.launching.devices import target_on
from neptune.runtime.launching.launch import LAUNCHERS, Launch, Target, parse_target
from neptune.runtime.launching.recording import Launcher
from neptune.runtime.modules import Modules
from neptune.runtime.transforms import is_recorded

if TYPE_CHECKING:
    from neptune.driver.build import Build

Result: TypeAlias = "torch.Tensor | tuple[torch.Tensor, ...]"


class Kernel(Shown):
    """A compiled kernel; made by `neptune.compile` or `neptune.load`.

    Calling it takes the input tensors in the order of `inputs`, then the scalars of `scalars`, or any of them by name
    behind those without, and returns a tensor, or a tuple of them in the order of `outputs`. Tensors are used where
    they are, with any strides (the last dimension dense), never copied; `out=` gives the memory to write.

        kernel = neptune.compile(prefill_causal(), "flash_attention")
        o = kernel(q, k, v)                     # q, k, v: float16 [batch, heads, length, 128]
        kernel(q, v=v, k=k, out=o)

    `workspace=` is memory for temporaries that the caller owns (see `workspace`), `params=` gives the numbers that
    launches choose, such as {"NUM_SPLITS": 8}: nothing is compiled anew for them. `launcher=` is a function of each
    Triton kernel, whose result is launched in its place: with torch.library.wrap_triton, torch traces the call.

    Where torch.compile or torch.export traces the call, it is one custom operator (see `torch_op`).

    Raises ShapeError for arguments that do not fit, TargetError where the target is not there.
    """

    def __init__(
        self,
        executable: Executable,
        build: Callable[[], Build] | None = None,
        variant: MakeVariant | None = None,
        accept: Accept | None = None,
    ) -> None:
        """`build` makes what `.build` gives, `variant` another variant of the family; `accept` may refuse one."""
        super().__init__(executable, build)
        self._accept = accept
        self._family = None if variant is None else family_of(self, variant, accept)

    @public
    def __call__(
        self,
        *args: Any,
        out: Any = None,
        workspace: Any = None,
        params: Mapping[str, int] | None = None,
        launcher: Launcher | None = None,
        **named: Any,
    ) -> Result:
        if named:
            args = self.executable.signature.in_order(args, named)
        if torch.compiler.is_compiling() or is_recorded():
            from neptune.kernel.traced import traced

            result: Result = traced(self, args, out, workspace, params, launcher)
            return result
        return self._call(args, out, workspace, params, launcher)

    def _call(
        self, args: tuple[Any, ...], out: Any, workspace: Any, params: Mapping[str, int] | None, launcher: Any = None
    ) -> Result:
        call = self.executable.checked_call if config.checked_calls() else self.executable.call
        return call(args, out, workspace, params, launcher)

    @public
    def torch_op(self, name: str) -> torch._ops.OpOverloadPacket:
        """The kernel as the custom operator `torch.ops.<namespace>.<name>`, on CPU and CUDA tensors alike; `name` is
        "namespace::name". The same operator again for the same kernel, which may have been loaded or pickled since.

        torch traces it without graph breaks, with symbolic sizes, and exports it; it works in CUDA graphs and in
        inference mode. The arguments are tensors and scalars as in a call, in their order, and have no names. There is
        no backward pass yet: a tensor that requires a gradient is refused unless under torch.no_grad().

        Raises ShapeError for a name that is none, and where another operator has it.

            rows = neptune.compile(softmax("float32")).torch_op("mylib::softmax")
            y = torch.compile(lambda x: rows(x) + 1, fullgraph=True)(x)
        """
        executable = self.executable
        on = {key: _on_device(self, key.lower()) for key in custom_op.DEVICES}
        return custom_op.define(name, self._content, executable.signature, on)

    @cached_property
    def _content(self) -> str:
        """What tells this kernel from others, on any target."""
        alone = self.executable.artifact.for_target("interpret").undecided()
        return str(pack(alone, {}).manifest["digest"])

    @public
    def benchmark(self, *args: Any, **named: Any) -> Timing:
        """The time of calls with these arguments: the median in milliseconds, with quartiles, and the target.

        On a GPU by `triton.testing.do_bench`, which clears the L2 cache before each call; else by this process's clock.

            print(kernel.benchmark(q, k, v))    # 0.183 ms (0.182 to 0.184), 412 calls on cuda:90
        """
        call = self.executable.signature.in_order(args, named)
        self(*call)
        return time_calls(lambda: self(*call), self.executable.target)

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
        return self.executable.workspace(sizes)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold what a saved kernel holds: all variants, and no `build`."""
        return _unpickled, (saved.packed(self.executable.artifact, others_of(self)),)

    # --- its variants ---

    @property
    @public
    def variants(self) -> tuple[Variant, ...]:
        """The schedules that launches pick from by their sizes: at most 24; one where all sizes are known, or a
        template was named. `source`, `params`, `explain` and the like speak of one of them: that for the sizes given
        as `shapes=`, else for typical ones.

            for v in kernel.variants: print(v)      # flash_decoding 16×128 …, where s_q <= 16 and s_kv > 2048
        """
        return variants_of(self)

    @public
    def chosen(self, **sizes: int) -> Variant:
        """The variant that a launch with these sizes takes, and `why`: the time that is predicted at the end of the
        sizes' class (an eighth of an octave; each size up to 64 is its own), and what comes next. A saved kernel has no
        model, and goes by comparisons of sizes. Raises ShapeError for a name that is no size of this kernel, and where
        one that decides is missing.

            kernel.chosen(batch=1, heads=32, s_q=1, s_kv=131072)
            # <Variant flash_decoding: BLOCK_M=16, …; predicted 25.1 µs on H200; next: …, 25.9 µs>
        """
        return chosen(self, sizes)

    @public
    def warm(self, **sizes: int) -> None:
        """Compile the variant for these sizes now, or all of them, which their first launch would do otherwise: its
        schedule, proofs and checks, and its Triton module.

        For a GPU that is here the binary, too, as dense tensors at aligned addresses need it: for these sizes, with
        those of `bounds` and `shapes` where none is given, or else for the sizes that a variant is predicted at. A size
        that none of them tells, another target, or no GPU, leave it at the module. Raises ShapeError for a name that is
        no size, TargetError for what Triton does not compile.

            kernel.warm(batch=1, heads=32, s_q=1, s_kv=4096)
        """
        for v in (self.chosen(**sizes),) if sizes else self.variants:
            warm_up(v.kernel.executable, sizes)

    @public
    def for_target(self, target: str) -> Kernel:
        """The same kernel for another target: all of them run the same programs, with the same params.

        Raises TargetError for a target that there is not.
        """
        chosen, own = parse_target(target), self.executable
        make = None if self._make_build is None else lambda: replace(self.build, target=chosen)
        family = self._family
        variant = None if family is None else lambda k: family.kernel(k).for_target(target)
        return Kernel(Executable(own.artifact.for_target(str(chosen)), own.loops), make, variant, self._accept)

    @public
    def with_params(self, params: Mapping[str, int] | None = None, /, **values: int) -> Kernel:
        """The same kernel with other tile sizes, num_warps, num_stages or numbers of parts: nothing is scheduled,
        lowered or proved again. {"o_combine.num_warps": 1} names one of its kernels. What is not named keeps its value.
        Of several variants it is the one that `params` speaks of, for all sizes.

        Raises ScheduleError for a name or a value that is not legal, with those that are.

            small = kernel.with_params(BLOCK_M=64, num_warps=4)
        """
        from neptune.tune.params import with_params

        executable, make = self.executable, None
        artifact = with_params(executable.artifact.alone(), executable.modules.declared, params, values)
        if self._make_build is not None:
            make = lambda: replace(self.build, params=artifact.params, family=None, rivals=(), form=None)  # noqa: E731
        return Kernel(Executable(artifact, executable.loops), make)

    def saying(self, entry: str, value: Any) -> Kernel:
        """The same kernel with an entry more in its explanation, plain values."""
        artifact = self.executable.artifact
        return self.keeping(replace(artifact, explanation={**artifact.explanation, entry: value}))

    def keeping(self, artifact: Artifact) -> Kernel:
        """The same kernel with more in its artifact: what it says of itself, a verdict."""
        variant = None if self._family is None else self._family.kernel
        return Kernel(Executable(artifact, self.executable.loops), self._make_build, variant, self._accept)

    @public
    def tune(
        self,
        *args: Any,
        budget: str = "60s",
        trials: int | None = None,
        executor: str = "local",
        workers: int | None = None,
        quiet: bool = False,
    ) -> Kernel:
        """The kernel that is measured to be the fastest on the arguments of a call, for all sizes; this one is not
        changed. `budget` and the like are as in `neptune.autotune`.

        Candidates are those of all shipped templates. They are values of this kernel's own template alone where that is
        the caller's, and where something was promised of bits (`deterministic=`, `batch_invariant=`), which then holds
        of the result, too.

        Raises ShapeError for arguments that are none of this kernel's, and what `neptune.autotune` raises.

            kernel = neptune.compile(prefill_causal()).tune(q, k, v, budget="2m")
        """
        from neptune.autotune.tuner import options_of, reported, tune_kernel

        options = options_of(budget, trials, executor, workers, quiet)
        return reported(tune_kernel(self, args, options), options)

    @public
    def save(self, path: str | PathLike[str]) -> None:
        """Write a folder of plain Triton source and a manifest, for `neptune.load`.

        The sources run without Neptune, too: `from kernel_pointer import <name>`. A saved kernel that is there
        already is replaced at once. Raises RecordError where anything else is, or nothing can be written.

            kernel.save("attention")
            o = neptune.load("attention")(q, k, v)
        """
        artifact = self.executable.artifact if self._family is None else self._family.saved()
        saved.save(artifact, path, others_of(self))


def _on_device(kernel: Kernel, device: str) -> Callable[..., Any]:
    """The kernel for tensors of a device, made at the first call there."""
    kernels: list[Kernel] = []

    def call(*args: Any) -> Any:
        if not kernels:
            kernels.append(kernel.for_target(target_on(device, kernel.target)))
        return kernels[0]._call(args, None, None, None)

    return call


@public
def load(path: str | PathLike[str], target: str | None = None) -> Kernel:
    """A kernel that `kernel.save(path)` has written; needs torch and Triton only.

    `target` is as in `neptune.compile`; by default $NEPTUNE_TARGET, else the GPU where there is one, else what
    the kernel was compiled for if that can run here, else "interpret". Every target runs the same programs, so
    that it need not be the one that was saved.

    It is code: load only what you trust. Raises RecordError for what is no saved kernel, is damaged, or was written
    in another format.

        kernel = neptune.load("attention")
        o = kernel(q, k, v)
    """
    request = f"load the kernel {saved.shown(path)}"
    try:
        packed = saved.read(path, request)
        kernel = _unpickled(packed)
        return kernel.for_target(target or config.read().target or saved.target_here(kernel.target))
    except RecordError as error:
        raise RecordError(request, error.wrong, legal=error.legal, hint=error.hint, kind=error.kind) from None


def _unpickled(packed: Packed) -> Kernel:
    others = unpack_variants(packed)
    return Kernel(Executable(unpack(packed)), None, (lambda k: Kernel(Executable(others[k]))) if others else None)


def _on_llvm(target: Target, fused: Program, modules: Modules) -> Launch:
    from neptune.codegen.llvm_launch import on_llvm

    return on_llvm(fused, modules)


LAUNCHERS["llvm"] = _on_llvm
