"""What makes kernels slow: each rule on a program that breaks it, and on some of which it must not speak."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench.chain_programs import ROW_CHAINS
from neptune.frontend.builder import build, compute, exp, max, maximum, placeholder, reduce_axis, select, sum, var
from neptune.ops.attention import OPERATORS, operator, prefill_causal
from neptune.ops.linear import matmul
from neptune.ops.shipped import OPERATORS as SHIPPED
from neptune.ops.softmax import figure1, softmax
from neptune.tune.choose import candidates, lowered
from neptune.tune.defaults import defaults
from neptune.tune.family import Wishes
from neptune.tune.model.machine import DEFAULT
from neptune.tune.points import reference, sizes_of
from neptune.tune.slow.advice import RULES, advice
from neptune.tune.slow.products import lost_expansions
from neptune.tune.subject import Subject

M, N, K = var("m"), var("n"), var("k")


def subject(program, template, shapes=None):
    tiles = lowered(template, program, strict=False).tiles
    sizes = reference(program, shapes or {}, {})
    given = set(shapes or {}) >= set(sizes_of(program))
    return Subject(program, tiles, defaults(tiles), sizes, given, {}, DEFAULT)


def judged(program, template, shapes=None):
    return advice(subject(program, template, shapes))


def codes(program, template, shapes=None):
    return [(r.code, r.stage) for r in judged(program, template, shapes)]


def product(left, right, wide="float32", by=None):
    """c[i, j] of operands of these dtypes, each brought to `wide`; `by` changes what is summed."""
    a, b, p = placeholder((M, K), left, "a"), placeholder((K, N), right, "b"), reduce_axis((0, K), "p")

    def term(i, j):
        value = a[i, p].astype(wide) * b[p, j].astype(wide)
        return value if by is None else by(value, i, j, p)

    return build(compute((M, N), lambda i, j: sum(term(i, j), axis=p), "c"), name="product")


def rows(what, dtype="float32"):
    x, j = placeholder((M, N), dtype, "x"), reduce_axis((0, N), "j")
    return build(compute((M,), lambda i: what(x, i, j), "t"), name="rows")


# --- products --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_a_product_on_the_matrix_unit_is_not_lost(dtype):
    for template in ("matmul", "matmul_split", "stagewise"):
        assert codes(product(dtype, dtype), template) == []


@pytest.mark.parametrize(
    ("program", "word"),
    [
        (product("float16", "float16", "float16"), "multiplies in float16"),
        (product("uint8", "uint8", "int32"), "in int32: the matrix unit takes int8"),
        (product("float16", "float16", by=lambda x, i, j, p: select(p <= i, x, 0.0)), "is no sum of products"),
    ],
)
def test_a_product_that_the_matrix_unit_cannot_take_is_lost(program, word):
    (found,) = judged(program, "stagewise")
    assert (found.code, found.stage) == ("lost-product", "c") and word in found.message


def test_the_remedy_of_a_lost_product_is_one():
    program = product("float16", "float16", "float16")
    assert 'astype("float32")' in judged(program, "stagewise")[0].remedy
    assert codes(product("float16", "float16"), "stagewise") == []
    assert codes(product("int8", "int8", "int32"), "stagewise") == []
    # Other integers by way of float16, as the remedy says, are on the matrix unit.
    assert 'astype("float16").astype("float32")' in judged(product("uint8", "uint8", "int32"), "stagewise")[0].remedy
    a, b, p = placeholder((M, K), "int8", "a"), placeholder((K, N), "int8", "b"), reduce_axis((0, K), "p")
    by_way = build(
        compute(
            (M, N),
            lambda i, j: sum(
                a[i, p].astype("float16").astype("float32") * b[p, j].astype("float16").astype("float32"), axis=p
            ),
            "c",
        ),
        name="product",
    )
    assert codes(by_way, "stagewise") == []


def test_a_template_that_tiles_no_product_loses_it():
    found = judged(prefill_causal(), "softmax_row")
    assert [(r.code, r.stage) for r in found] == [("lost-product", "acc")] and "element by element" in found[0].message


def test_a_factor_that_does_not_move_hides_a_product():
    def scaled(s):
        x, w, p = placeholder((M, K), "float16", "x"), placeholder((K, N), "float16", "w"), reduce_axis((0, K), "p")

        def term(i, j):
            pair = x[i, p].astype("float32") * w[p, j].astype("float32")
            return sum(pair * s[i], axis=p)

        return build(compute((M, N), lambda i, j: term(i, j), "c"), name="scaled")

    def tiles_alone(sch):
        i, j, p = sch.loops("c")
        i0, j0, *_ = sch.tile([i, j, p], [16, 16, 16])
        sch.bind([i0, j0], ["grid.y", "grid.x"])
        return j0

    def with_the_remedy(sch):
        final = sch.hoist_factor("c")
        sch.fuse_at(final, tiles_alone(sch))

    program = scaled(placeholder((M,), "float32", "s"))
    (found,) = judged(program, tiles_alone)
    assert (found.code, found.stage) == ("lost-product", "c") and "hidden by s[i]" in found.message
    assert 'sch.hoist_factor("c"), or multiply behind the sum' in found.remedy
    for template in (with_the_remedy, "stagewise", "matmul", "matmul_split"):
        assert codes(program, template) == []


def test_a_matrix_times_a_vector_is_no_lost_product():
    x, w, p = placeholder((M, K), "float16", "x"), placeholder((K,), "float16", "w"), reduce_axis((0, K), "p")

    def term(i):
        return sum(x[i, p].astype("float32") * w[p].astype("float32"), axis=p)

    assert codes(build(compute((M,), term, "y"), name="vector"), "stagewise") == []
    # One row, known as a constant or by name.
    one, b = placeholder((1, K), "float16", "x"), placeholder((K, N), "float16", "b")

    def row(i, j):
        return sum(one[i, p] * b[p, j], axis=p)

    assert "lost-product" not in [c for c, _ in codes(build(compute((1, N), row, "y"), name="row"), "stagewise")]
    half = product("float16", "float16", "float16")
    assert "lost-product" not in [c for c, _ in codes(half, "stagewise", {"m": 1, "n": 64, "k": 64})]
    assert "lost-product" in [c for c, _ in codes(half, "stagewise", {"m": 64, "n": 64, "k": 64})]


@pytest.mark.parametrize(
    ("left", "right", "remedy"),
    [
        ("float16", "bfloat16", "bring both to one dtype"),
        ("int8", "int8", 'x.astype("float16")'),
        ("int8", "bfloat16", 'x.astype("bfloat16")'),
        ("float32", "float16", "round the other operand"),
    ],
)
def test_widened_operands_are_told_with_what_to_write(left, right, remedy):
    (found,) = judged(product(left, right), "matmul")
    assert (found.code, found.stage) == ("widened-product", "c") and remedy in found.remedy


# --- widths ----------------------------------------------------------------------------------------


def of_depth(depth, values):
    """Attention without a mask, of keys and values as deep as these."""
    q, k, v = (placeholder((n, d), "float16", x) for n, d, x in ((M, depth, "q"), (N, depth, "key"), (N, values, "v")))
    d, a, b, c = (reduce_axis((0, e), x) for e, x in ((depth, "d"), (N, "a"), (N, "b"), (N, "c")))
    s = compute((M, N), lambda i, j: sum(q[i, d].astype("float32") * k[j, d].astype("float32"), axis=d), "s")
    top = compute((M,), lambda i: max(s[i, a], axis=a), "top")
    p = compute((M, N), lambda i, j: exp(s[i, j] - top[i]), "p")
    total = compute((M,), lambda i: sum(p[i, b], axis=b), "total")

    def kept(i, e):
        return sum(p[i, c].astype("float16").astype("float32") * v[c, e].astype("float32"), axis=c)

    o = compute((M, values), kept, "o")
    return build(compute((M, values), lambda i, e: o[i, e] / total[i], "out"), name="attention")


@pytest.mark.parametrize(("shapes", "at"), [(None, "at k=128"), ({"m": 2048, "n": 2048, "k": 64}, "at k=64")])
def test_a_depth_that_is_a_size_is_told_with_what_a_number_gains(shapes, at):
    (found,) = [r for r in judged(of_depth(K, K), "stagewise", shapes) if r.code == "unknown-width"]
    assert found.stage == "o" and "runs over `e`, as long as `k`, which only a call knows" in found.message
    assert "`s`, `p` are written to memory" in found.message and "give `k` as a number" in found.remedy
    assert float(re.search(r"predicted ([0-9.]+) times", found.remedy)[1]) > 1.5 and found.remedy.endswith(at)


@pytest.mark.parametrize(
    ("program", "template", "shapes"),
    [
        (of_depth(64, 64), "stagewise", None),
        (of_depth(K, 64), "flash_attention", None),
        # A number would not help: results as wide as this fit no tile.
        (of_depth(K, K), "stagewise", {"m": 2048, "n": 2048, "k": 8192}),
        (product("float16", "float16"), "stagewise", None),
    ],
)
def test_a_width_that_no_number_makes_faster(program, template, shapes):
    assert "unknown-width" not in [c for c, _ in codes(program, template, shapes)]


# --- distances -------------------------------------------------------------------------------------


def apart(what, depth=K, dtype="float16"):
    """far[i, j], the sum over d of something of x[i, d], y[j, d] and g[j, d]."""
    q, k, g = (placeholder((n, depth), dtype, name) for n, name in ((M, "x"), (N, "y"), (N, "g")))
    d = reduce_axis((0, depth), "d")

    def term(i, j):
        return what(*(x.astype("float32") for x in (q[i, d], k[j, d], g[j, d])))

    return build(compute((M, N), lambda i, j: sum(term(i, j), axis=d), "far"), name="apart")


@pytest.mark.parametrize(
    "what",
    [
        lambda a, b, c: (a - b) * (a - b),
        lambda a, b, c: (a - b) * (a - b) * c,
        lambda a, b, c: (b - a) * (b - a) / c,
        lambda a, b, c: (a - b) ** 2,
        lambda a, b, c: -(a * b + a * a * c),
        lambda a, b, c: (a + b) * c,
    ],
)
def test_what_multiplies_out_to_products_is_told(what):
    (found,) = judged(apart(what), "stagewise")
    assert (found.code, found.stage) == ("unexpanded-product", "far")
    assert "summed over `d`" in found.message and "expand the square: q² - 2qk + k²" in found.remedy


@pytest.mark.parametrize(
    "program",
    [
        apart(lambda a, b, c: abs(a - b)),
        apart(lambda a, b, c: maximum(a, b)),
        apart(lambda a, b, c: a * b),
        apart(lambda a, b, c: a + b),
        apart(lambda a, b, c: (b - c) * (b - c)),
        apart(lambda a, b, c: (a - b) * (a - b), depth=4),
        apart(lambda a, b, c: (a - b) * (a - b), dtype="float64"),
    ],
)
def test_what_does_not_multiply_out_to_products(program):
    assert "unexpanded-product" not in [c for c, _ in codes(program, "stagewise")]


def test_the_remedy_of_a_distance_is_one():
    q, k, d = placeholder((M, 64), "float16", "x"), placeholder((N, 64), "float16", "y"), reduce_axis((0, 64), "d")
    qk = compute((M, N), lambda i, j: sum(q[i, d].astype("float32") * k[j, d].astype("float32"), axis=d), "qk")

    def squares(x, n, name):
        return compute((n,), lambda i: sum(x[i, d].astype("float32") * x[i, d].astype("float32"), axis=d), name)

    qq, kk = squares(q, M, "qq"), squares(k, N, "kk")
    far = compute((M, N), lambda i, j: qq[i] - 2.0 * qk[i, j] + kk[j], "far")
    assert codes(build(far, name="apart"), "stagewise") == []


def test_of_the_shipped_operators_only_distances_are_told():
    told = []
    for name, shipped_one in SHIPPED.items():
        untiled = Subject(shipped_one(), SimpleNamespace(kernels=()), {}, {}, False, {}, DEFAULT)
        told += [name for _ in lost_expansions(untiled)]
    assert told == ["distance_attention", "kernel_density", "gaussian_mixture"]


# --- loops -----------------------------------------------------------------------------------------


def nothing(sch):
    """One program, one element at a time."""


def test_scalar_loops_are_told_once_a_kernel():
    assert [c for c, _ in codes(softmax(), nothing)].count("scalar-loop") >= 1
    assert len(codes(softmax(), nothing)) == len(set(codes(softmax(), nothing)))


def test_tiles_of_one_element_are_scalar():
    x = placeholder((M, N), "float32", "x")
    program = build(compute((M, N), lambda i, j: maximum(x[i, j], 0.0), "y"), name="relu")

    def bound(sch):
        i, j = sch.loops("y")
        sch.bind(i, "grid.y")
        sch.bind(j, "grid.x")

    assert codes(program, bound) == [("scalar-loop", "y")]
    assert codes(program, "stagewise") == []
    # A few elements are no loss.
    few = placeholder((8,), "float32", "x")
    assert codes(build(compute((8,), lambda i: few[i] * 2.0, "y"), name="few"), nothing) == []


def test_temporaries_that_a_kernel_writes_and_reads_back():
    mixture = next(c for c in ROW_CHAINS if c.name == "gaussian_mixture").build(64)
    found = {r.code: r for r in judged(mixture, "softmax_online")}
    assert "and 4 more are written to memory" in found["memory-inside"].message
    assert found["repeated-passes"].message.endswith("again in every iteration of a loop")


def test_passes_beyond_two_are_told():
    assert codes(softmax(), "stagewise") == [("repeated-passes", "x")]
    assert codes(softmax(), "softmax_online") == [] == codes(softmax(), "softmax_three_kernel")


def test_parts_of_an_input_are_no_passes():
    x = placeholder((4096, 4096), "float32", "x")

    def column(k):
        return compute((4096, 1024), lambda i, j: maximum(x[i, j + 1024 * k], 0.0), f"y{k}")

    assert codes(build([column(k) for k in range(4)], name="split"), "stagewise") == []
    again = build(
        [column(0), *(compute((4096, 1024), lambda i, j, k=k: x[i, j] * k, f"z{k}") for k in (2, 3))], name="a"
    )
    assert codes(again, "stagewise") == [("repeated-passes", "x")]


def test_passes_over_little_take_no_time():
    assert codes(softmax(), "stagewise", {"rows": 64, "cols": 1000}) == []
    assert codes(softmax(), "stagewise", {"rows": 4096, "cols": 1000}) == [("repeated-passes", "x")]


def test_neighbours_are_no_passes():
    x = placeholder((M, 1024), "float32", "x")

    def mean(i, j):
        return (x[i, j] + x[i, maximum(j - 1, 0)] + x[i, maximum(j - 2, 0)] + x[i, maximum(j - 3, 0)]) * 0.25

    assert codes(build(compute((M, 1024), mean, "y"), name="smooth"), "stagewise") == []


# --- expressions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sums_of_sixteen_bits(dtype):
    assert codes(rows(lambda x, i, j: sum(x[i, j], axis=j), dtype), "stagewise") == [("narrow-sum", "t")]
    assert codes(rows(lambda x, i, j: sum(x[i, j].astype("float32"), axis=j), dtype), "stagewise") == []


def prefix(test, value=lambda x, i, k, j: x[i, k]):
    x, k = placeholder((M, N), "float32", "x"), reduce_axis((0, N), "k")
    return build(compute((M, N), lambda i, j: sum(value(x, i, k, j), axis=k, where=test(k, j)), "c"), name="cumulative")


@pytest.mark.parametrize("test", [lambda k, j: k <= j, lambda k, j: k < j, lambda k, j: j <= k + 1])
def test_prefix_sums_are_quadratic(test):
    assert ("quadratic-prefix", "c") in codes(prefix(test), "stagewise")


def test_what_is_no_prefix():
    window = prefix(lambda k, j: (k <= j) & (j < k + 8))
    depends = prefix(lambda k, j: k <= j, lambda x, i, k, j: x[i, k] * x[i, j])
    last = prefix(lambda k, j: k >= N - 8)
    for program in (window, depends, last):
        assert "quadratic-prefix" not in [c for c, _ in codes(program, "stagewise")]


# --- processors ------------------------------------------------------------------------------------


def test_idle_processors_at_sizes_that_were_named():
    few = {"m": 16, "n": 512, "k": 65536}
    assert ("idle-processors", "matmul_kernel") in codes(matmul(), "matmul", few)
    assert codes(matmul(), "matmul", {"m": 4096, "n": 4096, "k": 4096}) == codes(matmul(), "matmul") == []
    # What takes no time anyway is no loss.
    assert codes(matmul(), "matmul", {"m": 16, "n": 64, "k": 64}) == []


def test_sizes_for_which_launches_choose_enough_parts_leave_none_idle():
    few = {"m": 16, "n": 512, "k": 65536}
    best = next(candidates(matmul(), None, Wishes(few)))
    assert best.template == "matmul_split"
    params = best.family.choices[0].params
    assert advice(Subject(matmul(), best.tiles, params, few, True, {}, DEFAULT)) == ()


def test_idle_processors_at_all_sizes():
    def one_program(sch):
        j = sch.loops("t")[-1]
        sch.split(j, sch.param("BLOCK_N", [512]))

    total = rows(lambda x, i, j: sum(x[i, j], axis=j))
    assert "idle-processors" in [c for c, _ in codes(total, one_program)]


# --- no false alarms ---------------------------------------------------------------------------------


@cache
def shipped():
    programs = {name: operator(name) for name in OPERATORS}
    return (
        programs
        | {"softmax": softmax(), "matmul": matmul(), "figure1": figure1()}
        | {c.name: c.build(64) for c in ROW_CHAINS if c.name in ("layer_norm", "rms_norm_linear")}
    )


@pytest.mark.parametrize("name", [*OPERATORS, "softmax", "matmul", "figure1", "layer_norm", "rms_norm_linear"])
def test_no_shipped_operator_warns(name):
    program = shipped()[name]
    best = next(candidates(program, None, Wishes()))
    sizes = best.family.points[0]
    params = best.family.choices[0].params
    assert advice(Subject(program, best.tiles, params, sizes, False, {}, DEFAULT)) == ()


@pytest.mark.parametrize("program", [softmax(), matmul(), matmul("float32"), prefill_causal(dtype="float32")])
def test_sizes_of_every_kind_do_not_warn_of_what_cannot_be_better(program):
    # Where sizes are not named, nothing is said of any.
    best = next(candidates(program, None, Wishes()))
    for k, choice in enumerate(best.family.choices[:4]):
        if choice.template == best.template:
            at = best.family.points[k]
            assert advice(Subject(program, best.tiles, choice.params, at, False, {}, DEFAULT)) == ()


def test_every_rule_is_told_by_some_test():
    text = Path(__file__).read_text()
    assert all(f'"{r.code}"' in text for r in RULES)


def test_the_page_lists_every_rule():
    page = (Path(__file__).parents[3] / "docs" / "performance.md").read_text()
    listed = page.split("## What is slow is told", 1)[1]
    assert re.findall(r"^\| `([a-z-]+)` \|", listed, re.MULTILINE) == [r.code for r in RULES]
