"""Programs of TVM's own operator library, at constant sizes, as `name -> (inputs, outputs)`.

`topi` builds tensor expressions that nobody wrote with Neptune in mind, so they say what a front end meets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import tvm
from tvm import te, topi

Program: TypeAlias = tuple[list[te.Tensor], list[te.Tensor]]
PROGRAMS: dict[str, Callable[[], Program]] = {}


def _tensor(shape: Sequence[int], name: str = "x", dtype: str = "float32") -> te.Tensor:
    return te.placeholder(tuple(shape), dtype, name)


def _add(name: str, make: Callable[..., Any], *inputs: tuple[Sequence[int], str]) -> None:
    """`make` of placeholders with these shapes and dtypes is the program `name`."""

    def program() -> Program:
        args = [_tensor(shape, f"x{k}", dtype) for k, (shape, dtype) in enumerate(inputs)]
        made = make(*args)
        return args, list(made) if isinstance(made, list | tuple) or not isinstance(made, te.Tensor) else [made]

    PROGRAMS[name] = program


F, INT, B = "float32", "int32", "bool"
ROWS = ((5, 19), F)
IMAGE = ((2, 6, 7, 5), F)

for _name in [
    "abs",
    "ceil",
    "cos",
    "erf",
    "exp",
    "fast_erf",
    "fast_exp",
    "fast_tanh",
    "floor",
    "identity",
    "isfinite",
    "isinf",
    "isnan",
    "log",
    "log2",
    "log10",
    "negative",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "sinh",
    "cosh",
]:
    _add(_name, getattr(topi, _name), ROWS)
for _name in [
    "add",
    "subtract",
    "multiply",
    "divide",
    "maximum",
    "minimum",
    "power",
    "mod",
    "floor_mod",
    "floor_divide",
    "log_add_exp",
]:
    _add(_name, getattr(topi, _name), ROWS, ((19,), F))
for _name in [
    "floor_mod",
    "floor_divide",
    "mod",
    "maximum",
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "left_shift",
    "right_shift",
]:
    _add(f"{_name}_int", getattr(topi, _name), ((5, 19), INT), ((19,), INT))
for _name in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"):
    _add(_name, getattr(topi, _name), ROWS, ROWS)
for _name in ("logical_and", "logical_or", "logical_xor"):
    _add(_name, getattr(topi, _name), ((5, 19), B), ((5, 19), B))
_add("logical_not", topi.logical_not, ((5, 19), B))
_add("bitwise_not", topi.bitwise_not, ((5, 19), INT))
for _name in ("sum", "max", "min", "prod", "argmax", "argmin"):
    _add(_name, partial(getattr(topi, _name), axis=1), ROWS)
_add("sum_all", lambda x: topi.sum(x), ROWS)
_add("sum_keepdims", lambda x: topi.sum(x, axis=(0, 2), keepdims=True), IMAGE)
for _name in ("all", "any"):
    _add(_name, partial(getattr(topi, _name), axis=1), ((5, 19), B))
_add("cast", lambda x: topi.cast(x, "int32"), ROWS)
_add("reinterpret", lambda x: topi.reinterpret(x, "int32"), ROWS)
_add("clip", lambda x: topi.clip(x, -0.5, 0.5), ROWS)
_add("where", topi.where, ((5, 19), B), ROWS, ROWS)
_add("full_like", lambda x: topi.full_like(x, 3.0), ROWS)
_add("elemwise_sum", lambda x, y: topi.elemwise_sum([x, y]), ROWS, ROWS)
_add("arange", lambda x: topi.add(topi.arange(0, 19, 1, "float32"), x), ROWS)
_add("broadcast_to", lambda x: topi.broadcast_to(x, (5, 19)), ((19,), F))
_add("expand_dims", lambda x: topi.expand_dims(x, 1), ROWS)
_add("squeeze", topi.squeeze, ((5, 1, 19), F))
_add("reshape", lambda x: topi.reshape(x, (19, 5)), ROWS)
_add("reshape_split", lambda x: topi.reshape(x, (2, 3, 2, 35)), IMAGE)
_add("transpose", lambda x: topi.transpose(x, (0, 2, 3, 1)), IMAGE)
_add("flip", lambda x: topi.flip(x, 1), ROWS)
_add("concatenate", lambda x, y: topi.concatenate([x, y], 1), ROWS, ((5, 7), F))
_add("stack", lambda x, y: topi.stack([x, y], 0), ROWS, ROWS)
_add("split", lambda x: topi.split(x, [4, 9], 1), ROWS)
_add("take", lambda x, i: topi.take(x, i, 1), ROWS, ((4,), INT))
_add("gather", lambda x, i: topi.gather(x, 1, i), ROWS, ((5, 4), INT))
_add("gather_nd", lambda x, i: topi.gather_nd(x, i), ROWS, ((2, 6), INT))
_add("one_hot", lambda i: topi.one_hot(i, 1.0, 0.0, 6, -1, "float32"), ((5,), INT))
_add("repeat", lambda x: topi.repeat(x, 3, 1), ROWS)
_add("tile", lambda x: topi.tile(x, (2, 3)), ROWS)
_add("strided_slice", lambda x: topi.strided_slice(x, [0, 2], [5, 15], [2, 3]), ROWS)
_add("trilu", lambda x: topi.trilu(x, tvm.tirx.const(1, "int32"), True), ROWS)
_add("matrix_set_diag", lambda x, y: topi.matrix_set_diag(x, y), ROWS, ((5,), F))
_add("sequence_mask", lambda x, n: topi.sequence_mask(x, n, axis=1), ROWS, ((5,), INT))
_add("reverse_sequence", lambda x, n: topi.reverse_sequence(x, n, 1, 0), ROWS, ((5,), INT))
_add("matmul", lambda x, y: topi.matmul(x, y), ((5, 19), F), ((19, 8), F))
_add("tensordot", lambda x, y: topi.tensordot(x, y, 1), ((5, 19), F), ((19, 8), F))
_add("einsum", lambda x, y: topi.einsum("ij,jk->ik", x, y), ((5, 19), F), ((19, 8), F))
_add("eye", lambda x: topi.add(topi.eye(5, 19, 0, "float32"), x) if hasattr(topi, "eye") else x, ROWS)
_add("dense", topi.nn.dense, ((5, 19), F), ((8, 19), F))
_add("batch_matmul", topi.nn.batch_matmul, ((2, 5, 19), F), ((2, 8, 19), F))
for _name in ("relu", "leaky_relu", "softmax", "log_softmax", "fast_softmax", "flatten"):
    _options = {"alpha": 0.1} if _name == "leaky_relu" else {}
    _add(_name, partial(getattr(topi.nn, _name), **_options), ROWS)
_add("softplus", lambda x: topi.nn.softplus(x, 1.0, 20.0), ROWS)
_add("prelu", lambda x, a: topi.nn.prelu(x, a, 1), IMAGE, ((6,), F))
_add("lrn", lambda x: topi.nn.lrn(x, 3), IMAGE)
_add("scale_shift", topi.nn.scale_shift_nchw, IMAGE, ((6,), F), ((6,), F))
_add("batch_norm", lambda x, *p: topi.nn.batch_norm(x, *p, 1)[0], IMAGE, *[((6,), F)] * 4)
_add("layer_norm", lambda x, g, b: topi.nn.layer_norm(x, g, b, [1]), ROWS, ((19,), F), ((19,), F))
_add("rms_norm", lambda x, g: topi.nn.rms_norm(x, g, [1]), ROWS, ((19,), F))
_add("group_norm", lambda x, g, b: topi.nn.group_norm(x, g, b, 3, 1, [2, 3]), IMAGE, ((6,), F), ((6,), F))
_add("instance_norm", lambda x, g, b: topi.nn.instance_norm(x, g, b, 1, [2, 3]), IMAGE, ((6,), F), ((6,), F))
_add("nll_loss", lambda x, t, w: topi.nn.nll_loss(x, t, w, "mean", -100), ROWS, ((5,), INT), ((19,), F))
_add("pad", lambda x: topi.nn.pad(x, (0, 2), (1, 3)), ROWS)
_add("mirror_pad", lambda x: topi.nn.mirror_pad(x, (0, 2), (1, 3)), ROWS)
_add("dilate", lambda x: topi.nn.dilate(x, (1, 2)), ROWS)
_add("depth_to_space", lambda x: topi.nn.depth_to_space(x, 2), ((2, 8, 3, 5), F))
_add("space_to_depth", lambda x: topi.nn.space_to_depth(x, 2), ((2, 3, 6, 4), F))
_add("upsampling", lambda x: topi.nn.upsampling(x, 2, 2, "NCHW"), IMAGE)
_add("conv1d", lambda x, w: topi.nn.conv1d(x, w, 1, 1, 1), ((2, 6, 9), F), ((4, 6, 3), F))
_add("conv2d", lambda x, w: topi.nn.conv2d_nchw(x, w, 1, 1, 1), IMAGE, ((4, 6, 3, 3), F))
_add("conv2d_nhwc", lambda x, w: topi.nn.conv2d_nhwc(x, w, 1, 1, 1), ((2, 7, 5, 6), F), ((3, 3, 6, 4), F))
_add("depthwise_conv2d", lambda x, w: topi.nn.depthwise_conv2d_nchw(x, w, 1, 1, 1), IMAGE, ((6, 1, 3, 3), F))
_add(
    "conv2d_transpose",
    lambda x, w: topi.nn.conv2d_transpose_nchw(x, w, (2, 2), (1, 1), F, (0, 0)),
    IMAGE,
    ((6, 4, 3, 3), F),
)
_add("max_pool", lambda x: topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "max"), IMAGE)
_add("avg_pool", lambda x: topi.nn.pool2d(x, (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), "avg"), IMAGE)
_add("global_pool", lambda x: topi.nn.global_pool(x, "avg"), IMAGE)
_add("adaptive_pool", lambda x: topi.nn.adaptive_pool(x, (3, 2), "avg"), IMAGE)
