"""The pipeline: what is taken, what is refused with which words, and that the checks can say no."""

from __future__ import annotations

import gc
import re
from dataclasses import replace

import pytest
import torch

import neptune
from neptune.driver import passes
from neptune.driver import pipeline as compiler
from neptune.driver.pipeline import compile, compile_scheduled
from neptune.driver.stages import Differs
from neptune.errors import (
    ExpressionError,
    FusionError,
    InternalError,
    RecordError,
    ScheduleError,
    ShapeError,
    TargetError,
)
from neptune.frontend.builder import compute, placeholder, reduce_axis, var
from neptune.frontend.builder import sum as total
from neptune.fusion.schedule import Schedule
from neptune.ir.expr import Const
from neptune.ops.attention import prefill_causal, prefill_global
from neptune.ops.linear import matmul
from neptune.ops.softmax import figure1, softmax
from neptune.schedule.trace import trace_from_json, trace_to_json
from neptune.tile import pipeline as tile_pipeline
from neptune.tune import choose
from neptune.tune.choose import shipped_template
from neptune.verify.exact import Counterexample
from tests.examples import te_examples
from tests.examples.kernel_examples import rows_apart, rows_fused, rows_program


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    for name in ("NEPTUNE_TARGET", "NEPTUNE_VERIFY", "NEPTUNE_DUMP"):
        monkeypatch.delenv(name, raising=False)


def compiled(**options):
    return neptune.compile(rows_program(), rows_fused, **{"target": "llvm", **options})


@pytest.mark.parametrize("own", [False, True])
def test_the_callers_objects_are_left_out_of_collections_for_a_compilation_alone(own, tmp_path, monkeypatch):
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    of_tests = gc.get_freeze_count()
    gc.freeze() if own else gc.unfreeze()
    before, seen = gc.get_freeze_count(), []

    def template(sch):
        seen.append(gc.get_freeze_count())
        # A compilation inside of another one does not end what that one has begun.
        neptune.compile(softmax(), "softmax_row", target="llvm", name="inside")
        seen.append(gc.get_freeze_count())
        rows_fused(sch)

    try:
        neptune.compile(rows_program(), template, target="llvm")
        assert seen[0] > 0 and seen[1] > 0
        assert (gc.get_freeze_count() > 0) == (before > 0) == own
    finally:
        gc.unfreeze()
        if of_tests:
            gc.freeze()


# --- expressions ---------------------------------------------------------------------------------


def test_tensor_expressions_and_programs_give_the_same_kernel():
    a = neptune.compile(te_examples.softmax(), "softmax_row", target="llvm", name="softmax")
    b = neptune.compile(softmax(), "softmax_row", target="llvm")
    assert a.source == b.source


def test_builder_tensors():
    n = var("n")
    x, j = placeholder((n, n), "float32", "x"), reduce_axis((0, n), "j")
    y = compute((n,), lambda i: total(x[i, j], axis=j), "y")
    for expr in (y, [y]):
        program = compiler.as_program(expr, name="sums")
        assert program.name == "sums" and [b.name for b in program.inputs] == ["x"]


def test_inputs_of_a_program_can_be_reordered():
    kernel = compiled(inputs=["w", "x"])
    x, w = torch.randn(3, 4), torch.randn(4)
    assert kernel.inputs == ("w", "x")
    torch.testing.assert_close(kernel(w, x, 1.0, 0), x @ w)
    with pytest.raises(ExpressionError, match="legal here: x, w"):
        compiled(inputs=["x"])


def test_names():
    assert "def mine(" in compiled(name="mine").source
    with pytest.raises(ExpressionError, match="is an identifier"):
        compiled(name="not a name")


# --- templates -----------------------------------------------------------------------------------


def test_shipped_templates_are_named_like_their_module():
    known = choose.shipped_templates()
    assert {"flash_attention", "softmax_online", "softmax_row"} <= set(known)
    assert all(choose.named(f)[0] == n for n, f in known.items())


