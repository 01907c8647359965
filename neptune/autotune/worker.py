"""The child that compiles, checks and times candidates: `python -m neptune.autotune.worker`, one request at a time.

    {"do": "device",  "case": FILE}                                    → {"device": "H200"}
    {"do": "trust",   "case": FILE}                                    → {"unfused": [[total, row], …], "wrong": ""}
    {"do": "compile", "case": FILE, "kernel": PACKED}                  → {}
    {"do": "measure", "case": FILE, "kernel": PACKED, "unfused": …}    → {"us": […], "clocks": {…}} | {"wrong": "…"}
    {"do": "time",    "case": FILE, "kernel": PACKED}                  → {"us": […], "clocks": {…}}

Both of the last answer {"refused": "…"} for another form than tiles that does not run: then the Triton form would be
measured in its place.

A case is a JSON file: the program, sizes, tensors and the timer. `memory` in an answer says that memory was short,
`error` what else went wrong; then the parent ends this process. It may hang or die at any request, and ends with its
parent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from neptune.autotune.reference import Unfused, differs, grown, small, smaller, trusted
from neptune.autotune.timer import Timer, made
from neptune.driver.forms import with_verdict
from neptune.ir.text.parser import parse_program
from neptune.kernel import Kernel
from neptune.runtime.artifact import Packed, unpack
from neptune.runtime.bench import drawn, poisoned
from neptune.runtime.executable import Executable
from neptune.runtime.launching import launch
from neptune.runtime.processes.worker import Json, first_line, serve_alone
from neptune.verify.numerics import Errors

SHARE = 2
"""Of the free memory one part in so many may hold the reference's temporaries."""


class Case:
    """One program at some sizes, with the arguments of its calls and what they give."""

    def __init__(self, file: Path) -> None:
        fields = json.loads(file.read_text())
        self.program, self.sizes = parse_program(fields["loops"]), dict(fields["sizes"])
        self.timer: Timer = made(fields["timer"], fields["options"])
        self._tensors, self._scalars, self._reference = fields["tensors"], fields["scalars"], fields["reference"]
        self._kept = file.with_suffix(".pt")

    @cached_property
    def args(self) -> list[Any]:
        """The arguments that are timed: the caller's own, or drawn."""
        if self._tensors is None:
            return drawn(self.program, self.sizes, self.timer.device)
        own = torch.load(self._tensors, weights_only=True, map_location=self.timer.device)
        return [*own, *self._scalars]

    @cached_property
    def reference(self) -> Kernel:
        return kernel_of(self._reference)

    @cached_property
    def compared(self) -> dict[str, int]:
        """The sizes at which candidates are compared: the case's, or the largest at which the reference fits."""
        sizes: dict[str, int] = self.sizes
        while self.reference.workspace(**sizes) > self.timer.room() // SHARE:
            less = smaller(self.program, sizes)
            if less is None:
                return sizes
            sizes = less
        return sizes

    @cached_property
    def data(self) -> list[Any]:
        """The arguments on which candidates are compared."""
        return self.args if self.compared == self.sizes else drawn(self.program, self.compared, self.timer.device)

    @cached_property
    def wanted(self) -> list[torch.Tensor]:
        """What the reference gives on them; kept in a file, since this process may end at any time."""
        if self._kept.exists():
            return list(torch.load(self._kept, weights_only=True, map_location=self.timer.device))
        out = self._called(self.reference, self.data, self.compared)
        part = self._kept.with_suffix(f".{os.getpid()}")
        torch.save(out, part)
        part.replace(self._kept)
        return out

    def trust(self) -> Json:
        """Compare the reference with the expression, and have its results at hand."""
        unfused, wrong = trusted(
            self.program, self.sizes, self.timer.device, lambda args, out: self.timer.run(self.reference, args, out)
        )
        if not wrong:
            _ = self.wanted
        return {"unfused": [list(e) for e in unfused], "wrong": wrong}

    def wrong(self, kernel: Kernel, unfused: Unfused) -> str:
        """What is wrong with the results of a kernel, "" where they agree with the reference."""
        allowed = grown(unfused, self.compared, small(self.program, self.sizes))
        outs = self._called(kernel, self.data, self.compared)
        for b, out, wanted, e in zip(self.program.outputs, outs, self.wanted, allowed, strict=True):
            if why := differs(b, out, wanted, e):
                return why
        if self.data is not self.args and not any(bool(w.float().isnan().any()) for w in self.wanted):
            for b, out in zip(self.program.outputs, self._called(kernel, self.args, self.sizes), strict=True):
                if bool(out.float().isnan().any()):
                    return f"`{b.name}` has elements that are not written, or NaN"
        return ""

    def time(self, kernel: Kernel) -> Json:
        """Microseconds of some calls, with clocks."""
        us = self.timer.time(kernel, self.args)
        return {"us": us, "clocks": dict(self.timer.clocks())}

    def _called(self, kernel: Kernel, args: list[Any], sizes: Mapping[str, Any]) -> list[torch.Tensor]:
        out = poisoned(self.program, sizes, self.timer.device)
        self.timer.run(kernel, args, out)
        return out


