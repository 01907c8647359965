"""The options of `neptune.compile`, `neptune.autotune` and `neptune.superoptimize`, each declared once.

    class CompileOptions:                            neptune.compile(expr, template=None, *, …, strict=False, …)
        strict: Annotated[bool, Option(…)]    →      neptune compile … --strict
                                                     a row of docs/knobs.md

A type checker reads the annotations (PEP 692), `takes` gives functions the signature that `help` shows, the command
line makes its options of the rows with a `flag`, and tests hold docs/knobs.md against the rows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict, TypeVar, get_args, get_origin, get_type_hints

from neptune.forms import FORMS

Function = TypeVar("Function", bound=Callable[..., Any])
OTHERS = ", ".join(FORMS)
"""The forms beside tiles."""
REQUIRED: Any = inspect.Parameter.empty
"""The default of an option that has none."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option: what it does, as docs/knobs.md has it, its `default`, and that in words (`shown`) where its value says
    little. On the command line its name is `flag` (and `short`), where it has one; `metavar` and `help` are shown there
    unless it is `hidden`."""

    text: str
    default: Any = None
    shown: str = ""
    flag: str = ""
    short: str = ""
    metavar: str = ""
    help: str = ""
    hidden: bool = False

    @property
    def default_in_words(self) -> str:
        """The default as the page shows it.

        >>> Option("seconds", "60s").default_in_words, Option("names", (), shown="none").default_in_words
        ('`"60s"`', 'none')
        """
        return self.shown or (f'`"{self.default}"`' if isinstance(self.default, str) else str(self.default))


class SharedOptions(TypedDict, total=False):
    """What all three take."""

    inputs: Annotated[Sequence[Any] | None, Option("the order of the call's tensors", shown="as read")]
    target: Annotated[
        str | None,
        Option(
            "`NEPTUNE_TARGET`, else the GPU, else what runs here",
            shown="see above",
            flag="--target",
            metavar="TARGET",
            help="cuda, cuda:90, hip:gfx942, interpret or llvm; by default what runs here.",
        ),
    ]
    params: Annotated[
        Mapping[str, Any] | None,
        Option(
            "tile sizes, `num_warps`, `num_stages`, numbers of parts, and the parameters of a form",
            shown="chosen",
            flag="--param",
            short="-p",
            metavar="NAME=VALUE",
            help="A value that stays, as a tile size; repeatable.",
        ),
    ]
    bounds: Annotated[
        Mapping[Any, int] | None,
        Option(
            "largest sizes, checked at each call",
            shown="none",
            flag="--bound",
            metavar="NAME=N",
            help="A largest size; repeatable.",
        ),
    ]
    name: Annotated[str | None, Option("what the kernel is called", shown="of the output")]
    form: Annotated[
        str | None,
        Option(
            f'`"{OTHERS}"`: also the warp-specialised form of sm_90, an error where there is none; `"auto"`: where '
            'there is one that is not predicted to be far slower, and the faster of both runs; `"triton"`: tiles '
            'alone. Where bits are promised it is `"triton"` unless you say otherwise '
            "([The form on Hopper](hopper.md))",
            shown='`"auto"` on a Hopper GPU, else `"triton"`',
            flag="--form",
            metavar="FORM",
            help=f"{OTHERS}, auto or triton: see docs/hopper.md.",
        ),
    ]


class CompileOptions(SharedOptions, total=False):
    """The options of `neptune.compile`."""

    shapes: Annotated[
        Mapping[Any, int] | None,
        Option(
            "typical sizes: they decide what is fast, never what is right",
            shown="usual ones",
            flag="--shape",
            metavar="NAME=N",
            help="A typical size; repeatable.",
        ),
    ]
    strict: Annotated[
        bool,
        Option(
            "what makes the kernel slower than it need be is an error, and no warning",
            default=False,
            flag="--strict",
            help="Refuse a kernel that is slower than it need be.",
        ),
    ]
    deterministic: Annotated[
        bool,
        Option("calls with the same sizes and layouts give the same bits ([Numerics](numerics.md))", default=False),
    ]
    batch_invariant: Annotated[
        bool, Option("the bits of a row do not depend on what is computed beside it", default=False)
    ]
    assume: Annotated[
        Sequence[str], Option("names of assumptions that explain() lists, and you grant", default=(), shown="none")
    ]
    records: Annotated[bool, Option("False: as NEPTUNE_RECORDS=0, for this kernel", default=True)]
    levers: Annotated[
        Mapping[str, Any] | None,
        Option(
            f"a former name of `params` for the {OTHERS} form; a warning says so once",
            shown="none",
            flag="--lever",
            metavar="NAME=VALUE",
            help="A former name of --param.",
            hidden=True,
        ),
    ]


class TuneOptions(SharedOptions, total=False):
    """The options of `neptune.autotune`."""

    shapes: Annotated[
        Sequence[Mapping[Any, int]] | Mapping[Any, int],
        Option(
            "the sizes to tune for: one mapping, or several",
            default=REQUIRED,
            shown="required",
            flag="--shape",
            metavar="NAME=N",
            help="A size; each one is needed.",
        ),
    ]
    budget: Annotated[
        str,
        Option(
            "how long it may take, compiling included",
            default="60s",
            flag="--budget",
            metavar="TIME",
            help="How long: 60s, 5m or 1h.",
        ),
    ]
    trials: Annotated[
        int | None,
        Option(
            "candidates at most",
            shown="no limit",
            flag="--trials",
            metavar="N",
            help="Candidates to measure at most.",
        ),
    ]
    executor: Annotated[
        str,
        Option(
            '`"ray"`: the GPUs of a Ray cluster',
            default="local",
            flag="--executor",
            metavar="NAME",
            help="Where to measure.",
        ),
    ]
    workers: Annotated[
        int | None,
        Option(
            "processes that compile",
            shown="processors - 1",
            flag="--workers",
            metavar="N",
            help="Processes that compile.",
        ),
    ]
    quiet: Annotated[bool, Option("nothing is said on the standard error", default=False)]


class SearchOptions(CompileOptions, total=False):
    """The options of `neptune.superoptimize`."""

    budget: Annotated[
        str,
        Option(
            "how long to search, and to compile what is found ([how the call is bounded](mirage.md#using-it)); "
            '`template="mirage"` of `neptune.compile` has ten seconds',
            default="60s",
            flag="--budget",
            metavar="TIME",
            help="How long: 60s, 5m or 1h.",
        ),
    ]
    max_block_ops: Annotated[
        int,
        Option(
            "operators of a kernel at most, loads counted",
            default=11,
            flag="--max-block-ops",
            metavar="N",
            help="Operators of a kernel at most.",
        ),
    ]
    max_kernels: Annotated[
        int, Option("kernels at most", default=3, flag="--max-kernels", metavar="N", help="Kernels at most.")
    ]
    seed: Annotated[
        int,
        Option(
            "of the draws that verify graphs",
            default=0,
            flag="--seed",
            metavar="N",
            help="Of the draws that verify graphs.",
        ),
    ]
    workers: Annotated[
        int | None,
        Option("processes that search", shown="1", flag="--workers", metavar="N", help="Processes that search."),
    ]
    safe: Annotated[bool, Option("False: exponentials stay as the graph has them, and may overflow", default=True)]
    progress: Annotated[
        Callable[..., None] | None,
        Option("a function that is called with how far the search is", shown="nothing"),
    ]


@functools.cache
def declared(options: type) -> Mapping[str, tuple[Any, Option]]:
    """The type and the row of each option of one of the classes here, by name.

    >>> kind, row = declared(CompileOptions)["strict"]
    >>> kind, row.default, row.flag
    (<class 'bool'>, False, '--strict')
    """
    hints = get_type_hints(options, include_extras=True)
    assert all(get_origin(h) is Annotated for h in hints.values())
    return {name: get_args(hint) for name, hint in hints.items()}


def takes(options: type) -> Callable[[Function], Function]:
    """Give a function of `**options` their names and defaults: it is called with all of them, and its signature shows
    each. TypeError, as Python has it, for a name that is none and for a required one that is missing."""

    def decorate(function: Function) -> Function:
        own = [p for p in inspect.signature(function).parameters.values() if p.kind is not p.VAR_KEYWORD]
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=row.default, annotation=kind)
            for name, (kind, row) in declared(options).items()
        ]
        full = inspect.Signature([*own, *more], return_annotation=function.__annotations__.get("return"))

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            try:
                bound = full.bind(*args, **given)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        call.__signature__ = full  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate
