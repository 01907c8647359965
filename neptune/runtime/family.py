"""Which of a kernel's variants a launch takes. Where the model is at hand, as for a compiled kernel, it decides
(`neptune.tune.chooser`); for a saved one, a tree of comparisons of sizes does, evaluated without a model.

    Cut(("s_q",), 16, 1, Cut(("batch", "heads"), 64, 2, 0))
    s_q <= 16: variant 1;  else batch·heads <= 64: variant 2;  else variant 0

`neptune.tune.family` makes the tree; here it is data that a saved kernel holds.

`Decided` keeps which variant each class of sizes takes, as this process or another one has decided it before. What
decides (`neptune.tune.chooser`) follows from the class, the kernel and the machine alone, so that what any process has
decided of the same is taken: to ask the model takes imports of half a second.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

from neptune.base.locks import Lock
from neptune.errors import NeptuneError, or_refusal

if TYPE_CHECKING:
    from neptune.base.shelf import Shelf

FAMILY = "family"
"""The entry of an explanation that describes a kernel's variants."""
SHARED = "shared"
"""The entry of a variant that differs from the kernel in values on tiles alone, and may run its asynchronous form."""
LOG = logging.getLogger("neptune.runtime")
M = TypeVar("M")


@dataclass(frozen=True)
class Cut:
    """Where the product of the sizes `of` is at most `at`, `below` decides, else `above`."""

    of: tuple[str, ...]
    at: int
    below: Tree
    above: Tree


Tree: TypeAlias = "Cut | int"
"""The number of a variant, or a comparison that leads to one."""


def pick(tree: Tree, sizes: Mapping[str, int | float]) -> int:
    """The number of the variant for these sizes.

    >>> pick(Cut(("m",), 16, 1, 0), {"m": 5}), pick(Cut(("m",), 16, 1, 0), {"m": 17})
    (1, 0)
    """
    while isinstance(tree, Cut):
        tree = tree.below if prod(sizes[n] for n in tree.of) <= tree.at else tree.above
    return tree


def conditions(tree: Tree, variant: int) -> str:
    """When a variant is taken, for people.

    >>> conditions(Cut(("m",), 16, 1, Cut(("m", "n"), 4096, 2, 0)), 2)
    'm > 16 and m·n <= 4096'
    """
    texts = ["" if not path else " and ".join(_merged(path)) for path in _paths(tree, variant)]
    return " or ".join(texts) if len(texts) < 2 else " or ".join(f"({x})" for x in texts)


def _paths(tree: Tree, variant: int) -> Iterator[tuple[tuple[tuple[str, ...], bool, int], ...]]:
    """The comparisons that lead to a variant: of what, whether it is at most, what."""
    if not isinstance(tree, Cut):
        if tree == variant:
            yield ()
        return
    for most, branch in ((True, tree.below), (False, tree.above)):
        yield from (((tree.of, most, tree.at), *path) for path in _paths(branch, variant))


def _merged(path: tuple[tuple[tuple[str, ...], bool, int], ...]) -> list[str]:
    """One comparison a side of each product: a later one is the narrower."""
    last = {(names, most): limit for names, most, limit in path}
    return [f"{'·'.join(names)} {'<=' if most else '>'} {limit}" for (names, most), limit in last.items()]


def tree_json(tree: Tree) -> Any:
    """A tree as JSON."""
    if not isinstance(tree, Cut):
        return tree
    return {"of": list(tree.of), "at": tree.at, "below": tree_json(tree.below), "above": tree_json(tree.above)}


def read_tree(j: Any) -> Tree:
    """The tree that `tree_json` has written."""
    if isinstance(j, int):
        return j
    return Cut(tuple(j["of"]), int(j["at"]), read_tree(j["below"]), read_tree(j["above"]))


def shares(lost: tuple[float, float]) -> dict[str, float]:
    """What choices lose, on average and at most, as an explanation has it."""
    return {"mean": round(lost[0], 4), "most": round(lost[1], 4)}


def sizes_of(tree: Tree) -> frozenset[str]:
    """The sizes that decide."""
    return frozenset(tree.of) | sizes_of(tree.below) | sizes_of(tree.above) if isinstance(tree, Cut) else frozenset()


def names_of(family: Mapping[str, Any]) -> list[str]:
    """A name for each variant: its template, numbered where several have the same.

    >>> names_of({"variants": [{"template": "matmul"}, {"template": "matmul"}, {"template": "matmul_split"}]})
    ['matmul', 'matmul 2', 'matmul_split']
    """
    seen: Counter[str] = Counter()
    names: list[str] = []
    for v in family["variants"]:
        seen[v["template"]] += 1
        count = seen[v["template"]]
        names.append(v["template"] if count == 1 else f"{v['template']} {count}")
    return names


def check_family(family: Mapping[str, Any]) -> None:
    """Raise KeyError, TypeError or ValueError for what is no family of a kernel: anybody may have written it."""
    members: Members[None] = Members(family, None, lambda k: None)
    if not {members.own, *_leaves(members.tree)} <= set(range(len(members.names))):
        raise ValueError("it names a variant that is not there")
    for v in family["variants"]:
        dict(v["params"]), str(v["when"])


def _leaves(tree: Tree) -> set[int]:
    return {tree} if not isinstance(tree, Cut) else _leaves(tree.below) | _leaves(tree.above)


