"""Results as JSON for people and for diffs: a line for each row, not for each number."""

from __future__ import annotations

import json
from typing import Any

DEPTH = 2
"""From this depth on, a value is one line."""


def as_json(content: Any) -> str:
    """The text of a file of results.

    >>> print(as_json({"unit": "us", "rows": [{"n": 1, "us": [3, 4]}, {"n": 2, "us": [5]}]}), end="")
    {
     "unit": "us",
     "rows": [
      {"n": 1, "us": [3, 4]},
      {"n": 2, "us": [5]}
     ]
    }
    """
    return _text(content, 0) + "\n"


def _text(value: Any, depth: int) -> str:
    if depth >= DEPTH or not isinstance(value, dict | list) or not value:
        return json.dumps(value)
    pad = "\n" + " " * (depth + 1)
    if isinstance(value, dict):
        items = [f"{json.dumps(k)}: {_text(v, depth + 1)}" for k, v in value.items()]
    else:
        items = [_text(v, depth + 1) for v in value]
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}{pad}{f',{pad}'.join(items)}{pad[:-1]}{last}"
