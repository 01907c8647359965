"""Settings from the environment, read when they are asked for.

NEPTUNE_TARGET        what to compile for where the caller does not say ("cuda", "llvm", "interpret", …)
NEPTUNE_VERIFY        0: no checks; 1 (default): verifiers and a few exact instances; 2: verifiers after
                      every step, and many exact instances
NEPTUNE_STRICT        1: a template that a check rejects is a defect (InternalError), also where the automatic choice
                      would go on to the next one; for tests, and for those who look into a rejection
NEPTUNE_CHECK         1: each call looks at the indices that its tensors hold, and one that leads out of a tensor is a
                      ShapeError; costs time and a wait for the GPU. Each call reads it; calls that a CUDA graph
                      captures are not looked at
NEPTUNE_CACHE_DIR     the folder of compiled kernels and of records of measurements; by default the user's cache folder
                      (~/.cache/neptune on Linux), and 0 for none
NEPTUNE_RECORDS       0: what was measured decides nothing, the cost model alone chooses (docs/tuning.md)
NEPTUNE_FORM          the form of kernels for sm_90 where the caller does not say: "triton" or "auto" (docs/hopper.md);
                      by default auto where the GPU here is one of them
NEPTUNE_TIERED        of neptune.functional: "beside" (default): first calls take what compiles fastest, and a better
                      form is made in a process beside them and takes over; "wait": first calls wait for it; "never": it
                      is taken only where it was kept
NEPTUNE_DUMP          a folder that receives, per compilation, a folder `<kernel>-<n>` with one numbered file per
                      step of the schedule and per pass, the Triton source, explain.txt, explain.json, report.html
                      (nothing is then taken from the cache)
NEPTUNE_LOGS          topics to log on the standard error: "+fusion,codegen" (see `neptune.base.logs`)
NEPTUNE_FUSION_FUEL   the template is stopped before its n+1st fusion, and what it has made until then is compiled:
                      for finding the one that is at fault by bisection
NEPTUNE_TRACEBACK     1: tracebacks of errors show Neptune's own frames, too
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from neptune.errors import NeptuneError

VARIABLES = (
    "NEPTUNE_TARGET",
    "NEPTUNE_VERIFY",
    "NEPTUNE_STRICT",
    "NEPTUNE_CHECK",
    "NEPTUNE_CACHE_DIR",
    "NEPTUNE_RECORDS",
    "NEPTUNE_FORM",
    "NEPTUNE_TIERED",
    "NEPTUNE_DUMP",
    "NEPTUNE_LOGS",
    "NEPTUNE_FUSION_FUEL",
    "NEPTUNE_TRACEBACK",
)
_CHECK = os.environ.encodekey("NEPTUNE_CHECK")
_SET = getattr(os.environ, "_data", os.environ)
FORMS = ("triton", "auto")
BESIDE, WAIT, NEVER = TIERED = ("beside", "wait", "never")
DRAWS = {0: 0, 1: 4, 2: 24}
"""How many exact instances each level of NEPTUNE_VERIFY draws."""
NO_CACHE = "0"
DIGITS = 18
"""Of a number; of more, int64 holds none."""
_SETTING = ("there is no such setting", ("0", "1"))
RULES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "NEPTUNE_VERIFY": ("this is not a level of verification", tuple(map(str, DRAWS))),
    "NEPTUNE_FUSION_FUEL": ("this is not a number of fusions", ("0", "1", "2", "…")),
    "NEPTUNE_STRICT": _SETTING,
    "NEPTUNE_RECORDS": _SETTING,
    "NEPTUNE_FORM": ("there is no such form", FORMS),
    "NEPTUNE_TIERED": ("there is no such way to compile", TIERED),
    "NEPTUNE_CHECK": _SETTING,
}
"""What is said of a value that means nothing, and which are legal: "false" would be read as either."""


@dataclass(frozen=True)
class Config:
    """The settings at one moment. `target`, `dump`, `cache` and `fuel` are None where they are not set."""

    target: str | None = None
    verify: int = 1
    dump: Path | None = None
    cache: str | None = None
    logs: str = ""
    fuel: int | None = None
    strict: bool = False
    records: bool = True
    form: str | None = None
    tiered: str = BESIDE

    @property
    def cache_dir(self) -> Path | None:
        """The folder that compiled kernels are cached in, None for no cache."""
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

    >>> read({"NEPTUNE_VERIFY": "2", "NEPTUNE_TARGET": ""}) == Config(verify=2)
    True
    """
    env = os.environ if environment is None else environment
    wrong = fault(env)
    if wrong is not None:
        raise wrong
    dump, fuel = env.get("NEPTUNE_DUMP"), env.get("NEPTUNE_FUSION_FUEL")
    return Config(
        target=env.get("NEPTUNE_TARGET") or None,
        verify=int(env.get("NEPTUNE_VERIFY") or 1),
        dump=Path(dump) if dump else None,
        cache=env.get("NEPTUNE_CACHE_DIR") or None,
        logs=env.get("NEPTUNE_LOGS") or "",
        fuel=int(fuel) if fuel else None,
        strict=env.get("NEPTUNE_STRICT") == "1",
        records=env.get("NEPTUNE_RECORDS") != "0",
        form=env.get("NEPTUNE_FORM") or None,
        tiered=env.get("NEPTUNE_TIERED") or BESIDE,
    )


def fault(environment: Mapping[str, str] | None = None) -> NeptuneError | None:
    """The first value that means nothing, of those that `read` reads."""
    env = os.environ if environment is None else environment
    return next((w for v in RULES if v != "NEPTUNE_CHECK" and (w := _wrong(v, env.get(v))) is not None), None)


def _wrong(variable: str, text: str | None) -> NeptuneError | None:
    said, legal = RULES[variable]
    counts = variable == "NEPTUNE_FUSION_FUEL"
    if not text or (text.isascii() and text.isdecimal() and len(text) <= DIGITS if counts else text in legal):
        return None
    return NeptuneError(f"{variable}={text:.60}", said, legal=legal)


@cache
def _user_cache() -> Path | None:
    from platformdirs import user_cache_path

    folder = user_cache_path("neptune", appauthor=False)
    # A user without a home has none.
    return folder if folder.is_absolute() else None


def full_tracebacks() -> bool:
    """Return True if errors are to show Neptune's own frames; read only once there is an error, in which a value that
    means nothing is no second one."""
    return os.environ.get("NEPTUNE_TRACEBACK") == "1"


def checked_calls() -> bool:
    """True where calls are to look at the indices that their tensors hold. Every call asks: os.environ.get is slow."""
    if _CHECK not in _SET:
        return False
    text = os.environ.get("NEPTUNE_CHECK")
    wrong = _wrong("NEPTUNE_CHECK", text)
    if wrong is not None:
        raise wrong
    return text == "1"
