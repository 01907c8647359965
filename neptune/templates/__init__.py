"""Schedule templates: short functions over a schedule, one operator family a module.

In a wheel the modules lie beside this file. In a checkout, and so in an editable install, they lie in `templates/` at
the root of the repository, and that folder becomes part of this package.
"""

from __future__ import annotations

from pathlib import Path

_root = Path(__file__).resolve().parents[2]
# A folder that holds the project's own file is a checkout: `site-packages` may hold someone else's `templates`.
if (_root / "pyproject.toml").is_file():
    __path__.append(str(_root / "templates"))
