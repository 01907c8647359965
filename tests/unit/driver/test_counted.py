"""Templates are chosen by the faster of their forms; where that is refused, they are chosen again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import pytest

import neptune
from neptune.base.choice import Choice
from neptune.driver import passes, pipeline
from neptune.driver.counted import Forms
from neptune.driver.forms import DECIDES, in_vain
from neptune.driver.known import MeasuredForm
from neptune.errors import TargetError, Unsupported
from neptune.forms import forms_of
from neptune.hopper.validate.kernel import on_trial, split_of
from neptune.ir.analysis.forms import cheaper
from neptune.kernel import Kernel
from neptune.ops.cross_entropy import linear_cross_entropy
from neptune.ops.linear import matmul
from neptune.runtime.hopper import accepted
from neptune.tile.ir import TileProgram
from neptune.tune.choose import Scheduled, candidates
from neptune.tune.family import Wishes
from neptune.tune.gains import Asked
from neptune.tune.model.machine import DEFAULT

FAST = "matmul"
HERE = {"m": 256, "n": 256, "k": 8192}
ALL = forms_of("auto")
ROWS = {"rows": 8192, "cols": 32768}


class Fast:
    """A form in which one template takes no time."""

    name = "asynchronous"

    def us(self, template: str, program: TileProgram, at: Sequence[Asked]) -> list[float]:
        return [1.0 if template == FAST else inf for _ in at]


@pytest.fixture
def by_form(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The template FAST has a form that is counted as fast, where another is faster on tiles."""
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    # It is not left out, whatever its real time is.
    monkeypatch.setattr("neptune.hopper.choice.wanted.BEHIND", inf)
    counted = passes._counted
    monkeypatch.setattr(passes, "_counted", lambda w: Fast() if counted(w) is not None else None)


def compiled(form: str | None = "auto", **more: Any) -> Kernel:
    return neptune.compile(matmul(), target="cuda:90", shapes=HERE, form=form, records=False, **more)


def said(kernel: Kernel) -> list[Mapping[str, Any]]:
    return [d for d in kernel.explain(json=True)["decisions"] if d["kind"] in ("template", "form")]


def entropy(forms: Forms | None) -> Scheduled:
    program, _ = cheaper(linear_cross_entropy(depth=4096))
    return next(candidates(program, None, Wishes(ROWS), DEFAULT, forms))


def test_a_loss_of_deep_products_takes_the_template_whose_form_is_faster() -> None:
    plain = entropy(None)
    assert plain.template == "stagewise" and plain.family is not None
    found = entropy(Forms(ALL, Wishes(ROWS), {}, DEFAULT))
    assert found.template == "flash_decoding" and found.by_form and found.family is not None
    assert found.family.us() < plain.family.us()
    # Levers that a caller settles count as well; where none fit, tiles do.
    settled = Forms(ALL, Wishes(ROWS), {"stages": 2, "consumers": 3}, DEFAULT)
    known = entropy(settled).family
    assert known is not None and known.us() > found.family.us()


@pytest.mark.parametrize(
    ("told", "us"),
    [
        (None, 0),
        (MeasuredForm(ROWS, Choice("flash_decoding", {}, "asynchronous"), 3000.0, 4000.0), 3000.0),
        (MeasuredForm(ROWS, Choice("flash_decoding", {}, "asynchronous"), 4000.0, 3000.0), inf),
        (MeasuredForm(ROWS, Choice("flash_attention", {}, "asynchronous"), 3000.0, 4000.0), inf),
        (MeasuredForm({**ROWS, "rows": 64}, Choice("flash_decoding", {}, "asynchronous"), 30.0, 40.0), 0),
    ],
)
def test_what_was_measured_counts_before_predictions(told: MeasuredForm | None, us: float) -> None:
    chosen = entropy(None)
    assert chosen.family is not None
    # Tiles alone have none.
    plain = next(c for c in chosen.family.choices if c.template == "stagewise")
    program, _ = cheaper(matmul())
    tiles = next(candidates(program, None, Wishes(HERE))).tiles
    forms = Forms(ALL, Wishes(), {}, DEFAULT, () if told is None else (told,))
    asked = Asked({**HERE}, {**plain.params, **dict.fromkeys(("GROUP_M",), 8)}, 1e6)
    (predicted,) = Forms(ALL, Wishes(), {}, DEFAULT).us("flash_decoding", tiles, [asked])
    assert 0 < predicted < 1e6
    (found,) = forms.us("flash_decoding", tiles, [asked])
    assert found == predicted, "sizes are other ones"
    assert forms._or_measured("flash_decoding", ROWS, predicted) == (us or predicted)


def test_explain_says_both(by_form: None) -> None:
    plain, kernel = compiled(None), compiled()
    assert plain.build.template != FAST and kernel.build.template == FAST
    assert kernel.executable.artifact.form is not None
    (decides,) = (d for d in said(kernel) if d["verdict"] == DECIDES)
    assert f"{FAST} is predicted to take 1 µs in it, on tiles" in decides["reason"]
    assert plain.build.template in decides["reason"]
    assert "predicted 1.0 µs in the asynchronous form (" in kernel.explain()
    assert not any(d["verdict"] == DECIDES for d in said(plain))


def test_a_form_that_is_refused_is_not_counted_again(by_form: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "made_of", lambda *_: Unsupported("nothing fits"))
    kernel = compiled()
    assert kernel.build.template == compiled(None).build.template
    reasons = [d["reason"] for d in said(kernel) if d["verdict"] == "not taken" and d["subject"] == FAST]
    assert "the form for which it was chosen is refused: nothing fits" in reasons
    with pytest.raises(TargetError, match="nothing fits"):
        compiled("asynchronous")


def test_where_the_form_does_not_run_the_template_of_tiles_does(by_form: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "in_vain", lambda kernel: any(d["verdict"] == DECIDES for d in said(kernel)))
    kernel = compiled()
    assert kernel.build.template == compiled(None).build.template != FAST
    assert compiled("asynchronous").build.template == FAST, "what was asked for stays"


def test_a_verdict_that_refuses_is_told_from_one_that_is_not_there(by_form: None) -> None:
    kernel = compiled()
    artifact = kernel.executable.artifact
    of = artifact.form
    assert of is not None
    on = on_trial(artifact, split_of(artifact)).form
    clean = None if on is None else accepted.read(on.record)
    assert clean is not None

    def with_faults(faults: tuple[str, ...], kernel: Kernel = kernel) -> Kernel:
        record = accepted.written(replace(clean, findings=faults))
        return kernel.keeping(replace(artifact, form=replace(of, record=record)))

    assert not in_vain(with_faults(())) and in_vain(with_faults(("products one by one",)))
    assert not in_vain(kernel.keeping(replace(artifact, form=replace(of, record=None))))
    without = {
        **artifact.explanation,
        "decisions": [d for d in artifact.explanation["decisions"] if d["kind"] != "form"],
    }
    bad = with_faults(("products one by one",)).executable.artifact
    assert not in_vain(kernel.keeping(replace(bad, explanation=without)))