class Members(Generic[M]):
    """The variants of a kernel, each made when it is first used. `own` is there already.

    Where one cannot be made, as when a check rejects it, its sizes take `own`, which serves all of them; where it is
    refused at its first launch, another. `decide` gives the number for some sizes; where it has none, the tree does.
    """

    decide: Callable[[Mapping[str, int | float]], int | None] = staticmethod(lambda sizes: None)

    def __init__(self, family: Mapping[str, Any], own: M, make: Callable[[int], M]) -> None:
        self.tree, self.own = read_tree(family["tree"]), int(family["own"])
        self.numbers = [frozenset(v["numbers"]) for v in family["variants"]]
        self.names = names_of(family)
        self._make = make
        self._made: dict[int, M] = {self.own: own}
        self._refused: list[M] = []
        self._lock = Lock()

    def of(self, sizes: Mapping[str, int | float], asked: Collection[str] = ()) -> M:
        """The variant for these sizes; of numbers that a call asks for, one that has them, if there is any."""
        return self.member(self.number_of(sizes, asked))

    def number_of(self, sizes: Mapping[str, int | float], asked: Collection[str] = ()) -> int:
        """The number of that variant."""
        decided = self.decide(sizes)
        k = pick(self.tree, sizes) if decided is None else decided
        if asked and not self.numbers[k].issuperset(asked):
            k = next((j for j, names in enumerate(self.numbers) if names.issuperset(asked)), k)
        return k

    def is_made(self, k: int) -> bool:
        """True where variant k is there, and nothing is compiled for it."""
        return k in self._made

    def member(self, k: int) -> M:
        """Variant k."""
        if k not in self._made:
            with self._lock:
                if k not in self._made:
                    self._made[k] = self._made_now(k)
        return self._made[k]

    def instead(self, refused: M) -> M | None:
        """The variant that serves the sizes of a refused one from now on; None where none is left."""
        with self._lock:
            self._refused.append(refused)
            for k in (self.own, *range(len(self.names))):
                other = self.member(k)
                if not any(other is x for x in self._refused):
                    self._made |= {j: other for j, m in self._made.items() if m is refused}
                    return other
        return None

    def all(self) -> list[M]:
        """Every variant, made where it was not."""
        return [self.member(k) for k in range(len(self.names))]

    def _made_now(self, k: int) -> M:
        result = or_refusal(self._make, k)
        if not isinstance(result, NeptuneError):
            return result
        LOG.warning("variant %s is not used: %s", self.names[k], result)
        return self._made[self.own]


@dataclass(frozen=True)
class Standby(Generic[M]):
    """The kernel of the first calls, beside a better one of the same program that has taken over (tiered compilation,
    `neptune.driver.tiers`): it serves the calls whose variant of that one is not there. `ask` has it made beside, by
    its number and the sizes of a call; True where that takes no compilation, so that the call need not be served."""

    first: M
    ask: Callable[[int, Mapping[str, int | float]], bool]

    def serves(self, members: Members[M] | None, sizes: Mapping[str, int | float], asked: Collection[str]) -> bool:
        """True for a call that the better kernel, of these variants, does not serve yet."""
        if members is None:
            return False
        variant = members.number_of(sizes, asked)
        return not (members.is_made(variant) or self.ask(variant, sizes))


# --- what was decided before ------------------------------------------------------------------------

EXACT = 64
"""Sizes up to here are classes of their own: tiles and parts follow from each."""
FOLDER, MAGIC = "classes", b"neptune-classes 1 "
MOST = 4096
"""Classes of a kernel that are remembered."""
UNKNOWN: Any = object()
Sizes: TypeAlias = "Mapping[str, int | float]"


def class_of(size: int) -> int:
    """The longest size of a size's class: itself up to EXACT, else of the eighth of an octave that it is in.

    >>> class_of(64), class_of(100), class_of(128), class_of(129)
    (64, 104, 128, 144)
    """
    if size <= EXACT:
        return size
    step = 1 << ((size - 1).bit_length() - 4)
    return -(-size // step) * step


class Decided:
    """The number of the variant, of so many (`count`), for the sizes called `names`; `decide` gives it where nobody has
    asked for their class. All of that is `kept` in a folder, under a key, where these are given."""

    def __init__(
        self,
        names: Sequence[str],
        count: int,
        decide: Callable[[Sizes], int | None],
        kept: tuple[Path, str] | None = None,
    ) -> None:
        self.names, self._count, self._decide = tuple(names), count, decide
        self._shelf = None if kept is None else _shelf(kept[0])
        self._key = "" if kept is None else kept[1]
        self._numbers = self._kept()

    @property
    def classes(self) -> int:
        """How many classes are known."""
        return len(self._numbers)

    def __call__(self, sizes: Sizes) -> int | None:
        """The number for some sizes; None where nothing is predicted to run, as of arguments below 1."""
        values = [int(sizes[n]) for n in self.names]
        if any(n < 1 for n in values):
            return None
        key = ",".join(map(str, map(class_of, values)))
        number: int | None = self._numbers.get(key, UNKNOWN)
        if number is UNKNOWN:
            number = self._decide(sizes)
            # Other threads and processes may decide meanwhile, and the same.
            known = {**self._kept(), **self._numbers}
            self._numbers = {**(known if len(known) < MOST else {}), key: number}
            if self._shelf is not None:
                self._shelf.write(self._key, json.dumps(self._numbers).encode())
        return number

    def _kept(self) -> dict[str, int | None]:
        """What was decided elsewhere."""
        body = None if self._shelf is None else self._shelf.read(self._key)
        try:
            known = json.loads(body or b"{}")
            legal = (None, *range(self._count))
            return {str(key): number for key, number in known.items() if number in legal}
        except (ValueError, AttributeError, TypeError):
            return {}


def _shelf(root: Path) -> Shelf:
    # Imported here: a saved kernel has nothing to keep.
    from neptune.base.shelf import Shelf

    return Shelf(root, FOLDER, MAGIC, max_bytes=32 << 20, max_entries=1024)
