"""What may be tried: every template that applies, every combination that fits, in the model's order."""

from __future__ import annotations

from functools import cache

import pytest

import neptune
from neptune.autotune.rounds import neighbours
from neptune.autotune.space import Form, Trial, forms_of, predicted, trials
from neptune.base.choice import Choice
from neptune.errors import ScheduleError
from neptune.ops.attention import operator
from neptune.ops.softmax import softmax
from neptune.tune.model.machine import BY_ARCH
from neptune.tune.parts import parts_of
from neptune.tune.rank import ranked

H = BY_ARCH["sm_90"]
DECODE = {"batch": 1, "s_kv": 8192}


@cache
def decode() -> tuple[Form, ...]:
    program = operator("decode_gqa")
    return forms_of(program, None, lambda t: neptune.compile(program, t, target="llvm"))


def test_trials_are_in_the_models_order_and_each_there_once() -> None:
    found = trials(decode(), DECODE, H, numbers=False)
    assert {"flash_attention", "flash_decoding", "stagewise"} <= {t.template for t in found}
    assert [t.us for t in found] == sorted(t.us for t in found) and len({t.choice for t in found}) == len(found) > 100
    for form in decode():
        own = {t.choice: t.us for t in found if t.template == form.template}
        order = ranked(form.tiles, DECODE, H)
        if not order:
            assert not own
            continue
        best = order[0]
        assert own[Choice(form.template, best.params)] == pytest.approx(best.prediction.us)
        # Near equals are ordered by registers there.
        assert best.prediction.us <= 1.02 * min(own.values())


def test_what_does_not_fit_is_no_trial() -> None:
    found = trials(decode(), DECODE, H)
    most = {"BLOCK_M": 128, "BLOCK_N": 128, "num_warps": 4, "num_stages": 4}
    (large,) = predicted(decode()[0], [{**found[0].params, **most}], DECODE, H)
    assert large.us == float("inf") and large.choice not in {t.choice for t in found}


def test_given_values_stay_and_only_what_takes_them_is_tried() -> None:
    found = trials(decode(), DECODE, H, {"NUM_SPLITS": 8, "num_warps": 8})
    assert {t.template for t in found} == {"flash_decoding"}
    assert all(t.params["NUM_SPLITS"] == 8 and t.params["num_warps"] == 8 for t in found)
    with pytest.raises(ScheduleError, match="no such parameter"):
        trials(decode(), DECODE, H, {"BLOCK_Q": 8})


def test_numbers_of_parts_are_tried_where_launches_choose_them() -> None:
    """Around what the model's rule gives, none of them with an empty part; what a launch chooses has no number."""
    found = [t for t in trials(decode(), DECODE, H) if t.template == "flash_decoding"]
    plain = [t for t in found if "NUM_SPLITS" not in t.params]
    assert [t.choice for t in plain] == [t.choice for t in trials(decode(), DECODE, H, numbers=False) if t in plain]
    assert not any("NUM_SPLITS" in t.params for t in trials(decode(), DECODE, H, numbers=False))
    (form,) = (f for f in decode() if f.template == "flash_decoding")
    (rule,) = parts_of(form.tiles)
    for t in plain:
        usual = rule.default({**DECODE, **t.params}, H.processors)
        others = (o for o in found if o.params.keys() - t.params.keys() and t.params.items() <= o.params.items())
        tried = {o.params["NUM_SPLITS"]: o for o in others}
        steps = DECODE["s_kv"] // t.params["BLOCK_N"]
        assert usual not in tried and min(tried) < usual and (max(tried) > usual or usual == steps)
        assert all(1 <= n <= steps and (n - 1) * -(-steps // n) < steps for n in tried)
        # The model says what each takes, not what the usual one does.
        assert len({o.us for o in tried.values()} | {t.us}) == len(tried) + 1
        (usual_one,) = predicted(form, [{**t.params, "NUM_SPLITS": usual}], DECODE, H)
        assert usual_one.us == pytest.approx(t.us)
        assert all(neighbours(t, o) and neighbours(o, t) for o in tried.values())
    wider = {**plain[0].params, "num_warps": plain[0].params["num_warps"] * 2, "NUM_SPLITS": 8}
    assert not neighbours(plain[0], Trial(Choice("flash_decoding", wider), 1.0))


def test_a_named_template_alone_or_what_is_wrong_with_it() -> None:
    program = softmax()
    (form,) = forms_of(program, "softmax_row", lambda t: neptune.compile(program, t, target="llvm"))
    assert form.template == "softmax_row" and form.kernel().params.keys() >= {"num_warps"}
    with pytest.raises(ScheduleError, match="softmax_row"):
        forms_of(program, "nothing", lambda t: neptune.compile(program, t, target="llvm"))
