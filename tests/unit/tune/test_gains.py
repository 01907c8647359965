"""Another form counts where templates are compared, by the time that it is predicted to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import inf

import numpy as np
import pytest

from neptune.ops.linear import matmul
from neptune.runtime.family import pick
from neptune.tile.ir import TileProgram
from neptune.tune.choose import Scheduled, candidates
from neptune.tune.family import Wishes
from neptune.tune.gains import CLOSE, NONE, WITHIN, Asked, Counted, Gain
from neptune.tune.model.machine import DEFAULT

HERE = {"m": 1024, "n": 1024, "k": 16384}


@dataclass
class Form:
    """A form that takes so much of the time of the fastest template on tiles."""

    of: Mapping[str, float]
    best: float
    asked: list[tuple[str, int]] = field(default_factory=list)
    name: str = "other"

    def us(self, template: str, program: TileProgram, at: Sequence[Asked]) -> list[float]:
        self.asked.append((template, len(at)))
        return [self.of[template] * self.best if template in self.of else inf for _ in at]


def chosen(form: Form | None, typical: Mapping[str, int]) -> Scheduled:
    return next(candidates(matmul(), None, Wishes(typical), DEFAULT, form))


@cache
def on_tiles() -> dict[str, float]:
    found = chosen(None, HERE).family
    assert found is not None
    return dict(found.others)


@pytest.mark.parametrize(
    ("of", "template", "by_form"),
    [
        ({}, "matmul", False),
        ({"matmul": 0.8}, "matmul", False),
        ({"matmul_split": 0.8}, "matmul_split", True),
        ({"matmul_split": 1.01}, "matmul", False),
        ({"matmul_split": 0.99}, "matmul", False),
        ({"matmul": 0.8, "matmul_split": 0.7}, "matmul_split", True),
        ({"matmul": 0.8, "matmul_split": 0.79}, "matmul", False),
        ({"stagewise": 0.9, "matmul_split": 0.8}, "matmul_split", True),
    ],
)
def test_the_faster_form_of_a_template_counts(of: Mapping[str, float], template: str, by_form: bool) -> None:
    best = min(on_tiles().values())
    found = chosen(Form(of, best), HERE)
    assert (found.template, found.by_form) == (template, by_form)
    assert found.family is not None and found.family.counted is not None
    # What it is chosen by is the time of the faster form, and explain() says of which, and what tiles take.
    faster = min(of.get(template, inf) * best, on_tiles()[template])
    assert found.family.us() == pytest.approx(faster)
    (why,) = (d.reason for d in found.decisions if (d.subject, d.verdict) == (template, "chosen"))
    said = f"predicted {faster:.1f} µs in the other form ({on_tiles()[template]:.0f} µs on tiles)"
    assert why.startswith(said) == ("µs on tiles" in why.partition(";")[0]) == (faster < on_tiles()[template])
    # What takes its place on tiles is never faster than what is chosen.
    assert min(found.family.others.values()) == pytest.approx(found.family.us())


def test_only_templates_that_could_come_first_are_asked() -> None:
    best = min(on_tiles().values())
    form = Form({}, best)
    chosen(form, HERE)
    near = {n for n, us in on_tiles().items() if us <= WITHIN * best}
    assert {n for n, _ in form.asked} == near and near < set(on_tiles())
    # A fast form leaves less room for others.
    fast = Form({"matmul": 0.5}, best)
    chosen(fast, HERE)
    assert {n for n, _ in fast.asked} == {"matmul"}


def test_what_has_no_rival_is_not_asked() -> None:
    form = Form({"matmul": 0.5}, 1.0)
    found = next(candidates(matmul(), None, Wishes(HERE, params={"NUM_SPLITS": 4}), DEFAULT, form))
    assert found.template == "matmul_split" and form.asked == []


def test_a_form_of_the_fastest_changes_no_value_of_its_parameters() -> None:
    plain, found = chosen(None, HERE).family, chosen(Form({"matmul": 0.7}, min(on_tiles().values())), HERE).family
    assert plain is not None and found is not None
    assert [c.params for c in plain.choices] == [c.params for c in found.choices]


def test_at_few_sizes_it_decides_for_those_near() -> None:
    """A family is for all sizes: it takes the template with the form where that was said to be faster."""
    form = Form({"matmul_split": 0.5}, min(on_tiles().values()))
    found = chosen(form, {})
    assert found.by_form and found.family is not None
    assert found.family.choices[pick(found.family.tree, HERE)].template == "matmul_split"
    assert all(count <= 6 for _, count in form.asked)
    few = {"m": 1024, "n": 1024, "k": 1024}
    plain = chosen(None, {}).family
    assert plain is not None
    assert found.family.choices[pick(found.family.tree, few)].template == plain.choices[pick(plain.tree, few)].template


def test_a_gain_fades_with_distance() -> None:
    gain = Gain(({"m": 4096}, {"m": 64}), (0.5, 1.0))
    here, twice, far, there = gain.factors([{"m": 4096}, {"m": 8192}, {"m": 1 << 22}, {"m": 64}])
    assert here == 0.5 < twice < far < 1 and there == 1
    assert (NONE.factors([{"m": 1}, {"m": 2}]) == np.ones(2)).all()


def test_which_form_decides() -> None:
    known = Counted("other", {"a": 5.0, "b": 8.0}, {"a": 12.0, "b": 10.0})
    assert known.decides("a") and not known.decides("b") and not known.decides("c")
    assert CLOSE > 1
