"""Programs of several kernels: those that have the form take it, the others stay on tiles, and all compute the same."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch

from neptune.errors import Unsupported
from neptune.forms import Source
from neptune.hopper.bodies.write import role_bodies
from neptune.hopper.derive import Derived, derived, form_of, with_bodies
from neptune.hopper.emulate import load
from neptune.hopper.ir import Levers
from neptune.hopper.protocol.check import check
from neptune.hopper.protocol.trials import trials
from neptune.ops.shipped import OPERATORS
from neptune.tile.ir import TileProgram
from neptune.verify.pieces import check as exact
from tests.examples.walks import tiles_of

HALF = 1e-3
"""Of results in float16, an operand of which was rounded to it between two kernels."""
M, N, K, RANK = 200, 136, 72, 16
SMALL = {"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}
NO_PRODUCT = "it has no product of matrices"


@cache
def tiles(name: str) -> TileProgram:
    return tiles_of(name, "stagewise")[1]


@cache
def form(name: str) -> Derived:
    """With tiles that a small call has several of."""
    program = tiles(name)
    with_products = [p.kernel.name for p in derived(Source(program)).parts]
    return form_of(program, {n: Levers(2, 2, "stride", tiles=SMALL) for n in with_products})


def half(*shape: int) -> torch.Tensor:
    return torch.randn(shape).half()


def lora(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return x @ w.mT + (x @ a.mT) @ b.mT


def rms(x: torch.Tensor, g: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * (x.square().mean(1, keepdim=True) + 1e-6).rsqrt() * g) @ w


def normalised(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(1, keepdim=True) + 1e-12).sqrt() @ w


CASES: dict[str, tuple[list[tuple[int, ...]], Callable[..., torch.Tensor], list[str]]] = {
    "lora_linear": ([(M, K), (N, K), (RANK, K), (N, RANK)], lora, ["c", "h_cast", "y"]),
    "rms_norm_linear": ([(M, K), (K,), (K, N)], rms, ["y"]),
    "l2_normalise_matmul": ([(M, K), (K, N)], normalised, ["y"]),
}


@pytest.mark.parametrize("order", ["late", "random", "eager"])
@pytest.mark.parametrize("name", CASES)
def test_the_whole_program_runs(name: str, order: str) -> None:
    shapes, exact_of, kernels = CASES[name]
    made = form(name)
    assert [p.kernel.name for p in made.parts] == [f"{name}_{k}_kernel" for k in kernels]
    torch.manual_seed(1)
    inputs = [half(*s) for s in shapes]
    out = torch.full((M, N), torch.nan).half()
    load(made.text.text, seed=3, order=order)[name](*inputs, out)
    wanted = exact_of(*(x.double() for x in inputs))
    assert not out.isnan().any()
    assert (out.double() - wanted).norm() < HALF * wanted.norm()


def test_what_one_kernel_wrote_comes_in_bulk_to_the_next() -> None:
    """The normalised rows are as long as a size: a call looks at them as at its tensors, and they have a ring."""
    made = form("rms_norm_linear")
    (part,) = made.parts
    assert [(r.name, r.tensor, r.own) for r in part.kernel.rings] == [("z", "z", True), ("w", "w", False)]
    assert made.text.aligned == ("w", "y", "z") and "z_desc = described(z, [64, 32], gl.float16)" in made.text.text


def test_the_levers_are_of_each_kernel() -> None:
    """Kernels of one module with other tiles, stages and consumers have constants of their own."""
    name = "lora_linear"
    chosen = [
        Levers(2, 3, "stride", tiles={**SMALL, "BLOCK_N": 128}),
        Levers(3, 2, "once", tiles=SMALL),
        Levers(2, 2, "table", tiles={**SMALL, "BLOCK_N": 32}),
    ]
    kernels = [k.name for k in tiles(name).kernels]
    made = form_of(tiles(name), dict(zip(kernels, chosen, strict=True)))
    assert [(p.levers["consumers"], p.levers["stages"]) for p in made.parts] == [(2, 3), (3, 2), (2, 2)]
    text = made.text.text
    for line in ("C_BLOCK_N = gl.constexpr(128)", "Y_BLOCK_N = gl.constexpr(32)", "H_CAST_CONSUMERS = gl.constexpr(3)"):
        assert line in text
    names = [t.id for s in ast.parse(text).body if isinstance(s, ast.Assign) for t in s.targets if hasattr(t, "id")]
    assert len(names) == len(set(names))
    shapes, exact_of, _ = CASES[name]
    inputs = [half(*s) for s in shapes]
    out = torch.full((M, N), torch.nan).half()
    load(text, order="late")[name](*inputs, out)
    wanted = exact_of(*(x.double() for x in inputs))
    assert (out.double() - wanted).norm() < HALF * wanted.norm()


def test_the_tables_of_two_kernels_are_two() -> None:
    kernels = [k.name for k in tiles("lora_linear").kernels]
    levers = Levers(2, 2, "table", tiles=SMALL)
    made = form_of(tiles("lora_linear"), dict.fromkeys(kernels, levers))
    keys = [line.strip() for line in made.text.text.splitlines() if line.strip().startswith('key = ("')]
    assert len(set(keys)) == len(keys) == 3


@pytest.mark.parametrize("kernel", ["c", "h_cast", "y"])
def test_the_protocol_of_each_kernel_is_checked(kernel: str) -> None:
    """A wait that is dropped in one of them is found, and by its launches alone."""
    made = form("lora_linear")
    text, function = made.text.text, f"lora_linear_{kernel}_consumer"
    at = text.index(f"def {function}(")
    line = next(x for x in text[at:].splitlines() if "mbarrier.wait(" in x)
    broken = text[:at] + text[at:].replace(f"{line}\n", "", 1)
    programs = {p.kernel.name: p.kernel for p in made.parts}
    for name, of in programs.items():
        report = check(broken, trials(tiles("lora_linear"), of, alone=True))
        assert report.ok == (name != f"lora_linear_{kernel}_kernel"), str(report)
        assert not report.unreached or not report.ok


def test_what_breaks_alone_stays_on_tiles() -> None:
    """One kernel compiles to what will not do, in every form: the others keep the form."""
    bad = "lora_linear_h_cast_kernel"
    found = derived(Source(tiles("lora_linear")), broken=lambda f: {bad: "8 bytes are spilled"})
    assert [p.kernel.name for p in found.parts] == ["lora_linear_c_kernel", "lora_linear_y_kernel"]
    assert found.left == {bad: "what it compiles to is refused: 8 bytes are spilled"}
    assert "def lora_linear_h_cast_kernel(" in found.text.text and "BLOCK_M" in found.text.takes
    shapes, exact_of, _ = CASES["lora_linear"]
    inputs = [half(*s) for s in shapes]
    out = torch.full((M, N), torch.nan).half()
    load(found.text.text)["lora_linear"](*inputs, out)
    wanted = exact_of(*(x.double() for x in inputs))
    assert (out.double() - wanted).norm() < HALF * wanted.norm()


def test_a_kernel_is_named_once() -> None:
    """Queries that are turned where they are read, five tiles of 64 rows and 128 columns, leave no room for a form."""
    refused = derived(Source(tiles_of("rope_attention", "flash_attention")[1]))
    assert isinstance(refused, Unsupported)
    assert "no product of matrices; attention_o_kernel: no tile sizes" in str(refused)
    assert str(refused).count("attention_o_kernel") == 1


def test_where_none_has_the_form_each_says_why() -> None:
    refused = derived(Source(tiles("rms_linear")))
    assert isinstance(refused, Unsupported)
    assert re.search(r"none of its 2 kernels has it: .*r_kernel: it has no pr.*y_kernel: .*float32", str(refused))


def test_walks_are_checked_with_tiles_of_their_own() -> None:
    """Each walk on top of the ones before, in one program; its tiles are other tunables than those of other kernels."""
    program = tiles("lora_linear")
    seen: list[TileProgram] = []

    def differs(made: TileProgram) -> str | None:
        seen.append(made)
        report = exact(OPERATORS["lora_linear"](), made, draws=2)
        return None if report.verdict == "accepted" else str(report)

    made = program
    for kernel in program.kernels:
        made = with_bodies(made, role_bodies(program, kernel, Levers(tiles=SMALL)), differs)
    assert len(seen) == 3 and [k.name for k in made.kernels] == [k.name for k in program.kernels]
    own = {t.name for t in made.tunables} - {t.name for t in program.tunables}
    assert len(own) == 7, own


def test_a_wrong_walk_is_refused_with_its_kernel() -> None:
    program = tiles("lora_linear")
    walked = role_bodies(program, program.kernels[2], Levers(tiles=SMALL))
    assert walked.symbolic is not None
    wrong = replace(walked, symbolic=replace(walked.symbolic, body=walked.symbolic.body[:-1]))

    def differs(made: TileProgram) -> str | None:
        report = exact(OPERATORS["lora_linear"](), made, draws=2)
        return None if report.verdict == "accepted" else "it does not write y"

    refused = with_bodies(program, wrong, differs)
    assert isinstance(refused, Unsupported) and "another order of its tiles is another function" in str(refused)
    assert refused.where == "lora_linear_y_kernel"
