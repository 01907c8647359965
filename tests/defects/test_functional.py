"""`neptune.functional`: captured objects, block masks, names, layouts, targets. Programs are evaluated in float64."""

from __future__ import annotations

import builtins
import contextlib
import enum
import functools
import inspect
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    and_masks,
    create_block_mask,
    create_mask,
    flex_attention,
)

import neptune
import neptune.functional as F
from neptune.errors import NeptuneError, NeptunePerformanceWarning, ShapeError
from neptune.functional import kernels
from neptune.ops.norm import layer_norm
from qa.evaluated import evaluated

pytestmark = pytest.mark.compared
KERNEL_OF = kernels.kernel_of
Tensor = torch.Tensor
HEADS, DEPTH = 2, 4


@pytest.fixture(autouse=True)
def _evaluated() -> Iterator[None]:
    torch._dynamo.reset()
    with torch.no_grad(), evaluated():
        yield


def tensors(s_q: int = 5, s_kv: int = 5, batch: int = 1, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    draw = torch.Generator().manual_seed(s_q)
    return [torch.randn(batch, HEADS, n, DEPTH, generator=draw).to(dtype) for n in (s_q, s_kv, s_kv)]


def scored(q: Tensor, k: Tensor, v: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """softmax(change(scores)) v in float64; a row of -inf alone is 0."""
    s = change(q.double() @ k.double().mT / DEPTH**0.5)
    return torch.nan_to_num(torch.softmax(s, -1), 0.0) @ v.double()


def seen_by(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    return scored(q, k, v, lambda s: s.masked_fill(~seen, float("-inf")))


def close(found: Any, wanted: Tensor) -> None:
    torch.testing.assert_close(found.double(), wanted.double(), atol=2e-6, rtol=2e-6)


# --- W8: what a mod holds may change between two calls ----------------------------------------------------

SCALE: Any = 2.0
SETTINGS = types.SimpleNamespace(scale=2.0)


class Number(float):
    factor = 2.0


class Level(enum.Enum):
    ONE = 1


class Slotted:
    __slots__ = ("scale",)


class Holder:
    scale: Any = 2.0

    @property
    def shown(self) -> Any:
        return self.scale

    def mod(self, s, b, h, i, j):
        return s * self.scale

    def __call__(self, s, b, h, i, j):
        return s * self.shown


@dataclass
class Data:
    scale: float


Pair = namedtuple("Pair", "scale other")


def _function_attribute():
    def mod(s, b, h, i, j):
        return s * mod.scale

    return mod, lambda x: setattr(mod, "scale", x)


def _attribute_of_a_function_in_a_closure():
    def inner(s):
        return s * inner.scale

    return (lambda s, b, h, i, j: inner(s)), lambda x: setattr(inner, "scale", x)


def _tensor_attribute_of_a_function():
    def mod(s, b, h, i, j):
        return s * mod.scale

    return mod, lambda x: setattr(mod, "scale", torch.tensor(x))


def _float_subclass():
    n = Number(1.0)
    return (lambda s, b, h, i, j: s * n.factor), lambda x: setattr(n, "factor", x)


def _list_subclass():
    n = type("Items", (list,), {})([1.0])
    return (lambda s, b, h, i, j: s * n.factor), lambda x: setattr(n, "factor", x)


def _dict_subclass():
    n = type("Items", (dict,), {})(a=1.0)
    return (lambda s, b, h, i, j: s * n.factor), lambda x: setattr(n, "factor", x)


def _class_attribute_of_a_number():
    n = Number(1.0)
    return (lambda s, b, h, i, j: s * n.factor), lambda x: setattr(Number, "factor", x)


def _attribute_of_a_tensor():
    t = torch.ones(HEADS)
    return (lambda s, b, h, i, j: s * t[h] * t.scale), lambda x: setattr(t, "scale", x)


def _tensor_on_a_tensor():
    t = torch.ones(HEADS)
    return (lambda s, b, h, i, j: s * t[h] * t.scale), lambda x: setattr(t, "scale", torch.tensor(x))


def _list_that_grows():
    items: list[float] = []

    def mod(s, b, h, i, j):
        return s * (len(items) + 1)

    return mod, lambda x: items.__setitem__(slice(None), [0.0] * (int(x) - 1))


def _dict_method():
    held: dict[str, float] = {}
    get = held.get
    return (lambda s, b, h, i, j: s * get("scale")), lambda x: held.__setitem__("scale", x)


def _object(make: Callable[[], Any]) -> Any:
    def case():
        o = make()
        return (lambda s, b, h, i, j: s * o.scale), lambda x: setattr(o, "scale", x)

    return case


def _bound_method():
    o = Holder()
    return o.mod, lambda x: setattr(o, "scale", x)


def _instance():
    o = Holder()
    return o, lambda x: setattr(o, "scale", x)


def _class_attribute():
    return (lambda s, b, h, i, j: s * Holder.scale), lambda x: setattr(Holder, "scale", x)


def _partial():
    held: dict[str, Any] = {"scale": 0.0}
    return functools.partial(lambda held, s, b, h, i, j: s * held["scale"], held), lambda x: held.update(scale=x)


def _attribute_of_a_partial():
    def scaled(s, b, h, i, j):
        return s * mod.scale

    mod = functools.partial(scaled)
    return mod, lambda x: setattr(mod, "scale", x)


def _global():
    return (lambda s, b, h, i, j: s * SCALE), lambda x: globals().update(SCALE=x)


def _global_by_name():
    return (lambda s, b, h, i, j: s * globals()["SCALE"]), lambda x: globals().update(SCALE=x)


def _global_of_an_imported_module():
    def mod(s, b, h, i, j):
        import tests.defects.test_functional as home

        return s * home.SCALE

    return mod, lambda x: setattr(sys.modules["tests.defects.test_functional"], "SCALE", x)


def _builtin():
    return (lambda s, b, h, i, j: s * neptunes_scale), lambda x: setattr(builtins, "neptunes_scale", x)  # noqa: F821


def _default():
    def mod(s, b, h, i, j, scale=1.0):
        return s * scale

    return mod, lambda x: setattr(mod, "__defaults__", (x,))


def _keyword_default():
    def mod(s, b, h, i, j, *, scale=1.0):
        return s * scale

    return mod, lambda x: mod.__kwdefaults__.update(scale=x)


def _deep_closure():
    scale = 0.0

    def change(x):
        nonlocal scale
        scale = x

    def outer(s):
        def inner():
            return (lambda: s * scale)()

        return inner()

    return (lambda s, b, h, i, j: outer(s)), change


def _in_the_guise_of_torch():
    held: dict[str, Any] = {}

    def inner(x):
        return x * STATE["scale"]

    inner.__module__ = "torch.nn.functional"
    return (lambda s, b, h, i, j: inner(s)), lambda x: STATE.update(scale=x) or held


STATE: dict[str, Any] = {}


def _name_of_a_function():
    def mod(s, b, h, i, j):
        return s * float(mod.__name__)

    return mod, lambda x: setattr(mod, "__name__", str(x))


def _enumeration():
    return (lambda s, b, h, i, j: s * Level.ONE.scale), lambda x: setattr(Level.ONE, "scale", x)


def _generator_of_numbers():
    found: list[Any] = []
    return (lambda s, b, h, i, j: s * next(iter(found))), lambda x: found.__setitem__(slice(None), [x])


def _number_in_a_module_of_torch():
    return (lambda s, b, h, i, j: s * torch.nn.functional.scale), lambda x: setattr(torch.nn.functional, "scale", x)


def _number_in_a_module_of_python():
    import math

    return (lambda s, b, h, i, j: s * math.scale), lambda x: setattr(math, "scale", x)


HELD: dict[str, Callable[[], tuple[Callable[..., Any], Callable[[Any], Any]]]] = {
    "a function's attribute": _function_attribute,
    "an attribute of a function in a closure": _attribute_of_a_function_in_a_closure,
    "a 0-d tensor on a function": _tensor_attribute_of_a_function,
    "a float of a class": _float_subclass,
    "a list of a class": _list_subclass,
    "a dict of a class": _dict_subclass,
    "a class of a number": _class_attribute_of_a_number,
    "a tensor's attribute": _attribute_of_a_tensor,
    "a 0-d tensor on a tensor": _tensor_on_a_tensor,
    "a list that grows": _list_that_grows,
    "a dict's method": _dict_method,
    "a dataclass": _object(lambda: Data(1.0)),
    "slots": _object(Slotted),
    "a namespace": _object(lambda: SETTINGS),
    "a module": _object(lambda: types.ModuleType("settings")),
    "a module of a known name": _object(lambda: types.ModuleType("operator.settings")),
    "a bound method": _bound_method,
    "an instance with a property": _instance,
    "a class": _class_attribute,
    "a partial": _partial,
    "a partial's attribute": _attribute_of_a_partial,
    "a global": _global,
    "a global by its name": _global_by_name,
    "a global of a module imported inside": _global_of_an_imported_module,
    "a builtin": _builtin,
    "a default": _default,
    "a keyword's default": _keyword_default,
    "a deep closure": _deep_closure,
    "a function that says it is torch's": _in_the_guise_of_torch,
    "a function's name": _name_of_a_function,
    "an enumeration": _enumeration,
    "a list by an iterator": _generator_of_numbers,
    "a number in a module of torch": _number_in_a_module_of_torch,
    "a number in a module of Python": _number_in_a_module_of_python,
}


@pytest.mark.parametrize("name", HELD)
def test_w8_what_a_mod_holds_is_what_it_is_at_the_call(name: str) -> None:
    q, k, v = tensors()
    mod, change = HELD[name]()
    for value in (2.0, 5.0, 5.0, 3.0):
        change(value)
        close(F.attention(q, k, v, score_mod=mod), scored(q, k, v, lambda s, x=value: s * x))


def _by_a_local_import() -> bool:
    import torch as other

    return other.is_grad_enabled()


STATES: dict[str, tuple[Callable[[], bool], Callable[[bool], Any]]] = {
    "gradients": (lambda: torch.is_grad_enabled(), torch.set_grad_enabled),
    "gradients, by its own name": (torch.is_grad_enabled, torch.set_grad_enabled),
    "gradients, by an import": (_by_a_local_import, torch.set_grad_enabled),
    "gradients, by getattr": (lambda: getattr(torch, "is_grad_" + "enabled")(), torch.set_grad_enabled),
    "inference": (lambda: torch.is_inference_mode_enabled(), torch.inference_mode),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda x: torch.autocast("cpu", enabled=x)),
    "determinism": (lambda: torch.are_deterministic_algorithms_enabled(), torch.use_deterministic_algorithms),
    "tf32": (
        lambda: torch.backends.cuda.matmul.allow_tf32,
        lambda x: setattr(torch.backends.cuda.matmul, "allow_tf32", x),
    ),
    "precision": (
        lambda: torch.get_float32_matmul_precision() == "high",
        lambda x: torch.set_float32_matmul_precision("high" if x else "highest"),
    ),
    "threads": (lambda: torch.get_num_threads() == 2, lambda x: torch.set_num_threads(1 + x)),
}


@pytest.mark.parametrize("name", STATES)
def test_w8_a_mod_reads_the_state_of_torch_at_the_call(name: str) -> None:
    asks, put = STATES[name]
    q, k, v = tensors()
    threads = torch.get_num_threads()
    try:
        for value in (False, True, False):
            found = put(value)
            with found if hasattr(found, "__enter__") else contextlib.nullcontext():
                o = F.attention(q, k, v, score_mod=lambda s, b, h, i, j: s * 3.0 if asks() else s)
                wanted = 3.0 if value else 1.0
            close(o, scored(q, k, v, lambda s, x=wanted: s * x))
    finally:
        put(False)
        torch.set_num_threads(threads)


def test_w8_the_version_of_a_tensor_and_whether_it_asks_for_a_gradient() -> None:
    q, k, v = tensors()
    t = torch.ones(HEADS)
    for version in (0, 1, 2):
        close(
            F.attention(q, k, v, score_mod=lambda s, b, h, i, j: s * t._version),
            scored(q, k, v, lambda s, x=version: s * x),
        )
        t.add_(0)
    for asks in (True, False):
        t.requires_grad_(asks)
        o = F.attention(q, k, v, score_mod=lambda s, b, h, i, j: s * t[h] * (3 if t.requires_grad else 5))
        close(o, scored(q, k, v, lambda s, x=asks: s * (3 if x else 5)))


def test_w8_a_named_tuple_may_be_another() -> None:
    q, k, v = tensors()

    def made(pair):
        return lambda s, b, h, i, j: s * pair.scale

    for value in (2.0, 5.0):
        close(F.attention(q, k, v, score_mod=made(Pair(value, 0))), scored(q, k, v, lambda s, x=value: s * x))


def test_w8_torchs_default_dtype_is_part_of_a_trace() -> None:
    """1/3 of torch.tensor is rounded to the default dtype."""
    q, k, v = (t * 1e3 for t in tensors())
    mod = lambda s, b, h, i, j: (s * torch.tensor(1 / 3)).float()  # noqa: E731
    F.attention(q, k, v, score_mod=mod)
    before, kinds = torch.get_default_dtype(), []
    from neptune.functional.flex import mods_of

    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            kinds.append(mods_of(mod, None)[0].key)
        finally:
            torch.set_default_dtype(before)
    assert kinds[0] != kinds[1]


def test_w8_in_compiled_code() -> None:
    """The tracer reads what a mod holds itself, and guards it: attributes, objects, numbers."""
    q, k, v = tensors()
    o = Holder()

    def with_attribute(s, b, h, i, j):
        return s * with_attribute.scale

    def called(q, k, v, mod):
        return F.attention(q, k, v, score_mod=mod)

    for holder, mod in ((with_attribute, with_attribute), (o, o.mod), (o, lambda s, b, h, i, j: s * o.shown)):
        compiled = torch.compile(called, backend="eager", fullgraph=True)
        for value in (2.0, 5.0):
            holder.scale = value
            close(compiled(q, k, v, mod), scored(q, k, v, lambda s, x=value: s * x))


# --- W14: blocks of a BlockMask ------------------------------------------------------------------------------


def dense(blocks: BlockMask, s_q: int, s_kv: int, batch: int = 1) -> Tensor:
    """Which keys a BlockMask shows, by its definition: partial blocks by mask_mod, full ones whole."""
    rows, cols = blocks.BLOCK_SIZE
    seen = torch.zeros(batch, HEADS, s_q, s_kv, dtype=torch.bool)
    rule = create_mask(blocks.mask_mod, batch, HEADS, s_q, s_kv, device="cpu").expand_as(seen)
    for count, index, full in (
        (blocks.kv_num_blocks, blocks.kv_indices, False),
        (blocks.full_kv_num_blocks, blocks.full_kv_indices, True),
    ):
        if count is None:
            continue
        for b in range(batch):
            for h in range(HEADS):
                of = count[b % count.shape[0], h % count.shape[1]]
                for r, n in enumerate(of.tolist()):
                    for c in index[b % count.shape[0], h % count.shape[1], r, :n].tolist():
                        part = (b, h, slice(r * rows, (r + 1) * rows), slice(c * cols, (c + 1) * cols))
                        seen[part] |= True if full else rule[part]
    return seen


def table(rows: list[list[int]], columns: int) -> tuple[Tensor, Tensor]:
    """Counts and indices of blocks, [1, 1, rows] and [1, 1, rows, columns]."""
    counts = torch.tensor([[[len(r) for r in rows]]], dtype=torch.int32)
    index = torch.tensor([[[r + [0] * (columns - len(r)) for r in rows]]], dtype=torch.int32)
    return counts, index


def check_blocks(blocks: BlockMask, s_q: int, s_kv: int, batch: int = 1) -> None:
    q, k, v = tensors(s_q, s_kv, batch)
    wanted = seen_by(q, k, v, dense(blocks, s_q, s_kv, batch))
    close(F.attention(q, k, v, block_mask=blocks), wanted)
    close(F.flex_attention(q, k, v, block_mask=blocks), wanted)


def test_w14_blocks_alone_say_what_is_seen() -> None:
    check_blocks(BlockMask.from_kv_blocks(*table([[0], [1]], 2), BLOCK_SIZE=4), 8, 8)
    check_blocks(BlockMask.from_kv_blocks(*table([[2, 0], [], [1]], 3), BLOCK_SIZE=(2, 4)), 6, 12)


def test_w14_full_blocks_are_seen_whole_and_others_by_the_mask() -> None:
    causal = lambda b, h, i, j: i >= j  # noqa: E731
    blocks = BlockMask.from_kv_blocks(*table([[0], [1]], 2), *table([[1], []], 2), BLOCK_SIZE=4, mask_mod=causal)
    check_blocks(blocks, 8, 8)


def test_w14_blocks_beyond_the_lengths_and_ragged_ends() -> None:
    blocks = BlockMask.from_kv_blocks(*table([[0], [1, 0]], 2), BLOCK_SIZE=4, seq_lengths=(7, 6))
    check_blocks(blocks, 7, 6)


def test_w14_blocks_of_each_batch_and_head() -> None:
    def mask(b, h, i, j):
        return (i + b >= j) & ((h == 0) | (j > 1))

    check_blocks(create_block_mask(mask, 2, HEADS, 9, 11, device="cpu", BLOCK_SIZE=4), 9, 11, 2)
    check_blocks(create_block_mask(lambda b, h, i, j: i >= j, None, None, 9, 9, device="cpu", BLOCK_SIZE=2), 9, 9, 2)
    counts = torch.tensor([[[1, 1], [0, 2]], [[2, 0], [1, 1]]], dtype=torch.int32)
    index = torch.tensor([[[[1, 0], [0, 0]], [[0, 1], [1, 0]]], [[[0, 1], [1, 1]], [[1, 0], [0, 1]]]])
    check_blocks(BlockMask.from_kv_blocks(counts, index.int(), BLOCK_SIZE=3, seq_lengths=(6, 5)), 6, 5, 2)


def test_w14_an_adjusted_and_a_changed_block_mask() -> None:
    blocks = create_block_mask(lambda b, h, i, j: i >= j, None, None, 8, 8, device="cpu", BLOCK_SIZE=2)
    check_blocks(blocks._adjust(5, 7), 5, 7)
    selected = BlockMask.from_kv_blocks(*table([[0], [1]], 2), BLOCK_SIZE=4)
    check_blocks(selected, 8, 8)
    selected.kv_indices.copy_(table([[1], [1]], 2)[1])
    check_blocks(selected, 8, 8)


def test_w14_a_sliced_block_mask_is_refused_in_words() -> None:
    blocks = create_block_mask(lambda b, h, i, j: i >= j, 2, HEADS, 8, 8, device="cpu", BLOCK_SIZE=2)[0]
    q, k, v = tensors(8, 8)
    with pytest.raises(NeptuneError, match="slice"):
        F.attention(q, k, v, block_mask=blocks)
    with pytest.raises(NeptuneError, match=r"slice|queries"):
        F.attention(*tensors(4, 8), block_mask=blocks)


def test_w14_in_compiled_code() -> None:
    q, k, v = tensors(8, 8)
    blocks = BlockMask.from_kv_blocks(*table([[0], [1]], 2), BLOCK_SIZE=4, mask_mod=lambda b, h, i, j: i >= j)
    compiled = torch.compile(
        lambda q, k, v, m: F.flex_attention(q, k, v, block_mask=m), backend="aot_eager", fullgraph=True
    )
    close(compiled(q, k, v, blocks), seen_by(q, k, v, dense(blocks, 8, 8)))


# --- L14: a name of a user's is never one of ours -------------------------------------------------------------

NAMES = ("idx", "idx_table", "offs_q", "stride_h", "pid_0", "q", "k", "max", "tl", "s_q", "score", "b", "x_ptr", "inf")
GENERATED = (
    "range",
    "batch",
    "heads",
    "s_kv",
    "slopes",
    "sinks",
    "lse",
    "_",
    "acc",
    "BLOCK_M",
    "q_in",
    "lambda_",
    "a_",
)


@pytest.mark.parametrize("name", [*NAMES, *GENERATED])
def test_l14_a_captured_tensor_may_have_any_name(name: str) -> None:
    held = torch.tensor([0, 1, 0, 1, 1])
    made: dict[str, Any] = {}
    exec(f"def of({name}):\n    return lambda u, w, i, j: {name}[i] == {name}[j]", made)
    q, k, v = tensors()
    from neptune.functional.flex import mods_of

    found, _ = mods_of(None, made["of"](held))
    (buffer,) = found.given[0].placeholders
    from neptune.ir.names import fits

    assert fits(buffer.name) and all(fits(d.name) for d in buffer.shape)
    close(F.attention(q, k, v, mask_mod=made["of"](held)), seen_by(q, k, v, held[:, None] == held))


def test_l14_two_tensors_of_names_that_meet() -> None:
    """`x`, `x_in` and `x1` beside each other, and sizes of theirs."""
    x, x_in, x1 = torch.randn(5), torch.randn(5, 5), torch.randn(5)
    mod = lambda s, b, h, i, j: s + x[i] * x_in[i, j] - x1[j]  # noqa: E731
    q, k, v = tensors()
    close(F.attention(q, k, v, score_mod=mod), scored(q, k, v, lambda s: s + x[:, None] * x_in - x1))


@pytest.mark.parametrize("name", ["max", "tl", "min", "x_ptr", "stride_0", "torch", "grid", "a_", "_x", "libdevice"])
def test_l14_what_a_builder_program_names_may_have_any_name(name: str) -> None:
    from neptune.driver.imports import imported
    from neptune.frontend.builder import build, compute, placeholder, reduce_axis, var
    from neptune.frontend.builder import sum as total
    from neptune.ir.evaluate.program import evaluate
    from neptune.ir.names import fits

    given = torch.randn(3, 4, dtype=torch.float64).numpy()
    for role in ("input", "size", "loop", "axis", "result", "program"):
        names = {r: name if r == role else r for r in ("input", "size", "loop", "axis", "result", "program")}
        x = placeholder((var("rows"), var(names["size"])), "float32", names["input"])
        j = reduce_axis((0, x.shape[1]), names["axis"])
        made: dict[str, Any] = {"x": x, "total": total, "j": j}
        body = eval(f"lambda {names['loop']}: total(x[{names['loop']}, j], axis=j)", made)
        program = imported(build(compute((x.shape[0],), body, names["result"]), name=names["program"]), None, None)
        assert all(fits(n) for n in (program.name, *program.globals, *(s.name for s in program.scalars)))
        sizes = dict(zip((s.name for s in program.scalars), given.shape, strict=True))
        found = evaluate(program, {program.inputs[0].name: given}, sizes)[program.outputs[0].name]
        close(torch.from_numpy(found), torch.from_numpy(given).sum(1))


# --- L16: mods made in compiled code ---------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_l16_a_closure_made_in_compiled_code(backend: str) -> None:
    """As modules use FlexAttention: a mod over what forward has just computed."""

    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias, self.window = torch.nn.Parameter(torch.randn(HEADS, 5)), 3

        def forward(self, q, k, v, document):
            twice = self.bias * 2

            def score(s, b, h, i, j):
                return s + twice[h, j - i] * self.window

            def mask(b, h, i, j):
                return (document[b, i] == document[b, j]) | (i - j == 1)

            o, lse = F.attention(q, k, v, score_mod=score, mask_mod=mask, return_lse=True)
            return o + 1, lse

    layer, (q, k, v) = Layer(), tensors()
    compiled = torch.compile(layer, fullgraph=True, backend=backend)
    for document in (torch.tensor([[0, 0, 1, 1, 1]]), torch.tensor([[0, 0, 0, 1, 1]])):
        for found, wanted in zip(compiled(q, k, v, document), layer(q, k, v, document), strict=True):
            close(found, wanted)


def test_l16_new_lengths_and_numbers_in_compiled_code() -> None:
    def call(q, k, v, bias, w):
        return F.attention(q, k, v, score_mod=lambda s, b, h, i, j: torch.where(j < w, s + bias[h, j], -torch.inf))

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager", dynamic=True)
    for n, w in ((5, 3), (7, 3), (7, 4)):
        q, k, v = tensors(n, n)
        bias = torch.randn(HEADS, n)
        hidden = torch.arange(n) >= w
        wanted = scored(q, k, v, lambda s, b=bias, h=hidden: (s + b[:, None]).masked_fill(h, float("-inf")))
        close(compiled(q, k, v, bias, w), wanted)


def test_l16_masks_of_masks_and_blocks_made_in_compiled_code() -> None:
    def call(q, k, v, document):
        same = lambda b, h, i, j: document[i] == document[j]  # noqa: E731
        causal = lambda b, h, i, j: i >= j  # noqa: E731
        return F.flex_attention(q, k, v, block_mask=None), F.attention(q, k, v, mask_mod=and_masks(same, causal))

    q, k, v = tensors()
    document = torch.tensor([0, 0, 1, 1, 1])
    whole, masked = torch.compile(call, fullgraph=True, backend="eager")(q, k, v, document)
    close(whole, scored(q, k, v, lambda s: s))
    close(masked, seen_by(q, k, v, (document[:, None] == document).tril()))


# --- FlexAttention's face, L17: strides, dtypes, nested tensors --------------------------------------------------


def test_l17_the_signature_is_torchs() -> None:
    ours, theirs = (list(inspect.signature(f).parameters.values()) for f in (F.flex_attention, flex_attention))
    assert [(p.name, p.kind, p.default) for p in ours] == [(p.name, p.kind, p.default) for p in theirs]


def test_l17_sums_maxima_and_options() -> None:
    q, k, v = tensors()
    mod = lambda s, b, h, i, j: torch.where(i >= j, s * 2, -float("inf"))  # noqa: E731
    blocks = create_block_mask(lambda b, h, i, j: (i > 1) & (j < 3), None, None, 5, 5, device="cpu")
    s = (q.double() @ k.double().mT * 0.3 * 2).masked_fill(~torch.ones(5, 5).bool().tril(), -torch.inf)
    s = s.masked_fill(~((torch.arange(5)[:, None] > 1) & (torch.arange(5) < 3)), -torch.inf)
    o, lse = F.flex_attention(q, k, v, mod, blocks, 0.3, return_lse=True, kernel_options={"BLOCK_M": 16})
    close(lse, torch.logsumexp(s, -1))
    again, aux = F.flex_attention(q, k, v, mod, blocks, 0.3, return_aux=AuxRequest(lse=True, max_scores=True))
    close(again, o)
    close(aux.lse, lse)
    close(aux.max_scores, s.amax(-1))
    _, aux = F.flex_attention(q, k, v, mod, blocks, 0.3, return_aux=AuxRequest())
    assert aux.lse is None and aux.max_scores is None
    with pytest.raises(ShapeError, match="return_aux"):
        F.flex_attention(q, k, v, return_lse=True, return_aux=AuxRequest(lse=True))


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 0, 1, 3), (1, 2, 0, 3), (0, 1, 3, 2)])
def test_l17_the_result_has_qs_order_of_strides(order: tuple[int, ...]) -> None:
    def laid(t: Tensor) -> Tensor:
        back = [order.index(d) for d in range(4)]
        return t.permute(order).contiguous().permute(back)

    q, k, _ = (laid(t) for t in tensors(5, 7, 3))
    wide = laid(torch.randn(3, HEADS, 7, 6))
    theirs = flex_attention(q, k, wide)
    for call in (F.flex_attention, F.attention):
        ours = call(q, k, wide)
        assert ours.stride() == theirs.stride()
        close(ours, theirs)
    compiled = torch.compile(lambda *t: F.flex_attention(*t), backend="aot_eager", fullgraph=True)(q, k, wide)
    assert compiled.stride() == theirs.stride()


