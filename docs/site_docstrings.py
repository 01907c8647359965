"""Griffe extension: docstrings as Markdown.

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


class Markdown(griffe.Extension):
    """Rewrites every docstring as it is collected."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Fence examples, and take the colon pairs of reStructuredText away."""
        if obj.docstring is not None:
            text = EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
