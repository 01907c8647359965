"""Parameters of a form stand among those of tiles, by their own names where nothing else can have them."""

from __future__ import annotations

import warnings

import pytest

import neptune
from neptune.driver import loud
from neptune.driver.forms import in_two
from neptune.errors import ScheduleError, TargetError
from neptune.forms import AUTO, FORMS, forms_of
from neptune.ops.linear import matmul
from neptune.tune.choose import lowered, shipped_templates


def levers(kernel: neptune.Kernel) -> dict[str, object]:
    form = kernel.executable.artifact.form
    assert form is not None
    return dict(form.levers)


def compiled(**more: object) -> neptune.Kernel:
    return neptune.compile(matmul(), **{"template": "matmul", "target": "cuda:90", "form": "asynchronous"} | more)


def test_bare_and_qualified_names_are_one_parameter() -> None:
    bare = levers(compiled(params={"BLOCK_N": 128, "consumers": 2, "stages": 3}))
    full = levers(compiled(params={"BLOCK_N": 128, "asynchronous.consumers": 2, "asynchronous.stages": 3}))
    assert bare == full and (bare["consumers"], bare["stages"], bare["BLOCK_N"]) == (2, 3, 128)


def test_the_former_name_serves_and_is_said_once() -> None:
    loud.say_of_levers.cache_clear()
    with pytest.warns(FutureWarning, match="params=.*consumers") as said:
        old = compiled(levers={"consumers": 2})
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert levers(compiled(levers={"consumers": 2})) == levers(old) == levers(compiled(params={"consumers": 2}))


def test_a_template_of_the_callers_may_have_such_a_name() -> None:
    @neptune.template(stages=[64, 128])
    def tiled(sch: neptune.Schedule, stages: object) -> None:
        sch.tile(sch.loops("y"), [stages, stages])

    assert in_two({"stages": 64, "asynchronous.stages": 3}, None, AUTO, tiled) == ({"stages": 64}, {"stages": 3})
    # What a plain function declares is not known before it runs.
    given = {"stages": 64, "asynchronous.stages": 3}
    assert in_two(given, None, AUTO, lambda sch: None) == ({"stages": 64}, {"stages": 3})


def test_no_shipped_template_has_such_a_name() -> None:
    """So that bare names mean one thing there."""
    own = {n for f in forms_of(AUTO) for n in f.levers}
    assert own and not any(n.partition(".")[0] in FORMS for n in own)
    for name in shipped_templates():
        try:
            found = lowered(name, matmul(), strict=False).tiles.tunables
        except ScheduleError:
            continue
        assert own.isdisjoint(t.name for t in found), name


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"consumers": 4}, "consumers is not 4"),
        ({"consumers": True}, "consumers is not True"),
        ({"asynchronous.warps": 2}, "there is no parameter 'warps'"),
        ({"stages": 3, "asynchronous.stages": 4}, "it is 3, too"),
    ],
)
def test_values_that_are_none_are_refused(params: dict[str, int], said: str) -> None:
    with pytest.raises(TargetError, match=said):
        compiled(params=params)


def test_they_are_refused_where_the_form_is_not_asked_for() -> None:
    with pytest.raises(TargetError, match="parameter of the asynchronous form"):
        compiled(form="triton", params={"consumers": 2})
    assert neptune.compile(matmul(), "matmul", target="cuda:90", form="triton").executable.artifact.form is None
