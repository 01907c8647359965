"""What two outsiders found at the edges: threads and forks, empty axes, other people's classes, files and numbers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.masked import masked_tensor

import neptune
import neptune.functional as F
from neptune.base.locks import Lock
from neptune.base.shelf import Shelf
from neptune.errors import ExpressionError, RecordError, ShapeError
from neptune.frontend.builder import Axis, Tensor, compute, placeholder, prod, reduce_axis, sum, var
from neptune.frontend.builder import max as largest
from neptune.functional import flex
from neptune.ops.softmax import softmax
from qa.evaluated import evaluated

pytestmark = pytest.mark.compared
Q = torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(0))
n, m = var("n"), var("m")


@pytest.fixture
def evaluating() -> Iterator[None]:
    with evaluated():
        yield


# --- threads and forks ----------------------------------------------------------------------------------------


def test_mods_are_traced_in_many_threads(evaluating: None) -> None:
    flex._MODS.clear()
    bias, failed, together = torch.randn(9), list[BaseException](), threading.Barrier(4)

    def work() -> None:
        together.wait()
        for k in range(6):
            held = bias + k
            try:
                F.attention(Q, Q, Q, score_mod=lambda s, b, h, i, j, t=held: s + torch.sin(t[j]) + torch.cos(t[i]))
            except BaseException as error:
                failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert failed == []


def in_a_child(function: Callable[[], object], seconds: float = 20) -> bool:
    """Whether a forked child gets to the end of a function."""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG)[0]:
            return True
        time.sleep(0.02)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def held_by_a_thread(holder: Any) -> threading.Event:
    """Have another thread hold something until the event is set."""
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with holder:
            taken.set()
            done.wait()

    threading.Thread(target=hold, daemon=True).start()
    taken.wait()
    return done


def take(holder: Any) -> None:
    with holder:
        pass


def test_a_child_does_not_wait_for_a_thread_of_its_parent() -> None:
    lock = Lock()
    done = held_by_a_thread(lock)
    assert in_a_child(lambda: take(lock))
    done.set()
    with lock:
        assert in_a_child(lambda: take(lock)), "the thread that forks still has it"


def test_a_child_does_not_keep_a_lock_of_the_cache(tmp_path: Path) -> None:
    """What the parent has unlocked is free, though a child has the file open."""
    shelf = Shelf(tmp_path, "kernels", b"", 1 << 20, 100)
    done = held_by_a_thread(shelf.alone("key"))
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    done.set()
    start = time.monotonic()
    take(shelf.alone("key"))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert time.monotonic() - start < 30


# --- axes and counts ------------------------------------------------------------------------------------------


def folded(fold: Callable[..., Any], axis: Axis, x: Tensor) -> Tensor:
    return compute((n,), lambda i: fold(x[i, axis], axis=axis), "y")


@pytest.mark.parametrize("fold", [sum, prod, largest])
@pytest.mark.parametrize("bounds", [(5, 3), (4, 3), (3, 3), (2, 1), (20, 3)])
def test_an_axis_of_constants_that_ends_before_it_begins(fold: Callable[..., Any], bounds: tuple[int, int]) -> None:
    x = placeholder((n, m), "float32", "x")
    y, given = folded(fold, reduce_axis(bounds, "d"), x), torch.arange(1.0, 19.0).reshape(2, 9)
    found = [neptune.compile(y, target=target)(given) for target in ("interpret", "llvm")]
    assert torch.equal(found[0], found[1]) and len(set(found[0].tolist())) == 1


def test_an_axis_may_begin_below_0() -> None:
    x = placeholder((n,), "float32", "x")
    d = reduce_axis((-2, 3), "d")
    y = compute((n,), lambda i: largest(x[i + d], axis=d, where=(i + d >= 0) & (i + d < n)), "y")
    given = torch.randn(7)
    wanted = torch.nn.functional.max_pool1d(given[None], 5, 1, 2)[0]
    assert torch.equal(neptune.compile(y, target="llvm")(given), wanted)


@pytest.mark.parametrize(
    "wide", [lambda c, p: c.astype("int64") * p.astype("int64"), lambda c, p: c.astype("int64") * 7]
)
def test_a_number_of_elements_in_64_bits(wide: Callable[..., Any]) -> None:
    b, c, p = var("b"), var("c"), var("p")
    x = placeholder((b, c, p), "float32", "x")
    count = wide(c, p).astype("float32")
    u, v = reduce_axis((0, c), "u"), reduce_axis((0, p), "v")
    total = compute((b,), lambda i: sum(x[i, u, v], axis=(u, v)), "total")

    def off(i: Any, s: Any, t: Any) -> Any:
        return x[i, s, t] - total[i] / count

    spread = compute((b,), lambda i: sum(off(i, u, v) * off(i, u, v), axis=(u, v)), "spread")
    given = torch.randn(3, 5, 7)
    found = neptune.compile(spread, target="llvm")(given)
    torch.testing.assert_close(found, given.double().var((1, 2), correction=0).float() * 35)


@pytest.mark.parametrize("number", [2, 2**31 - 1, 2**31, 2**40, -(2**33)])
def test_a_number_of_a_fused_function_beyond_32_bits(number: int) -> None:
    def scaled(x: torch.Tensor, s: int) -> torch.Tensor:
        return (x * s).softmax(-1)

    torch._dynamo.reset()
    run, x = neptune.fuse(scaled, take="all", target="llvm"), torch.randn(4, 9)
    with torch.no_grad():
        for s in (3, 5, number):
            torch.testing.assert_close(run(x, s), scaled(x, s))


# --- other people's classes -----------------------------------------------------------------------------------


class Named(torch.Tensor):
    pass


class Config(dict[str, float]):
    __getattr__ = dict.__getitem__


def test_a_refused_mod_has_written_nothing(evaluating: None) -> None:
    seen = torch.zeros(4)

    def counting(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        seen.add_(1)
        return s + seen[j]

    with pytest.raises(ExpressionError, match="it writes to a tensor"):
        F.attention(Q, Q, Q, score_mod=counting)
    assert not seen.any()


def test_a_dictionary_with_attributes(evaluating: None) -> None:
    config = Config(scale=2.0)
    for scale in (2.0, 5.0):
        config["scale"] = scale
        found = F.attention(Q, Q, Q, score_mod=lambda s, b, h, i, j: s * config.scale)
        torch.testing.assert_close(found, F.attention(Q, Q, Q, scale=scale / 8**0.5))


@pytest.mark.parametrize(
    ("held", "instead"),
    [(torch.ones(4).as_subclass(Named), "as_subclass"), (np.ones(4, dtype=np.float32), "torch.from_numpy")],
)
def test_what_torchs_tracer_does_not_follow_is_named(held: Any, instead: str) -> None:
    with pytest.raises(ExpressionError, match="it reads `held`, a") as error:
        F.attention(Q, Q, Q, score_mod=lambda s, b, h, i, j: s + held[j])
    assert instead in str(error.value)


def test_a_masked_tensor_is_refused_in_words() -> None:
    x = torch.ones(2, 3)
    with pytest.raises(ShapeError, match="`input` is a MaskedTensor"):
        F.softmax(masked_tensor(x, x > 0))


def test_a_damaged_text_of_a_variant_is_named(tmp_path: Path) -> None:
    neptune.compile(softmax("float32"), target="llvm").save(tmp_path / "kernel")
    with (tmp_path / "kernel" / "variant1_tile.txt").open("a") as file:
        file.write("#\n")
    with pytest.raises(RecordError, match=r"variant1_tile\.txt has been changed"):
        neptune.load(tmp_path / "kernel")
