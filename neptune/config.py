"""Settings from the environment, read when they are asked for.

NEPTUNE_TARGET   what to compile for where the caller does not say ("cuda", "llvm", "interpret", …)
NEPTUNE_VERIFY   0: no checks; 1 (default): verifiers and a few exact instances; 2: many exact instances
NEPTUNE_DUMP     a folder that receives one numbered text file per pass (and nothing is taken from the cache)
NEPTUNE_CACHE_DIR  the folder of compiled kernels; by default the user's cache folder (~/.cache/neptune on Linux),
                   and 0 for none
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from neptune.errors import NeptuneError

DRAWS = {0: 0, 1: 4, 2: 24}
"""How many exact instances each level of NEPTUNE_VERIFY draws."""
NO_CACHE = "0"


@dataclass(frozen=True)
class Config:
    """The settings at one moment. `target`, `dump` and `cache` are None where they are not set."""

    target: str | None = None
    verify: int = 1
    dump: Path | None = None
    cache: str | None = None

    @property
    def cache_dir(self) -> Path | None:
        """Where compiled kernels are kept, None for nowhere."""
        if self.cache == NO_CACHE:
            return None
        return _user_cache() if self.cache is None else Path(os.path.expanduser(self.cache)).absolute()

    @property
    def draws(self) -> int:
        """Instances per exact check."""
        return DRAWS[self.verify]


def read(environment: Mapping[str, str] | None = None) -> Config:
    """The present settings, from `os.environ` by default; an empty value counts as not set.

    Raises NeptuneError for a value that means nothing.

    >>> read({"NEPTUNE_VERIFY": "2", "NEPTUNE_TARGET": ""})
    Config(target=None, verify=2, dump=None, cache=None)
    """
    env = os.environ if environment is None else environment
    dump = env.get("NEPTUNE_DUMP")
    return Config(
        target=env.get("NEPTUNE_TARGET") or None,
        verify=_level(env.get("NEPTUNE_VERIFY")),
        dump=Path(dump) if dump else None,
        cache=env.get("NEPTUNE_CACHE_DIR") or None,
    )


@cache
def _user_cache() -> Path | None:
    from platformdirs import user_cache_path

    folder = user_cache_path("neptune", appauthor=False)
    # A user without a home has none.
    return folder if folder.is_absolute() else None


def _level(text: str | None) -> int:
    levels = {str(k): k for k in DRAWS}
    if not text:
        return 1
    if text not in levels:
        raise NeptuneError(f"NEPTUNE_VERIFY={text}", "this is not a level of verification", legal=tuple(levels))
    return levels[text]
