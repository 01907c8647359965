"""Griffe extension: what the reference shows of `neptune.ops`, and docstrings as Markdown.

A `>>>` example is a quotation to Markdown; before → after::

    >>> read({})                        ```pycon
    Config(…)                →          >>> read({})
                                        Config(…)
                                        ```
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?:^>>> .*(?:\n(?!\s*$).*)*\n?)+", re.MULTILINE)
MADE = ("Program", "Mask")
"""What operators and masks return."""


class Reference(griffe.Extension):
    """Rewrites every docstring as it is collected, and hides what only operators use."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence examples, and take the colon pairs of reStructuredText away."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Leave the functions of `neptune.ops` that return a Program or a Mask, and the modules that have some."""
        for module in pkg["ops"].modules.values():
            members = [m for m in module.members.values() if not m.is_alias]
            for member in members:
                member.public = _is_operator(member)
            module.public = any(m.public for m in members)


def _is_operator(member: griffe.Object) -> bool:
    return isinstance(member, griffe.Function) and str(member.returns) in MADE and not member.name.startswith("_")
