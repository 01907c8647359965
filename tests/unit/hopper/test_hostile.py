"""Programs that the form was not written for: it is derived and right, or refused with a reason."""

from __future__ import annotations

from neptune.driver.pipeline import as_program
from neptune.errors import Unsupported
from neptune.forms import Source
from neptune.frontend.builder import Tensor, compute, placeholder, reduce_axis, sum, var
from neptune.hopper.derive import derived
from neptune.templates.matmul import matmul
from neptune.tile.ir import TileProgram
from neptune.tile.pipeline import lower
from tests.examples.lowering import scheduled

M, N, K = var("m"), var("n"), var("k")


def product() -> Tensor:
    a, w, q = placeholder((M, K), "float16", "a"), placeholder((K, N), "float16", "w"), reduce_axis((0, K), "q")
    return compute((M, N), lambda i, j: sum(a[i, q].astype("float32") * w[q, j].astype("float32"), axis=q), "p")


def tiles(output: Tensor) -> TileProgram:
    return lower(scheduled(as_program(output), matmul))


def test_a_result_that_is_stored_in_columns_stays_on_tiles() -> None:
    """Gluon has no transposition in registers that keeps a layout."""
    p = product()
    turned = compute((N, M), lambda j, i: p[i, j].astype("float16"), "o")
    refused = derived(Source(tiles(turned)))
    assert isinstance(refused, Unsupported) and "is turned in registers" in str(refused)
    assert refused.kernel == "o_kernel" and refused.legal
