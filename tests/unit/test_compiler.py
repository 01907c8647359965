"""The pipeline: what is taken, what is refused with which words, and that the checks can say no."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import neptune
from neptune import choose, compiler
from neptune.errors import ExpressionError, FusionError, InternalError, ScheduleError, ShapeError, TargetError
from neptune.frontend.builder import compute, placeholder, reduce_axis, var
from neptune.frontend.builder import sum as total
from neptune.ir.expr import Const
from neptune.ops.attention import prefill_causal
from neptune.ops.linear import matmul
from neptune.ops.softmax import figure1, softmax
from tests import te_examples
from tests.kernel_examples import rows_apart, rows_fused, rows_program


@pytest.fixture(autouse=True)
def _settings(monkeypatch):
    for name in ("NEPTUNE_TARGET", "NEPTUNE_VERIFY", "NEPTUNE_DUMP"):
        monkeypatch.delenv(name, raising=False)


def compiled(**options):
    return neptune.compile(rows_program(), rows_fused, **{"target": "llvm", **options})


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


def test_what_is_no_expression_is_refused():
    for expr in (3, "softmax", object()):
        with pytest.raises(ExpressionError):
            neptune.compile(expr, rows_fused, target="llvm")


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


def test_an_unknown_template_lists_the_shipped_ones():
    with pytest.raises(ScheduleError, match=r"legal here: .*flash_attention.*softmax_row"):
        neptune.compile(softmax(), "flashattention", target="llvm")
    with pytest.raises(ScheduleError, match="this is int, not a template"):
        neptune.compile(softmax(), 3, target="llvm")


def test_the_automatic_choice():
    assert neptune.compile(prefill_causal(depth=16), target="llvm").build.template == "flash_attention"
    # flash_attention applies to a softmax, too, but leaves more than one kernel.
    kernel = neptune.compile(softmax(), target="llvm")
    assert kernel.build.template == "softmax_online" and len(kernel.facts.kernels) == 1
    first, second = kernel.build.decisions[:2]
    assert (first.subject, first.verdict) == ("flash_attention", "not fused to one kernel")
    assert (second.subject, second.verdict) == ("softmax_online", "chosen")


def test_the_automatic_choice_takes_the_least_where_nothing_is_one_kernel(monkeypatch):
    def three(sch):
        return None

    known = {"flash_attention": three, "softmax_row": rows_apart}
    monkeypatch.setattr(choose, "shipped_templates", lambda: known)
    kernel = neptune.compile(rows_program(), target="llvm")
    assert kernel.build.template == "flash_attention"
    assert "2 kernels through t" in kernel.explain()


def test_every_program_has_a_template():
    kernel = neptune.compile(rows_program(), target="llvm")
    assert kernel.build.template == "stagewise" and "flash_attention: does not apply" in kernel.explain()


def test_no_template_that_applies_tells_why_for_each(monkeypatch):
    monkeypatch.setattr(choose, "AUTOMATIC", choose.AUTOMATIC[:-1])
    with pytest.raises(ScheduleError) as info:
        neptune.compile(rows_program(), target="llvm")
    text = str(info.value)
    assert all(f"{name}: " in text for name in choose.AUTOMATIC)
    assert "template=<a function over a Schedule>" in text


def test_an_error_in_a_template_is_the_users_own():
    def broken(sch):
        return 1 // 0

    with pytest.raises(ZeroDivisionError) as info:
        neptune.compile(softmax(), broken, target="llvm")
    assert info.traceback[-1].name == "broken"


def test_open_obligations_are_listed_with_what_to_do():
    def naive(sch):
        _, j = sch.loops("xmax")
        sch.fuse_at("xexp", j)
        sch.fuse_at("xsum", j)

    with pytest.raises(FusionError) as info:
        neptune.compile(figure1(), naive, target="llvm")
    text = str(info.value)
    assert "`xsum` reads `xmax`" in text and "loop `j` still changes" in text
    assert 'try: sch.rolling_update("xsum"' in text or 'sch.rolling_update("xsum", j)' in text
    assert len(text.splitlines()) <= 12


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
    def wrong(program, seen):
        tiles = neptune.tile.translate.translate(program)
        (kernel,) = tiles.kernels
        stores = [s for s in kernel.body if not isinstance(s, neptune.tile.ir.Assign)]
        assert stores, "the last statement stores y"
        broken = replace(stores[-1], value=neptune.tile.ir.Scalar(Const(1.0, "float32")))
        return replace(tiles, kernels=(replace(kernel, body=(*kernel.body[:-1], broken)),))

    import neptune.tile.ir
    import neptune.tile.translate

    monkeypatch.setattr(compiler, "lower", wrong)
    with pytest.raises(InternalError) as info:
        compiled()
    text = str(info.value)
    assert "the tile program of `rows` (template `rows_fused`) differs" in text
    assert "output y[" in text and "seed" in text
    monkeypatch.setenv("NEPTUNE_VERIFY", "0")
    assert compiled().build.checks == {}


def test_every_pass_says_why():
    names = [p.name for p in compiler.PIPELINE]
    assert len(set(names)) == len(names) and all(p.why for p in compiler.PIPELINE)
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


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"BLOCK_K": 16}, "no such parameter\n  legal here: BLOCK_M, BLOCK_N, num_warps, num_stages"),
        ({"BLOCK_M": 48}, "must be a power of two"),
        ({"BLOCK_M": 0}, "must be a positive integer"),
        ({"BLOCK_M": True}, "must be a positive integer"),
        ({"num_warps": 3}, "must be a power of two"),
        ({"num_stages": 1.5}, "must be a positive integer"),
    ],
)
def test_wrong_params_are_refused(params, said):
    with pytest.raises(ScheduleError) as info:
        compiled(params=params)
    assert said in str(info.value)


def test_a_tile_that_covers_a_size_cannot_be_set():
    with pytest.raises(ScheduleError, match="follows from a size"):
        neptune.compile(softmax(), "softmax_row", target="llvm", params={"BLOCK_N": 64})


def test_bounds_are_checked_at_the_call():
    kernel = compiled(bounds={"m": 4}, shapes={"n": 100})
    assert kernel(torch.zeros(4, 200), torch.zeros(200), 1.0, 0).shape == (4,)
    with pytest.raises(ShapeError, match="size m of argument `x`"):
        kernel(torch.zeros(5, 2), torch.zeros(2), 1.0, 0)


@pytest.mark.parametrize("what", ["bounds", "shapes"])
def test_unknown_sizes_are_refused(what):
    with pytest.raises(ShapeError, match="no such size\n  legal here: m, n"):
        compiled(**{what: {"rows": 4}})
    with pytest.raises(ShapeError, match="this is no size"):
        compiled(**{what: {"m": 0}})


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
