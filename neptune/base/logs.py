"""NEPTUNE_LOGS: what Neptune does while it does it, through the standard `logging` under "neptune".

    NEPTUNE_LOGS="fusion"            what was fused, and how (INFO)
    NEPTUNE_LOGS="+fusion,codegen"   every proof as well (DEBUG), and the code that is generated
    NEPTUNE_LOGS="+all,-tile"        everything but the tile passes

Off by default, and then free: modules call `logging.getLogger("neptune.<topic>")` and nothing is configured.
Where the variable is set, one handler (to the standard error) is attached to the logger "neptune". The root
logger is never touched; an application that wants the records in its own log sets the levels itself.
"""

from __future__ import annotations

import logging
import sys

from neptune import config
from neptune.errors import NeptuneError, unless_refused

TOPICS = {
    "compiler": "the passes with their times, and why a template was taken and others were not",
    "schedule": "every primitive of the template, and how loops were cut by their masks",
    "fusion": "what was fused, deferred or rolled; with + every proof",
    "tile": "what each tile pass changed",
    "codegen": "the modules that are generated and compiled, with times and registers",
    "runtime": "the first launch of each specialisation",
    "recompiles": "why a function of neptune.functional compiles a kernel: what is new about its structure",
    "cache": "what was found in the compile cache, and what was put there",
}
ALL = "all"
LEVELS = {"+": logging.DEBUG, "": logging.INFO, "-": logging.WARNING}


class _ToStderr(logging.Handler):
    """To whatever sys.stderr is when the record is made."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def configure(text: str) -> None:
    """Apply the value of NEPTUNE_LOGS; an empty one changes nothing.

    Raises NeptuneError for a topic that does not exist.
    """
    if not text:
        return
    levels = unless_refused(parse(text))
    logger = logging.getLogger("neptune")
    if not any(isinstance(h, _ToStderr) for h in logger.handlers):
        handler = _ToStderr()
        handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
        logger.addHandler(handler)
        # Else an application that configured the root logger would see each record twice.
        logger.propagate = False
    for topic, level in levels.items():
        logging.getLogger(f"neptune.{topic}").setLevel(level)


def defect(logger: logging.Logger, what: str, error: Exception) -> None:
    """Say at once, with the traceback, that a part of Neptune has failed that the kernel can do without: a candidate, a
    prediction. NEPTUNE_STRICT raises it."""
    if config.read().strict:
        raise error
    logger.error("%s: %s: %s", what, type(error).__name__, error, exc_info=error)


def parse(text: str) -> dict[str, int] | NeptuneError:
    """The level of each topic; later words win. Why not, of a topic that does not exist.

    >>> {t: n for t, n in parse("+all,-tile,codegen").items() if t in ("fusion", "tile", "codegen")}
    {'fusion': 10, 'tile': 30, 'codegen': 20}
    """
    levels = dict.fromkeys(TOPICS, logging.WARNING)
    for word in filter(None, (w.strip() for w in text.split(","))):
        sign = word[0] if word[0] in "+-" else ""
        name = word.removeprefix(sign)
        if name not in levels and name != ALL:
            return NeptuneError(
                f"NEPTUNE_LOGS={text}",
                f"there is no topic {name!r} to log",
                legal=(*TOPICS, ALL),
                hint="a + in front shows more, a - silences",
            )
        levels.update(dict.fromkeys(TOPICS if name == ALL else (name,), LEVELS[sign]))
    return levels