def test_l17_float64_keeps_its_digits() -> None:
    q, k, v = tensors(dtype=torch.float64)
    mod = lambda s, b, h, i, j: s * 1.25 + (i - j) * 1e-11  # noqa: E731
    distance = torch.arange(5.0, dtype=torch.float64)
    o, lse = F.flex_attention(q, k, v, mod, return_lse=True)
    s = q @ k.mT / 2 * 1.25 + (distance[:, None] - distance) * 1e-11
    assert o.dtype == torch.float64
    torch.testing.assert_close(o, torch.softmax(s, -1) @ v, atol=1e-14, rtol=1e-14)
    torch.testing.assert_close(lse.double(), torch.logsumexp(s, -1), atol=1e-6, rtol=1e-6)


def test_l17_nested_tensors_are_refused_in_words() -> None:
    nested = torch.nested.nested_tensor([torch.randn(3, HEADS, DEPTH), torch.randn(2, HEADS, DEPTH)])
    jagged = torch.nested.nested_tensor([torch.randn(3, 8), torch.randn(2, 8)], layout=torch.jagged)
    for t in (nested, jagged):
        for call in (F.flex_attention, F.attention, F.scaled_dot_product_attention):
            with pytest.raises(ShapeError, match="nested"):
                call(t, t, t)
        with pytest.raises(ShapeError, match="nested"):
            F.softmax(t)


