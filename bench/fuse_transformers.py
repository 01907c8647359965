"""The first functions with a reduction in transformers' models, for `bench.fuse`: found by reading the sources.

A function counts where its body calls one of WORDS on something, or multiplies matrices by `@`; in order of the models
as listed, and of lines. `self.norm(…)` is a module and no reduction.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from bench.fuse_functions import Args, Function

MODELS = ("llama", "gemma2", "mixtral", "gpt_oss")
WORDS = frozenset(
    (
        "mean", "sum", "softmax", "matmul", "amax", "amin", "argmax", "topk", "logsumexp", "var", "std", "bmm",
        "einsum", "linear", "prod", "cross_entropy",
    )
)  # fmt: skip


@dataclass(frozen=True)
class Found:
    """A function with a reduction: its model, line and name, and the words that it was found by."""

    model: str
    line: int
    name: str
    words: tuple[str, ...]


def functions() -> Iterator[Found]:
    """All of them, in order of file and line."""
    spec = importlib.util.find_spec("transformers")
    assert spec is not None and spec.origin is not None
    for model in MODELS:
        path = Path(spec.origin).parent / "models" / model / f"modeling_{model}.py"
        for name, node in _definitions(ast.parse(path.read_text()), ""):
            words = tuple(_words(node))
            if words:
                yield Found(model, node.lineno, name, words)


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _definitions(child, f"{child.name}.")
        elif isinstance(child, ast.FunctionDef):
            yield prefix + child.name, child


def _words(node: ast.FunctionDef) -> Iterator[str]:
    for n in ast.walk(node):
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr in WORDS:
            yield n.func.attr
        elif isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult):
            yield "@"


# --- how each is called ---------------------------------------------------------------------------

HIDDEN, EXPERTS = 256, 8


def _case(found: Found) -> tuple[Callable[..., Any], Callable[[torch.dtype], Args]]:
    module = importlib.import_module(f"transformers.models.{found.model}.modeling_{found.model}")
    if found.name.endswith("RMSNorm.forward") or found.name.endswith("RMSNorm._norm"):
        norm = getattr(module, found.name.partition(".")[0])(HIDDEN)
        method = norm._norm if found.name.endswith("_norm") else norm.forward
        return method, lambda d: (torch.randn(2, 256, HIDDEN, dtype=d),)
    if found.name == "eager_attention_forward":
        return _attention(module.eager_attention_forward, found.model)
    if found.name == "load_balancing_loss_func":
        return (
            lambda gate: module.load_balancing_loss_func((gate,), EXPERTS, 2),
            lambda d: (torch.randn(512, EXPERTS, dtype=d),),
        )
    if found.name.endswith("TopKRouter.forward"):
        return _router(module, found.name.partition(".")[0])
    if found.name.endswith("Experts.forward"):
        return _experts(module, found.name.partition(".")[0])
    raise LookupError(f"{found.name} is called by no row of bench.fuse_transformers")


def _attention(forward: Callable[..., Any], model: str) -> tuple[Callable[..., Any], Callable[[torch.dtype], Args]]:
    """As the models use it: of its two results, the weights are thrown away."""
    layer = SimpleNamespace(num_key_value_groups=4, head_dim=64, training=False, sinks=torch.randn(8))
    more = {"softcap": 50.0} if model == "gemma2" else {}

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> Any:
        layer.sinks = layer.sinks.to(q.dtype)
        return forward(layer, q, k, v, mask, scaling=0.125, dropout=0.0, **more)[0]

    def make(d: torch.dtype) -> Args:
        mask = torch.full((512, 512), torch.finfo(d).min, dtype=d).triu(1)[None, None]
        return (*(torch.randn(1, h, 512, 64, dtype=d) for h in (8, 2, 2)), mask)

    return call, make


def _config() -> Any:
    return SimpleNamespace(
        hidden_size=HIDDEN,
        intermediate_size=128,
        num_local_experts=EXPERTS,
        num_experts_per_tok=2,
        hidden_act="silu",
        _experts_implementation="eager",
    )


def _router(module: Any, name: str) -> tuple[Callable[..., Any], Callable[[torch.dtype], Args]]:
    router = getattr(module, name)(_config())
    torch.nn.init.normal_(router.weight, std=HIDDEN**-0.5)

    def call(x: torch.Tensor) -> Any:
        return router.to(x.dtype)(x)

    return call, lambda d: (torch.randn(512, HIDDEN, dtype=d),)


def _experts(module: Any, name: str) -> tuple[Callable[..., Any], Callable[[torch.dtype], Args]]:
    experts = getattr(module, name)(_config())
    for p in experts.parameters():
        torch.nn.init.normal_(p, std=HIDDEN**-0.5)

    def call(x: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> Any:
        return experts.to(x.dtype)(x, index, weights)

    def make(d: torch.dtype) -> Args:
        return torch.randn(64, HIDDEN, dtype=d), torch.randint(0, EXPERTS, (64, 2)), torch.rand(64, 2, dtype=d)

    return call, make


def first(count: int) -> Iterator[tuple[Found, Function]]:
    """The first functions of all models together."""
    for k, found in enumerate(functions()):
        if k >= count:
            return
        call, make = _case(found)
        yield found, Function(f"{found.model}.{found.name}", call, make, f"modeling_{found.model}.py:{found.line}")