@pytest.mark.compared
def test_the_automatic_choice():
    assert neptune.compile(prefill_causal(depth=16), target="llvm").build.template == "flash_attention"
    # Others apply to a softmax, too, and are predicted to be slower.
    kernel = neptune.compile(softmax(), target="llvm")
    assert kernel.build.template == "softmax_row" and len(kernel.facts.kernels) == 1
    told = {d.subject: (d.verdict, d.reason) for d in kernel.build.decisions if d.kind == "template"}
    assert told["matmul"][0] == "does not apply" and told["softmax_row"][0] == "chosen"
    assert re.fullmatch(
        r"predicted [\d.]+ µs on H200 at rows=4096, cols=4096, corrected by \d+ records; "
        r"others: softmax_online \d+ µs, .*",
        told["softmax_row"][1],
    )


@pytest.mark.parametrize("predicted", [True, False])
def test_the_automatic_choice_takes_the_least_where_nothing_is_predicted(monkeypatch, predicted):
    def three(sch):
        return None

    known = {"flash_attention": rows_apart, "softmax_row": three}
    monkeypatch.setattr(choose, "shipped_templates", lambda: known)
    if not predicted:
        monkeypatch.setattr(choose, "choose", lambda *args: None)
    kernel = neptune.compile(rows_program(), target="llvm")
    if not predicted:
        assert kernel.build.template == "flash_attention" and "the fewest temporaries and kernels" in kernel.explain()
    else:
        assert "predicted" in kernel.explain()


def test_every_program_has_a_template():
    kernel = neptune.compile(rows_program(), target="llvm")
    assert kernel.build.template == "stagewise" and "flash_attention: does not apply" in kernel.explain()


# --- checks --------------------------------------------------------------------------------------


def test_exact_checks_are_recorded():
    checks = compiled().build.checks
    assert set(checks) == {"fused program", "tile program"}
    assert all(c.accepted and c.draws >= 4 for c in checks.values())


def test_more_checks_are_made_on_request_and_none_without(monkeypatch):
    monkeypatch.setenv("NEPTUNE_VERIFY", "0")
    assert compiled().build.checks == {}
    monkeypatch.setenv("NEPTUNE_VERIFY", "2")
    assert all(c.draws > 4 for c in compiled().build.checks.values())


def test_a_wrong_transformation_is_caught(monkeypatch):
    def wrong(program, seen, **_):
        tiles = neptune.tile.translate.translate(program)
        (kernel,) = tiles.kernels
        stores = [s for s in kernel.body if not isinstance(s, neptune.tile.ir.Assign)]
        assert stores, "the last statement stores y"
        broken = replace(stores[-1], value=neptune.tile.ir.Scalar(Const(1.0, "float32")))
        seen("translate", "", replace(tiles, kernels=(replace(kernel, body=(*kernel.body[:-1], broken)),)))

    import neptune.tile.ir
    import neptune.tile.translate

    monkeypatch.setattr(tile_pipeline, "lower", wrong)
    with pytest.raises(InternalError) as info:
        compiled()
    text = str(info.value)
    assert "the tile program of `rows` (template `rows_fused`) differs" in text
    assert "output y[" in text and "seed" in text
    monkeypatch.setenv("NEPTUNE_VERIFY", "0")
    assert compiled().build.checks == {}


def rejecting(monkeypatch, *rejected, what="fused program"):
    """A check that rejects one form of what these templates make, whatever it is."""
    check = passes._checked

    def checked(stage, form, made):
        if stage.scheduled.template in rejected and form == what:
            found = Counterexample({"m": 2, "n": 3}, 7, "y", (1,), "output y[1] differs")
            return Differs(form, replace(passes.unchecked(""), counterexample=found, model="field pair"))
        return check(stage, form, made)

    monkeypatch.setattr(passes, "_checked", checked)