# --- W7: targets that are no class -------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [11, 50, -1, 2**40, -(2**31)])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_w7_a_target_that_is_no_class_is_refused(bad: int, reduction: str) -> None:
    x, w = torch.randn(4, 8), torch.randn(11, 8)
    target = torch.tensor([0, 1, bad, -100])
    with pytest.raises(ShapeError, match=f"{bad}"):
        F.linear_cross_entropy(x, w, target, reduction=reduction)


def test_w7_checks_are_looked_for_at_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that was compiled before NEPTUNE_CHECK was set looks at indices, too."""
    from neptune.frontend.builder import compute, placeholder, var

    monkeypatch.delenv("NEPTUNE_CHECK", raising=False)
    rows, cols, words = var("rows"), var("cols"), var("words")
    ids, held = placeholder((rows,), "int64", "ids"), placeholder((words, cols), "float32", "held")
    kernel = neptune.compile(
        compute((rows, cols), lambda i, c: held[ids[i], c], "embedded"), inputs=[held, ids], target="interpret"
    )
    good, bad = torch.tensor([10, 0, 9]), torch.tensor([10, 0, 99])
    given = torch.randn(11, 7)
    torch.testing.assert_close(kernel(given, good), given[good])
    monkeypatch.setenv("NEPTUNE_CHECK", "1")
    torch.testing.assert_close(kernel(given, good), given[good])
    with pytest.raises(ShapeError, match="99"):
        kernel(given, bad)


# --- options: kinds, symbols, how many kernels they make ------------------------------------------------------------

MATRIX = torch.randn(3, 8, generator=torch.Generator().manual_seed(1))
PIXELS = MATRIX.reshape(1, 3, 8)
OF_OTHER_KINDS: dict[str, Callable[[], Any]] = {
    "two dims": lambda: F.logsumexp(MATRIX, (0, 1)),
    "no dim": lambda: F.softmax(MATRIX, None),
    "a dim of a float": lambda: F.softmax(MATRIX, 1.0),
    "a dim of a bool": lambda: F.softmax(MATRIX, True),
    "a tensor as dim": lambda: F.softmax(MATRIX, torch.tensor(1)),
    "a shape of one number": lambda: F.layer_norm(MATRIX, 8),
    "a shape of floats": lambda: F.rms_norm(MATRIX, (8.0,)),
    "groups of a float": lambda: F.group_norm(PIXELS, 3.0),
    "k of no dimension": lambda: F.softmax_top_k(MATRIX.sum(), 1),
    "a sparse tensor": lambda: F.softmax(MATRIX.to_sparse()),
    "sparse keys": lambda: F.attention(*[MATRIX[None, None].to_sparse()] * 3, mask_mod=lambda b, h, i, j: i > j),
    "an eps of a bool": lambda: F.layer_norm(MATRIX, (8,), eps=True),
    "a flag of a number": lambda: F.logsumexp(MATRIX, 1, keepdim=1),
    "an activation of a number": lambda: F.linear(MATRIX, MATRIX, activation=3),
    "an index of a float": lambda: F.linear_cross_entropy(MATRIX, MATRIX, torch.arange(3), ignore_index=1.0),
    "a reduction of None": lambda: F.linear_cross_entropy(MATRIX, MATRIX, torch.arange(3), reduction=None),
    "a window of a float": lambda: F.attention(*[MATRIX[None, None]] * 3, window=2.0),
    "a scale of a word": lambda: F.attention(*[MATRIX[None, None]] * 3, scale="a"),
    "a list for a tensor": lambda: F.softmax([1.0, 2.0]),
}


@pytest.mark.parametrize("name", OF_OTHER_KINDS)
def test_l10_an_argument_of_another_kind_is_named(name: str) -> None:
    with pytest.raises(ShapeError) as error:
        OF_OTHER_KINDS[name]()
    assert "legal here" in str(error.value)


def test_l10_numbers_of_numpy_are_numbers() -> None:
    import numpy as np

    close(F.softmax(MATRIX, np.int64(1)), MATRIX.softmax(1))
    close(F.layer_norm(MATRIX, MATRIX.shape[1:], eps=np.float32(0.5)), torch.layer_norm(MATRIX, (8,), eps=0.5))


@pytest.mark.parametrize("eps", [float("nan"), float("inf"), -1.0])
def test_l13_the_hint_for_a_wrong_epsilon_is_one_that_is_taken(eps: float) -> None:
    with pytest.raises(NeptuneError, match="eps of at least 0"):
        F.layer_norm(MATRIX, (8,), eps=eps)


SYMBOLS: dict[str, Callable[[Tensor, Any], Any]] = {
    "window": lambda q, n: F.attention(q, q, q, window=n),
    "window beside a mod": lambda q, n: F.attention(q, q, q, window=n, mask_mod=lambda b, h, i, j: i != j),
    "softcap": lambda q, n: F.attention(q, q, q, softcap=n * 1.5),
    "ignore_index": lambda q, n: F.linear_cross_entropy(q[0, 0], q[0, 0], torch.arange(4), ignore_index=n),
    "eps": lambda q, n: F.layer_norm(q, (q.shape[-1],), eps=n * 1e-3),
    "dim": lambda q, n: F.softmax(q, n % 4),
    "groups": lambda q, n: F.group_norm(q, n),
    "k": lambda q, n: F.softmax_top_k(q, n)[0],
}


@pytest.mark.parametrize("name", SYMBOLS)
def test_l7_an_option_that_torch_makes_a_symbol(name: str) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(SYMBOLS[name], backend="eager", fullgraph=True)
    q = torch.randn(1, 12, 4, 16, generator=torch.Generator().manual_seed(2))
    for n in (1, 2, 3, 4):
        close(compiled(q, n), SYMBOLS[name](q, n))


def test_l11_many_kernels_by_one_number_are_said_and_the_oldest_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "REMEMBERED", 20)
    monkeypatch.setattr(kernels, "first", lambda program, *_: types.SimpleNamespace(with_params=lambda: program))
    for table in ("_KERNELS", "_BY_TEXT"):
        monkeypatch.setattr(kernels, table, {})

    def kernel(eps: float) -> Any:
        return KERNEL_OF(kernels.structure("layer_norm", eps=eps), lambda: layer_norm("float32", eps=eps), (MATRIX,))

    with pytest.warns(NeptunePerformanceWarning, match=r"17th time: eps is 0\.17, was 0\.1") as said:
        made = [kernel(n / 100) for n in range(1, 25)]
    assert len(said) == 1
    assert len(kernels._BY_TEXT) == len(kernels._KERNELS) == 20
    assert kernel(0.24) is made[-1] and kernel(0.01) is not made[0]


# --- W10: rows that are small, 0, NaN or infinite ------------------------------------------------------------------


@pytest.mark.parametrize("to", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("size", [1.0, 1e-7, 1e-20, 1e-36, 1e30])
def test_w10_small_rows_keep_their_digits(to: torch.dtype, size: float) -> None:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 16, generator=draw) * size
    w = (torch.randn(5, 16, generator=draw) * 20).round().to(to)
    wanted = x.double() @ w.double().mT
    found = F.quantised_linear(x, w).double()
    assert (found - wanted).norm() <= 0.05 * wanted.norm()


def test_w10_rows_of_nothing_and_of_nan() -> None:
    x = torch.ones(4, 16)
    x[0], x[1, 3], x[2, 5] = 0.0, float("nan"), 1e-45
    w = torch.ones(5, 16, dtype=torch.int8)
    found = F.quantised_linear(x, w)
    assert (found[0] == 0).all() and found[1].isnan().all() and found[2].isfinite().all()
    close(found[3], torch.full((5,), 16.0))


# --- L13: what was refused and is legal -----------------------------------------------------------------------------


def test_l13_functions_of_rows_of_a_0d_tensor() -> None:
    x = torch.tensor(3.0)
    for dim in (0, -1):
        for ours, theirs in (
            (F.softmax, torch.softmax),
            (F.log_softmax, torch.log_softmax),
            (F.logsumexp, torch.logsumexp),
        ):
            close(ours(x, dim), theirs(x, dim))
    with pytest.raises(ShapeError, match="dim=1"):
        F.softmax(x, 1)


def test_l13_captured_views() -> None:
    bias = torch.randn(HEADS, 5, 5)
    q, k, v = tensors()
    close(
        F.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, :][j]),
        scored(q, k, v, lambda s: s + bias),
    )


# --- nets -----------------------------------------------------------------------------------------------------------


def test_a_slice_of_flexattentions_suite() -> None:
    from qa.flex_suite import run

    found = run(every=9)
    assert not found.get("wrong") and not found.get("raised"), found
    assert len(found["right"]) >= 0.97 * sum(map(len, found.values())), found.get("refused")


def test_a_slice_of_the_fuzzer_of_attentions_face(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a mutant that it rejects: lists of blocks that are read beyond their counts."""
    from neptune.functional import blocks
    from qa.fuzz_functional import drawn, trial

    assert [s for s in range(12) if trial(s).kind != "right"] == []
    listed = blocks._listed
    monkeypatch.setattr(blocks, "_listed", lambda *a: torch.ones_like(listed(*a)))
    by_blocks = [s for s in range(60) if drawn(s, "cpu").blocks is not None]
    assert "wrong" in {trial(s).kind for s in by_blocks[:6]}


