"""What can be said of a class of models: whether it can be served, and which masks it takes.

transformers lets every registered name pass, for every class. A class with attention of its own then asks for our mask
all the same, and reads it as if it were eager attention's: no mask where causality says all, so that the class is not
causal; a row of keys where it adds numbers. So a class is asked when a model is made, and once more at its first mask,
for a configuration that was changed later:

    served      transformers may exchange its attention (`_supports_sdpa`, `_supports_attention_backend`), and the
                attention of its module goes through the interface (transformers' own look at the module's text)
    refused     the others: Bloom, MPNet, GPT-J, Longformer, …; docs/transformers.md lists them
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from neptune.base.boundary import public
from neptune.errors import ShapeError

_registered: set[str] = set()


@dataclass(frozen=True)
class Masks:
    """Which masks models take that are less than all of it."""

    rows: bool = True
    """A row of keys for each sequence, as flash attention has it."""
    windows: bool = True
    """None for a causal window: every layer says its window itself."""


def ask_before_models_are_made(name: str) -> None:
    """Models whose class cannot be served refuse `name`, as those that do not know `sdpa` refuse that."""
    from transformers import PreTrainedModel

    _registered.add(name)
    before = PreTrainedModel.get_correct_attn_implementation
    if getattr(before, "asks_neptune", False):
        return

    @functools.wraps(before)
    def asked(model: Any, requested_attention: str | None, *args: Any, **options: Any) -> Any:
        if requested_attention in _registered:
            demand(type(model))
        return before(model, requested_attention, *args, **options)

    asked.asks_neptune = True  # type: ignore[attr-defined]
    PreTrainedModel.get_correct_attn_implementation = asked  # type: ignore[method-assign, assignment]


@public
def demand(model_class: Any) -> None:
    """Raise ShapeError for a class of models that cannot be served."""
    if not _is_served(model_class):
        raise ShapeError(
            f"attention of {model_class.__name__}",
            "it has attention of its own, and does not use the attention interface of transformers",
            hint='attn_implementation="eager" (of a part of a model: {"": "neptune", "text_config": "eager"})',
            kind="model_class",
        )


def _is_served(model_class: Any) -> bool:
    exchanged = model_class._supports_sdpa or model_class._supports_attention_backend
    return bool(exchanged and model_class._can_set_attn_implementation() and not _has_table(model_class))


def _has_table(model_class: Any) -> bool:
    """Whether its module chooses classes of attention by the name of an implementation."""
    return any(isinstance(v, dict) and "eager" in v for v in vars(_module(model_class)).values())


def masks_of(config_class: Any) -> Masks:
    """What all classes in use take whose models are made from such configurations; ShapeError for one not served."""
    classes = [c for c in _below_pretrained() if c.config_class is config_class]
    for c in classes:
        demand(c)
    return Masks(all(c._supports_flash_attn for c in classes), all("sliding_window=" in _text(c) for c in classes))


def _module(model_class: Any) -> Any:
    return sys.modules.get(model_class.__module__)


@functools.cache
def _text(model_class: Any) -> str:
    """Of its module; empty where there is none to read."""
    try:
        return inspect.getsource(_module(model_class))
    except (OSError, TypeError):
        return ""


def _below_pretrained() -> Iterator[Any]:
    from transformers import PreTrainedModel

    todo = [PreTrainedModel]
    while todo:
        below = todo.pop().__subclasses__()
        yield from below
        todo += below
