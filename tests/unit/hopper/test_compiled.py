"""Gluon kernels compiled without a GPU, and the linter over their machine code.

These are the hand-written attention, and the same with a miscompile in it that no compiler warns of.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from neptune.errors import TargetError
from neptune.hopper.validate.compile import compile_gluon
from neptune.hopper.validate.registers import access, is_product, product
from neptune.hopper.validate.sass import lint
from neptune.runtime.machine_code.listing import functions
from tests.unit.hopper.compiling import built, kernel, text
from tests.work import calls

CASES = [(64, False), (64, True), (128, False), (128, True), (256, False), (256, True)]
QUICK = [c if c in ((64, False), (128, True), (256, True)) else pytest.param(*c, marks=pytest.mark.slow) for c in CASES]


@pytest.mark.parametrize(("depth", "causal"), QUICK)
def test_the_hand_written_kernels_are_clean(depth: int, causal: bool) -> None:
    made = built(depth, causal)
    found = made.lint
    assert not found.findings
    assert (made.spill_bytes, found.local, made.warnings) == (0, 0, ())
    # Two products back to back in the loop, and one left in flight under the softmax.
    assert found.in_flight == 2 and found.exps > 0
    # At depth 64 a pin keeps all exponentials under the product of values.
    assert depth > 64 or found.overlapped == found.exps
    assert found.producers == (24,)
    # What the last allocation leaves to the first consumer is a little more.
    assert found.consumers == ((160, 168) if depth == 64 else (240,))


def test_resources_and_forms() -> None:
    made = built(128, True)
    # Two tiles of q and of the result, two stages of k and v; 2 + 4 · 2 barriers.
    tiles = 2 * (2 * 2 * 64 * 128 + 2 * 2 * 128 * 128)
    assert tiles <= made.shared_bytes < tiles + 1024
    assert made.mbarriers == 10 and made.registers == 168
    assert "ttng.warp_group_dot" in made.asm("ttgir") and "wgmma.mma_async" in made.asm("ptx")
    assert "HGMMA" in made.asm("sass")


@pytest.mark.parametrize(
    "depth", [128, pytest.param(64, marks=pytest.mark.slow), pytest.param(256, marks=pytest.mark.slow)]
)
def test_a_product_carried_around_the_loop_is_found(depth: int) -> None:
    made = built(depth, wrong=True)
    # Nothing else says that this is wrong: it is so on the GPU, now and then.
    assert (made.spill_bytes, made.warnings) == (0, ())
    assert made.lint.overlapped == made.lint.exps
    findings = made.lint.findings
    assert len(findings) > 50 and all("left operand" in f.what for f in findings)
    assert {f.instruction.split(".")[0].split()[0] for f in findings} >= {"FFMA", "MUFU"}


def test_a_write_planted_into_clean_code_is_found() -> None:
    """At every line between a product with its left operand in registers and its wait, and at none outside."""
    lines = built(128, True).sass.splitlines()
    products = [i for i, line in enumerate(lines) if re.search(r"HGMMA\S* R\d+, R\d+, gdesc", line)]
    last = next(i for i in products if "gsb0" in lines[i])
    left = re.findall(r"R(\d+)", lines[last])[1]
    wait = next(i for i in range(last, len(lines)) if "DEPBAR.LE gsb0, 0x0" in lines[i])
    planted = f"        /*fff0*/                   FFMA R{left}, R0, R0, R0 ;"
    for at, bad in ((last + 1, True), ((last + wait) // 2, True), (wait, True), (wait + 1, False), (last - 40, None)):
        (found,) = lint("\n".join([*lines[:at], planted, *lines[at:]]))
        if bad is not None:
            assert bool(found.findings) == bad
        assert {f.address for f in found.findings} <= {0xFFF0}


def test_it_takes_no_time() -> None:
    """A tenth of a second for a kernel: 30 calls a line."""
    sass = built(64, False).sass
    assert calls(lambda: lint(sass)) < 60 * len(sass.splitlines())


@pytest.mark.parametrize("depth", [128, pytest.param(64, marks=pytest.mark.slow)])
def test_registers_are_those_of_the_disassembler(depth: int, tmp_path: Path) -> None:
    """nvdisasm knows what each instruction writes (^, x) and reads (v, x): our tables are held against that."""
    made = built(depth, depth == 128)
    path = tmp_path / "kernel.cubin"
    path.write_bytes(made.cubin)
    command = [made.disassembler, "-c", "-plr", "-lrm", "narrow", str(path)]
    drawn = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    ruler = next(line.rpartition("// |")[2] for line in drawn if "# 0123" in line)
    marks = {}
    for line in drawn:
        code, _, right = line.rpartition("// |")
        if found := re.match(r"\s+/\*([0-9a-f]+)\*/", code):
            cells = right[ruler.index("# 0") + 2 :].split("|")[0]
            marks[int(found[1], 16)] = tuple(sum(1 << i for i, c in enumerate(cells) if c in of) for of in ("vx", "^x"))
    (f,) = functions(made.sass)
    assert len(marks) > 2000
    for op in f.code:
        # Padding has no marks.
        reads, writes = marks.get(op.address, (0, 0))
        if is_product(op):
            p = product(op)
            assert p is not None and p.accumulator == writes and not p.left & ~reads
        elif not op.opcode.startswith("BRX"):
            a = access(op)
            assert a is not None, f"{op} is not known"
            assert a.writes == writes, op
            assert not reads & ~a.reads, op


def test_a_kernel_that_does_not_compile_is_a_target_error() -> None:
    wrong = text().replace("total = gl.sum(sums, 1)", "total = gl.sum(nowhere, 1)")
    with pytest.raises(TargetError) as e:
        compile_gluon(wrong, *kernel(64))
    # It names the place in the role that is called, not just the call.
    assert "attention_kernel" in str(e.value) and "fewer stages" in str(e.value)
    assert "nowhere is not defined" in str(e.value)
    assert len(str(e.value).splitlines()) < 20