@pytest.mark.compared
@pytest.mark.parametrize("typical", [None, {"batch": 1, "heads": 8, "s_q": 1, "s_kv": 65536}])
def test_the_automatic_choice_lowers_each_candidate_once(monkeypatch, typical):
    """What a template is judged by is what is compiled."""
    lowered = []
    lower = tile_pipeline.lower

    def counted(program, *args, **options):
        lowered.append(str(program))
        return lower(program, *args, **options)

    monkeypatch.setattr(tile_pipeline, "lower", counted)
    choose._applying.cache_clear()
    kernel = neptune.compile(prefill_global(depth=16), target="interpret", shapes=typical)
    assert kernel.build.template == ("flash_decoding" if typical else "flash_attention")
    assert len(lowered) == len(set(lowered)) > 1
    forms = [s.made for s in kernel.build.trail if s.name.startswith("tile-")]
    assert len(forms) == 1 + len(tile_pipeline.PASSES) and forms[-1] is kernel.build.tiles
    # Templates that are passed over are lowered once, too.
    lowered.clear()
    neptune.compile(softmax(), target="interpret")
    assert len(set(lowered)) == len(lowered) > 1


def test_what_a_check_rejects_is_not_chosen(monkeypatch):
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    for what in ("fused program", "tile program"):
        with monkeypatch.context() as patch:
            rejecting(patch, "softmax_row", what=what)
            kernel = neptune.compile(softmax(), target="llvm")
        assert kernel.build.template == "softmax_online"
        assert "softmax_row" not in {v.template for v in kernel.variants}
        assert [d.subject for d in kernel.build.rejections] == ["softmax_row"]
        assert f"the {what} differs from the expression" in kernel.build.rejections[0].reason
        told = kernel.explain()
        assert "softmax_row: rejected by the check" in told and "output y[1] differs, at m=2, n=3 (seed 7)" in told
        assert all(c.accepted for c in kernel.build.checks.values())
        named = neptune.compile(softmax(), "softmax_online", target="llvm")
        assert [s.name for s in kernel.build.trail] == [s.name for s in named.build.trail]
        x = torch.randn(3, 5)
        torch.testing.assert_close(kernel(x), torch.softmax(x, -1))
    rejecting(monkeypatch, "softmax_online", "softmax_row")
    kernel = neptune.compile(softmax(), target="llvm")
    assert [d.subject for d in kernel.build.rejections] == ["softmax_row", "softmax_online"]


def test_what_a_check_rejects_is_a_failure_where_one_says_so(monkeypatch):
    rejecting(monkeypatch, "softmax_row")
    with pytest.raises(InternalError, match=r"fused program of `softmax` \(template `softmax_row`\) differs"):
        neptune.compile(softmax(), target="llvm")


def test_a_named_template_that_a_check_rejects_is_refused(monkeypatch):
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    rejecting(monkeypatch, "softmax_online")
    with pytest.raises(FusionError, match=r"(?s)with template `softmax_online`.*output y\[1\] differs.*seed 7.*try:"):
        neptune.compile(softmax(), "softmax_online", target="llvm")


# Templates that a softmax of rows does not match: of products, and of grouped heads.
UNMATCHED = ("matmul", "norm_linear", "packed")


def test_a_defect_where_every_template_is_rejected(monkeypatch):
    monkeypatch.setenv("NEPTUNE_STRICT", "0")
    rejecting(monkeypatch, *choose.AUTOMATIC)
    with pytest.raises(InternalError) as info:
        neptune.compile(softmax(), target="llvm")
    apply = {n for n in choose.AUTOMATIC if not n.startswith(UNMATCHED)}
    assert all(f"{name}: the fused program differs" in str(info.value) for name in apply)


@pytest.mark.parametrize("expression", [softmax, figure1])
def test_fuel_does_not_change_the_template(expression):
    full = next(choose.candidates(expression()))
    kernels = []
    for fuel in range(4):
        less = next(choose.candidates(expression(), fuel))
        assert less.template == full.template
        kernels.append(len(less.tiles.kernels))
    # More of it fuses more, and enough of it everything.
    assert kernels == sorted(kernels, reverse=True) and kernels[0] > kernels[-1] == len(full.tiles.kernels)


def test_each_candidate_is_the_best_of_those_that_are_left():
    found = list(choose.candidates(softmax()))
    assert [c.template for c in found][:2] == ["softmax_row", "softmax_online"]
    assert {c.template for c in found} == {n for n in choose.AUTOMATIC if not n.startswith(UNMATCHED)}
    for k, c in enumerate(found):
        assert c.family.choices[0].template == c.template
        assert {x.template for x in c.family.choices}.isdisjoint(x.template for x in found[:k])


