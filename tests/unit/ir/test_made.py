"""What stages were added for is said by `Stage.made`: names decide nothing."""

from __future__ import annotations

import pytest
import torch

import neptune
from neptune.frontend import builder as nt
from neptune.fusion.schedule import Schedule
from neptune.ir.program import Made, Program, made_as, stages
from neptune.ir.text.parser import parse_program
from neptune.ir.verify import verify
from neptune.verify.exact import check_exact
from tests.tiers import sampled
from tests.unit.fusion.test_split_moments import scheduled

NAMES = [
    ("x", "m", "e", "l", "y"),
    # What rewrites would call their own stages: the first value, the previous one, the factor, the repair, a result.
    ("x_repair", "m", "l_init", "l", "m_direct_1"),
    ("m_prev", "m", "m_rescale", "l", "l_repair"),
    ("y_direct", "m", "m_init", "l", "y_store"),
]


def softmax(names: tuple[str, ...]) -> Program:
    """Softmax whose input and stages are called so."""
    r, n = nt.var("r"), nt.var("n")
    x = nt.placeholder((r, n), "float32", names[0])
    j, k = nt.reduce_axis((0, n), "j"), nt.reduce_axis((0, n), "k")
    m = nt.compute((r,), lambda i: nt.max(x[i, j], axis=j), names[1])
    e = nt.compute((r, n), lambda i, j: nt.exp(x[i, j] - m[i]), names[2])
    s = nt.compute((r,), lambda i: nt.sum(e[i, k], axis=k), names[3])
    return nt.build(nt.compute((r, n), lambda i, j: e[i, j] / s[i], names[4]), name="softmax")


@pytest.mark.parametrize(("names",), sampled([(n,) for n in NAMES], 2), ids=" ".join)
def test_stages_may_be_called_anything(names: tuple[str, ...]) -> None:
    program = softmax(names)
    sch = Schedule(program)
    sch.rolling_update(names[3], sch.loops(names[1])[1])
    verify(sch.program)
    assert check_exact(program, sch.program).accepted
    x = torch.randn(5, 37)
    for template in ("softmax_online", None):
        kernel = neptune.compile(program, template, target="llvm")
        assert torch.allclose(kernel(x), torch.softmax(x, -1), atol=1e-6)


def test_parts_of_stages_that_are_called_like_helpers() -> None:
    """What split_k and write_directly make finds other names."""
    r, n = nt.var("r"), nt.var("n")
    x, j = nt.placeholder((r, n), "float32", "part"), nt.reduce_axis((0, n), "j")
    scaled = nt.compute((r, n), lambda i, j: x[i, j] * 2.0, "s_split")
    total = nt.compute((r,), lambda i: nt.sum(scaled[i, j], axis=j), "s")
    program = nt.build([nt.compute((r,), lambda i: total[i] + 1.0, "s_direct"), total], name="p")
    given = torch.randn(3, 50)
    kernel = neptune.compile(program, "flash_decoding", target="llvm")
    for parts in (1, 3):
        plus, whole = kernel.with_params(NUM_SPLITS=parts)(given)
        assert torch.allclose(whole, given.sum(1) * 2, atol=1e-4) and torch.allclose(plus, whole + 1)


def test_a_wrong_repair_is_found_whatever_the_stages_are_called() -> None:
    names = NAMES[1]
    sch = Schedule(softmax(names))
    sch.rolling_update(names[3], sch.loops(names[1])[1])
    (repair,) = made_as(sch.program.body, "repair", names[3])
    text = str(sch.program)
    wrong = parse_program(text.replace(f"{repair.name}: l[i] = l[i] *", f"{repair.name}: l[i] = l[i] +"))
    assert wrong != sch.program and check_exact(softmax(names), wrong).verdict == "rejected"


def test_what_a_rolling_update_adds() -> None:
    sch = Schedule(softmax(NAMES[0]))
    sch.rolling_update("l", sch.loops("m")[1])
    assert {s.name: s.made for s in stages(sch.program.body)} == {
        "m_prev": Made("previous", "m"),
        "m": None,
        "e_in_j": Made("copy", "e"),
        "m_rescale": Made("factor", "m"),
        "l_repair": Made("repair", "l"),
        "l": None,
        "e": None,
        "y": None,
    }
    assert parse_program(str(sch.program)) == sch.program


def test_a_vector_of_a_part() -> None:
    """y_1 is needed in the parts only: no stage folds it for the whole."""
    made = {s.name: s.made for s in stages(scheduled("layer_norm_linear").program.body)}
    assert "y_1" not in made and made["y_1_split"] == Made("moment", "y_split")
    assert (made["y_2"], made["y_2_split"]) == (Made("moment", "y"), Made("part", "y_2"))


def test_what_parts_are_of() -> None:
    sch = Schedule(softmax(NAMES[0]))
    sch.split_k(sch.loops("l")[1], 4)
    made = {s.name: s.made for s in stages(sch.program.body) if s.made is not None}
    assert made == {
        "m_split": Made("part", "m"),
        "e_split": Made("element", "e"),
        "l_split": Made("part", "l"),
    }
