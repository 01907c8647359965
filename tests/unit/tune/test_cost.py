"""The cost model against measured kernels, and against what must hold whatever its constants are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod

import pytest

from bench import cost as bench
from bench.chain_programs import ROW_CHAINS
from neptune.ops.attention import operator
from neptune.ops.linear import matmul
from neptune.ops.softmax import softmax
from neptune.tune.choose import lowered
from neptune.tune.model.cost import Model
from neptune.tune.model.machine import BY_ARCH, DEVICES, machine_of
from neptune.tune.model.occupancy import resident
from neptune.tune.model.program import zeros_beyond
from neptune.tune.rank import ranked
from tests.examples.float8_programs import scaled_matmul

H200 = DEVICES["H200"]
TILES = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP_M": 8, "num_warps": 8, "num_stages": 3}
SQUARE = {"m": 4096, "n": 4096, "k": 4096}


@cache
def tiles(name):
    made = {
        "matmul": lambda: lowered("matmul", matmul()),
        "decode": lambda: lowered("flash_decoding", operator("decode_gqa")),
        "causal": lambda: lowered("flash_attention", operator("prefill_causal", heads=None)),
        "rows": lambda: lowered("softmax_row", softmax()),
        "product of 8 bits": lambda: lowered("matmul", scaled_matmul("float8_e4m3fn")),
        "product of 16 bits": lambda: lowered("matmul", scaled_matmul("float16")),
        "online": lambda: lowered("softmax_online", softmax()),
    }
    return made[name]().tiles


def us(name, params, sizes, machine=H200):
    return Model(tiles(name)).predict(params, sizes, machine).us


@pytest.mark.slow
def test_measured_kernels_are_ordered_right():
    measured = bench.points()
    figures = bench.by_family(measured, bench.predictions(measured, bench.FITTED))
    assert figures["all"].points >= 9300 and figures["all"].setups >= 255
    assert figures["all"].pairs >= 0.922 and figures["all"].regret <= 0.023 and figures["all"].error <= 0.14
    assert figures["all"].of_four <= 0.005
    for family, worst in (("prefill", 0.14), ("decode", 0.27), ("products", 0.25), ("rows", 0.31), ("chains", 0.07)):
        assert figures[family].pairs >= 0.88 and figures[family].worst <= worst, family


def test_figures_of_a_perfect_and_of_a_reversed_model():
    model = Model(tiles("matmul"))
    points = [bench.Point("one", "products", model, {}, {}, t) for t in (10.0, 20.0, 40.0)]
    right = bench.judged(points, [1.0, 2.0, 4.0])
    assert (right.pairs, right.regret, right.worst) == (1.0, 0.0, 0.0)
    wrong = bench.judged(points, [4.0, 2.0, 1.0])
    assert (wrong.pairs, wrong.regret, wrong.of_four) == (0.0, 3.0, 0.0)
    assert bench.judged(points, [10.0, 20.0, 80.0]).error95 > 0.5


@pytest.mark.parametrize("name", ["m", "n", "k"])
def test_more_work_takes_longer(name):
    assert us("matmul", TILES, SQUARE | {name: 8192}) > 1.7 * us("matmul", TILES, SQUARE)


def test_no_prediction_is_below_what_units_and_memory_allow():
    flop = 2 * 4096**3
    peak = H200.matrix["float16"] * H200.processors * H200.clock * 1e3
    assert us("matmul", TILES, SQUARE) > flop / peak
    read = 4 * 65536 * 1024 * 2
    rows = {"BLOCK_M": 2, "BLOCK_N": 1024, "num_warps": 4, "num_stages": 2}
    assert us("rows", rows, {"rows": 65536, "cols": 1024}) > read / H200.memory / 1e3


def test_masked_tiles_are_not_counted():
    tile = {"BLOCK_M": 128, "BLOCK_N": 64, "num_warps": 8, "num_stages": 3}
    sizes = {"batch": 4, "heads": 16, "s_q": 4096, "s_kv": 4096}
    (kernel,) = Model(tiles("causal")).predict(tile, sizes, H200).kernels
    full = Model(lowered("flash_attention", operator("prefill_global", heads=None)).tiles)
    ratio = kernel.us / full.predict(tile, sizes, H200).kernels[0].us
    assert 0.5 < ratio < 0.65


def test_a_second_pass_through_memory_is_counted():
    sizes = {"rows": 4096, "cols": 16384}
    once = ranked(tiles("rows"), sizes, H200)[0].prediction.us
    # Many programs at a time have more in flight than L2 holds; few long tiles have not.
    many = us("online", {"BLOCK_M": 1, "BLOCK_N": 512, "num_warps": 4, "num_stages": 2}, sizes)
    few = us("online", {"BLOCK_M": 1, "BLOCK_N": 16384, "num_warps": 16, "num_stages": 2}, sizes)
    assert 1.3 < many / once < 1.7 and few < 0.9 * many


def test_what_is_spilled_once_takes_longer_by_what_there_is_too_much_of():
    sizes = {"rows": 2048, "cols": 32768}
    row = {"BLOCK_M": 1, "BLOCK_N": 32768, "num_stages": 2}
    fits, spilled, far = (us("rows", row | {"num_warps": w}, sizes) for w in (16, 4, 1))
    assert 1.05 < spilled / fits < 3 < far / fits


def test_few_rows_are_split():
    sizes = {"batch": 1, "s_kv": 131072}
    one = {"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}
    assert us("decode", one | {"NUM_SPLITS": 1}, sizes) > 5 * us("decode", one | {"NUM_SPLITS": 16}, sizes)


def test_what_one_kernel_alone_is_given_counts_for_it():
    sizes = {"batch": 1, "s_kv": 8192}
    params = {"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 8, "num_stages": 3, "NUM_SPLITS": 16}
    split, combine = Model(tiles("decode")).predict(params, sizes, H200).kernels
    own = Model(tiles("decode")).predict(params | {"o.num_warps": 1}, sizes, H200).kernels
    assert own[0] == split and own[1] != combine


def test_what_does_not_fit_is_not_chosen():
    small = replace(H200, shared=40_000, shared_limit=40_000)
    for r in ranked(tiles("matmul"), SQUARE, small):
        assert all(k.needs.shared <= 40_000 and k.resident for k in r.prediction.kernels)
    params = TILES | {"BLOCK_N": 128, "num_stages": 16}
    needs = Model(tiles("matmul")).predict(params, SQUARE, H200).kernels[0].needs
    assert not resident(needs, 8, H200) and us("matmul", params, SQUARE) == float("inf")


def test_spilled_registers_cost():
    wide = TILES | {"BLOCK_M": 256, "BLOCK_N": 256, "num_warps": 4, "num_stages": 2}
    assert us("matmul", wide, SQUARE) > 3 * us("matmul", TILES, SQUARE)


def test_ties_go_to_fewer_registers_three_stages_and_larger_tiles():
    """Where memory is the limit, all predictions are equal: what was measured to be best has few threads."""
    decode = ranked(lowered("flash_attention", operator("decode_gqa")).tiles, {"batch": 64, "s_kv": 8192}, H200)
    assert decode[0].params == {"BLOCK_M": 16, "BLOCK_N": 128, "num_warps": 4, "num_stages": 3}
    assert ranked(tiles("rows"), {"rows": 17, "cols": 29}, H200)[0].params["num_warps"] == 4


def test_given_values_are_kept_and_missing_sizes_say_nothing():
    made = ranked(tiles("matmul"), SQUARE, H200, {"BLOCK_M": 32, "num_stages": 3})
    assert made and all((r.params["BLOCK_M"], r.params["num_stages"]) == (32, 3) for r in made)
    assert ranked(tiles("matmul"), {"m": 16}, H200) == ()


@pytest.mark.parametrize("size", [0, 1, 3, 1 << 20])
def test_any_size_has_a_prediction(size):
    assert ranked(tiles("matmul"), {"m": size, "n": 64, "k": 64}, H200)
    assert ranked(tiles("rows"), {"rows": size, "cols": 64}, H200)


def test_machines_are_found_by_name_and_architecture():
    assert machine_of("90", "NVIDIA H200").name == "H200"
    assert machine_of("90", "NVIDIA H100 PCIe").name == "H100 PCIe"
    assert machine_of("90", "NVIDIA H100 80GB HBM3").name == "H100 SXM"
    assert machine_of("90", "NVIDIA H100 NVL").name == "H100 NVL"
    assert machine_of("90", "NVIDIA GH200 480GB").name == "GH200"
    assert machine_of("90", "NVIDIA GH200 144G HBM3e").name == "GH200 144G"
    assert machine_of("80", "NVIDIA A100-SXM4-80GB").name == "A100"
    assert machine_of("89", "NVIDIA L4").name == "L4" and machine_of("89", "NVIDIA GeForce RTX 4090").name == "L40S"
    assert machine_of("90", "NVIDIA A1000 what").name == "H200"
    assert machine_of("gfx942").arch == "gfx942" and machine_of("120").name == "H200"
    assert {"sm_80", "sm_86", "sm_89", "sm_90", "gfx90a", "gfx942"} <= set(BY_ARCH)


@pytest.mark.parametrize("name", DEVICES)
def test_every_machine_has_a_choice_and_a_source(name):
    machine = DEVICES[name]
    assert machine.source
    assert ranked(tiles("matmul"), SQUARE, machine) and ranked(
        tiles("causal"), {"batch": 1, "heads": 8, "s_q": 99, "s_kv": 99}, machine
    )


def test_8_bit_floats_move_half_the_bytes_and_multiply_at_twice_the_rate() -> None:
    assert H200.matrix["float8_e4m3fn"] == 2 * H200.matrix["float16"]
    assert machine_of("80").matrix["float8_e5m2"] == machine_of("80").matrix["float16"]
    # Their sums are added in float32 beside the matrix unit.
    assert 0.7 < us("product of 8 bits", TILES, SQUARE) / us("product of 16 bits", TILES, SQUARE) < 0.9
    thin = {"m": 64, "n": 65536, "k": 4096}  # waits for memory
    assert us("product of 8 bits", TILES, thin) < 0.8 * us("product of 16 bits", TILES, thin)


MEASURED_BY_COLUMNS = {
    # On an H200, 4096 rows and columns, depth 64: microseconds by template, tile and warps, parts.
    "kernel_density": {
        ("flash_decoding", 128, 128, 4, 8): 231,
        ("flash_decoding", 64, 128, 4, 8): 466,
        ("flash_decoding", 128, 128, 8, 8): 562,
        ("softmax_row", 8, 4096, 8, 1): 561,
        ("softmax_row", 2, 4096, 4, 1): 2476,
    },
    "gaussian_mixture": {
        ("softmax_row", 4, 4096, 16, 1): 2597,
        ("softmax_row", 2, 4096, 8, 1): 5070,
        ("softmax_row", 1, 4096, 4, 1): 12068,
    },
}


@pytest.mark.parametrize("name", MEASURED_BY_COLUMNS)
def test_columns_take_the_time_that_their_lines_take(name: str) -> None:
    """Whole rows of columns are a sector of L2 an element, 32 bytes for 4: without that these are 33 to 86 µs."""
    chain = next(c for c in ROW_CHAINS if c.name == name).build(64)
    found: dict[float, float] = {}
    for (template, rows, cols, warps, parts), us in MEASURED_BY_COLUMNS[name].items():
        made = lowered(template, chain).tiles
        params = {"num_warps": warps, "num_stages": 2}
        names = [t.name for t in made.tunables]
        params |= {n: rows if n == "BLOCK_M" else cols for n in names}
        sizes = {"rows": 4096, "cols": 4096, "NUM_SPLITS": parts}
        found[us] = Model(made).predict(params, sizes, DEVICES["H200"]).us
        assert us / 1.4 < found[us] < us * 1.4, (template, rows, cols, warps)
    assert found[min(found)] == min(found.values())


def test_rows_beyond_the_end_are_copied_as_zeros() -> None:
    """16 rows in tiles of 64: three quarters of the left operand are zeros, and none of the right one."""
    work = Model(tiles("matmul")).works[0]
    section = next(s for s in work.sections if s.loop is not None and s.products)
    lengths = {"a": (16, 4096), "b": (4096, 6144)}
    (product,) = section.products
    extents = {product.rows: 64, product.cols: 32, product.depth: 128}

    def size(axes: tuple[str, ...]) -> float:
        return float(prod(extents[a] for a in axes))

    assert zeros_beyond(section, size, lambda buffer, k: lengths[buffer][k]) == 48 * 128 * 2
    assert zeros_beyond(section, size, lambda buffer, k: 1 << 20) == 0
    rows = next(s for s in Model(tiles("rows")).works[0].sections if s.moves)
    assert not rows.products and zeros_beyond(rows, lambda axes: 64.0, lambda buffer, k: 1) == 0


def test_narrow_columns_wait_for_zeros() -> None:
    """Measured, 16 × 4096 · 4096 × 6144: 225.8 µs with tiles of 256 × 16 × 32, 25.2 with 16 × 64 × 128."""
    sizes = {"m": 16, "n": 6144, "k": 4096}
    launch = {"GROUP_M": 1, "num_warps": 8, "num_stages": 4}
    slow = us("matmul", {"BLOCK_M": 256, "BLOCK_N": 16, "BLOCK_K": 32} | launch, sizes)
    fast = us("matmul", {"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128} | launch | {"num_warps": 4}, sizes)
    assert 150 < slow < 340 and 22 < fast < 28


def test_what_was_written_before_is_written_back() -> None:
    """As many bytes as L2 has, whatever is read: a share of a short kernel's time, and little of a long one's."""
    clean = replace(bench.FITTED, written_back=0.0)
    params = {"BLOCK_M": 1, "BLOCK_N": 1024, "num_warps": 4, "num_stages": 2}
    model = Model(tiles("rows"))

    def more(rows: int) -> float:
        sizes = {"rows": rows, "cols": 1024}
        return model.predict(params, sizes, H200).us - model.predict(params, sizes, H200, clean).us

    assert 0 < more(1024) < more(16384)
    # Beside what is stored, the time of a quarter of L2 at most.
    most = 0.25 * H200.l2 / (bench.FITTED.memory * H200.memory * 1e3)
    assert more(1 << 20) <= most * 1.001 and more(1 << 20) == pytest.approx(more(1 << 19), rel=0.02)


def test_a_graph_of_few_rows_streams_its_weights() -> None:
    """RMSNorm → linear of 16 rows in one kernel: of what was measured, the first choice is the fastest, 22.8 µs."""
    measured = list(bench._graphs())
    figures = bench.judged(measured, bench.predictions(measured, bench.FITTED))
    assert figures.points >= 30 and figures.regret == 0
    assert figures.pairs >= 0.91 and figures.error <= 0.06
    chosen = ranked(measured[0].model.program, {}, H200)[0]
    assert chosen.params["BLOCK_I"] == 16 and chosen.params["BLOCK_P"] == 256 and chosen.prediction.us < 24