def test_every_pass_says_why():
    names = [p.name for p in passes.PIPELINE]
    assert len(set(names)) == len(names) and all(p.why for p in passes.PIPELINE)
    assert names.index("obligations") < names.index("lower") < names.index("generate")


# --- target, params, sizes -----------------------------------------------------------------------


def test_the_target_is_the_callers_then_the_environments(monkeypatch):
    monkeypatch.setenv("NEPTUNE_TARGET", "interpret")
    assert compiled(target=None).target == "interpret"
    assert compiled().target == "llvm"
    monkeypatch.delenv("NEPTUNE_TARGET")
    assert compiled(target=None).target == ("llvm" if not torch.cuda.is_available() else "cuda")
    monkeypatch.setenv("NEPTUNE_TARGET", "metal")
    with pytest.raises(TargetError, match="'metal'"):
        compiled(target=None)


def test_params_default_to_the_first_candidate():
    assert compiled().params == {"BLOCK_M": 16, "BLOCK_N": 8, "num_warps": 4, "num_stages": 2}
    got = compiled(params={"BLOCK_M": 64, "num_stages": 3, "num_warps": 8}).params
    assert got == {"BLOCK_M": 64, "BLOCK_N": 8, "num_warps": 8, "num_stages": 3}


def test_bounds_are_checked_at_the_call():
    kernel = compiled(bounds={"m": 4}, shapes={"n": 100})
    assert kernel(torch.zeros(4, 200), torch.zeros(200), 1.0, 0).shape == (4,)
    with pytest.raises(ShapeError, match="size m of argument `x`"):
        kernel(torch.zeros(5, 2), torch.zeros(2), 1.0, 0)


@pytest.mark.compared
def test_the_matrix_unit_is_not_given_short_sums() -> None:
    with pytest.raises(ScheduleError, match="no fewer than 16"):
        compiler.compile(prefill_causal(depth=64), "flash_attention", target="interpret", params={"BLOCK_N": 8})
    compiler.compile(prefill_causal(depth=64), "flash_attention", target="interpret", params={"BLOCK_M": 8})


def test_a_tile_that_may_be_short_is_summed_without_it() -> None:
    def cut(sch: neptune.Schedule) -> None:
        size = sch.param("SIZE", [8])
        for loop in sch.loops("c"):
            sch.split(loop, size)

    kernel = compiler.compile(matmul(), cut, target="interpret")
    assert "tl.dot" not in kernel.source and kernel.resources("cuda:80")


# --- schedules made elsewhere ---------------------------------------------------------------------


def _scheduled_softmax() -> Schedule:
    sch = Schedule(softmax())
    shipped_template("softmax_online")(sch)
    return sch


def test_a_schedule_or_a_trace_made_elsewhere_is_compiled_like_its_template(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("NEPTUNE_CACHE_DIR", str(tmp_path))
    sch, wanted = _scheduled_softmax(), compile(softmax(), "softmax_online", target="llvm")
    for made in (sch, sch.trace, trace_from_json(trace_to_json(sch.trace))):
        kernel = compile_scheduled(softmax(), made, target="llvm")
        assert kernel.ir("tile") == wanted.ir("tile") and kernel.ir("fused") == wanted.ir("fused")
        assert kernel.explain(json=True)["schedule"] == wanted.explain(json=True)["schedule"]
        assert kernel.explain(json=True)["checks"]["tile program"]["verdict"] == "accepted"
    # The template's kernel, and one for all ways of saying the schedule.
    assert len(list((tmp_path / "compiled").iterdir())) == 2


def test_a_trace_of_another_program_and_no_trace_are_refused() -> None:
    with pytest.raises(ScheduleError, match=r"step \d+ of"):
        compile_scheduled(matmul(), _scheduled_softmax(), target="llvm")
    with pytest.raises(RecordError, match="no trace"):
        compile_scheduled(softmax(), "softmax_online", target="llvm")