@pytest.mark.parametrize(
    "view", [lambda t: t.t(), lambda t: t[None].permute(0, 2, 1)[0], lambda t: t.unsqueeze(-1)[..., 0].mT]
)
def test_a_view_of_a_captured_tensor_serves_other_lengths(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """A dimension of one element at the first call is not one of one element at the next."""
    for batch, m, n in ((1, 1, 1), (3, 2, 21)):
        q, k, v = (torch.randn(batch, 1, x, 16) for x in (m, n, n))
        table = torch.rand(batch, n) < 0.6
        table[:, 0] = True
        found = neptune.functional.attention(q, k, v, mask_mod=lambda b, h, i, j: view(table)[j, b])  # noqa: B023
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=table[:, None, None])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        given = neptune.functional.attention(q, k, v, attn_mask=table[:, None, None])
        torch.testing.assert_close(given, wanted, rtol=1e-5, atol=1e-5)


def test_captured_tensors_are_broadcast_as_they_are_at_the_call() -> None:
    """What had the length of another tensor at the first call may be one element at the next."""
    q, k, v = (torch.randn(1, 1, n, 16) for n in (2, 5, 5))
    for sizes in ((5, 5), (1, 5), (5, 1)):
        x, y = map(torch.randn, sizes)
        found = neptune.functional.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (x + y)[j])  # noqa: B023
        wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=(x + y)[None, None, None])
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
