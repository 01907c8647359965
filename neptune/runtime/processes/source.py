"""Generated source as a Python module."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

from neptune.base.locks import Lock

_modules: dict[str, ModuleType] = {}
_lock = Lock()
_folder = tempfile.TemporaryDirectory(prefix="neptune-")


def load_source(source: str) -> ModuleType:
    """Import source text; triton reads functions back from their file, so that there must be one."""
    with _lock:
        if source not in _modules:
            name = f"generated_{len(_modules)}"
            path = Path(_folder.name, f"{name}.py")
            path.write_text(source)
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            _modules[source] = module
        return _modules[source]