def kernel_of(packed: Json) -> Kernel:
    """A kernel that the parent has packed."""
    return Kernel(Executable(unpack(Packed(packed["manifest"], packed["files"]))))


def judged(kernel: Kernel, calls: Iterable[Sequence[Any]]) -> tuple[Kernel, str]:
    """A candidate with the verdict on its other form, if it has one, and why one of the calls (arguments of each) would
    not run that form; "" where all do."""
    form = kernel.executable.artifact.form
    if form is None:
        return kernel, ""
    if form.record is None:
        # Made on a machine without this GPU.
        kernel = with_verdict(kernel, forced=True)
    executable, present = kernel.executable, launch.gpu_target()
    if present is None or not launch.runs_other(executable.modules, present):
        faults = () if executable.artifact.form is None else executable.artifact.form.faults
        return kernel, f"the {form.name} form is refused: {'; '.join(faults or ()) or 'it has no verdict here'}"
    for args in calls:
        call = executable.signature.bind(args)
        module_form = executable.modules.form([*call.inputs, *call.outputs], call.scalars, present.loads, other=True)
        if module_form.loads != form.name:
            return kernel, f"the {form.name} form does not take these tensors: not all are {form.wants}"
    return kernel, ""


class Session:
    """What this process holds: the case of the last request."""

    def __init__(self) -> None:
        self._file = ""
        self._case: Case | None = None

    def case(self, file: str) -> Case:
        """The case of a file; that of another one is let go first."""
        if self._case is None or file != self._file:
            self._case = None
            self._file, self._case = file, Case(Path(file))
        return self._case

    def handle(self, header: Json, _body: bytes) -> tuple[Json, bytes]:
        try:
            return self._answer(header), b""
        except (torch.OutOfMemoryError, MemoryError) as error:
            return {"memory": first_line(error)}, b""
        except Exception as error:
            return {"error": first_line(error)}, b""

    def _answer(self, header: Json) -> Json:
        case = self.case(header["case"])
        if header["do"] == "device":
            return {"device": case.timer.name()}
        if header["do"] == "trust":
            return case.trust()
        kernel = kernel_of(header["kernel"])
        if header["do"] == "compile":
            case.timer.compile(kernel, case.sizes)
            return {}
        calls = (case.args, case.data) if header["do"] == "measure" else (case.args,)
        kernel, why = judged(kernel, calls)
        if why:
            return {"refused": why}
        if header["do"] == "measure":
            wrong = case.wrong(kernel, [Errors(*e) for e in header["unfused"]])
            if wrong:
                return {"wrong": wrong}
        return case.time(kernel)


if __name__ == "__main__":
    serve_alone(Session().handle)
