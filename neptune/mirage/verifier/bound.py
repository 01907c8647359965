"""Tier 2 of the verifier: draws until a wrong graph passes them with probability at most 2⁻³⁰, and why that is so.

The theorems are stated and proved in docs/mirage.md, "The verifier". What they need of a pair (graph, reference) is
computed here at the witness sizes, an element of an output at a time:

    difference   N, the numerator of graph − reference: its degree, and its height, below p (or the product of the
                 first primes of several pairs, in each of which there are draws)
    radicands    s of them behind the element, independent modulo squares (a certificate: points where they are not)
    exponents    a basis g of them, affine and of full row rank in some of the inputs (a certificate: a point)

Then a draw counts and passes with probability at most π = (2ˢ·deg N + 2ᵗ·deg minor)/q, and n of N draws do with at most
C(N, n)·πⁿ. Where a step fails the paper's Theorem 2 stands in, where there are no roots; else there is no bound, and
`why` names the step. Maxima are free variables (see `evaluate`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, lgamma, log, log2
from typing import Any

import numpy as np

from neptune.errors import Unsupported
from neptune.ir.evaluate.domains import Array, EvaluationError, Unevaluated, Value
from neptune.mirage.ir import Graph, nodes
from neptune.mirage.ops import OPS
from neptune.mirage.verifier.certificates import Certificates, Fails
from neptune.mirage.verifier.evaluate import Evaluator
from neptune.mirage.verifier.fields import RootField
from neptune.mirage.verifier.heights import Form, Heights
from neptune.mirage.verifier.witness import Witness, draw_inputs, witness
from neptune.verify.residues import P, Q

TARGET = -30
"""log₂ of the probability of a false accept that draws go on for."""
PAIRS = ((P, Q), (2147441519, 1073720759), (2147372639, 1073686319), (2147365919, 1073682959))
"""Pairs of primes like the default one; as many of them are used as the height takes."""
STAGES = (16, 64, 256, 1024, 4096)
CHUNK = 512
"""Draws that are evaluated at once."""
UNBOUNDED = 64
"""Draws where no bound is to be had."""
NO_FALSE_ACCEPT = "no false accept: equal when written out at these sizes"
"""Where log₂ of the bound is -inf."""
_MAXIMA = frozenset(row.name for row in OPS.values() if row.extremum or row.reducer == "max")


@dataclass(frozen=True)
class Chance:
    """What a draw that counts misses at most: log₂ of the probability, by which theorem, from which numbers."""

    log: float
    theorem: str
    degree: int = 0
    height: float = 0.0
    radicands: int = 0
    exponents: int = 0
    paper: float | None = None
    """The same by Theorem 2 of the paper, where that says something."""


@dataclass(frozen=True)
class Checked:
    """The outcome of tier 2. `log` is log₂ of the bound on a false accept, None where there is none."""

    accepted: bool
    draws: int
    counted: int
    log: float | None
    theorem: str
    chance: Chance | None
    why: str = ""
    paper: float | None = None
    """The bound by the paper's theorem, where that says something."""

    def __str__(self) -> str:
        verdict = "agrees" if self.accepted else "differs"
        text = f"{verdict} in {self.draws} draws, {self.counted} count at every element"
        if not self.accepted:
            return f"{text}: {self.why}"
        if self.log is None or self.chance is None:
            return f"{text}; no bound: {self.why}"
        if self.log == -inf:
            return f"{text}; {NO_FALSE_ACCEPT}"
        numbers = f"degree {self.chance.degree}, height 2^{self.chance.height:.0f}, {self.chance.radicands} radicands"
        numbers = f"{numbers}, {self.chance.exponents} exponents"
        bound = f"{text}; a false accept ≤ 2^{self.log:.0f} by {self.theorem} ({numbers})"
        if self.theorem == STRONG and not self.chance.radicands:
            paper = "nothing" if self.paper is None else f"≤ 2^{self.paper:.1f}"
            bound = f"{bound}; {PAPER} says {paper}"
        return f"{bound}; {self.why}" if self.why else bound


def check(
    reference: Graph,
    graph: Graph,
    *,
    seed: int = 0,
    target: float = TARGET,
    probe: Witness | None = None,
) -> Checked:
    """Draw until the bound is at most 2^target. Outputs correspond by name.

    >>> from neptune.mirage.ir import Node, Output, Tensor
    >>> from neptune.ir.expr import Var
    >>> def of(*steps):
    ...     inputs = (Tensor("x", ("i",), "float16"), Tensor("y", ("i",), "float16"))
    ...     return Graph("g", {"i": Var("n")}, inputs, steps, (Output("z", ("i",), "float16", "z"),))
    >>> of_sum = of(Node("a", "add", ("x", "y")), Node("z", "exp", ("a",)))
    >>> product = of(Node("a", "exp", ("x",)), Node("b", "exp", ("y",)), Node("z", "mul", ("a", "b")))
    >>> found = check(of_sum, product)
    >>> found.accepted, found.theorem, found.log < -30
    (True, 'the theorem on independent exponents', True)
    """
    probe = probe or witness(reference)
    maxima = any(n.op in _MAXIMA for g in (reference, graph) for n in nodes(g))
    forms = differences(reference, graph, probe, seed)
    if isinstance(forms, EvaluationError):
        return Checked(False, 0, 0, None, "", None, str(forms))
    known, why = (None, str(forms)) if isinstance(forms, Unsupported) else (forms, "")
    found = _in_pairs(reference, graph, probe, known, why, seed, target)
    if found.accepted or not maxima:
        return found
    why = "it holds for maxima alone, not for any number in their place"
    return _decided(_Draws(reference, graph, probe, seed, PAIRS[0], free=False), None, why, target)


def _in_pairs(
    reference: Graph, graph: Graph, probe: Witness, forms: Forms | None, why: str, seed: int, target: float
) -> Checked:
    """Draw in as many pairs of primes as the height takes; the worst of them has the bound."""
    needed = 1 if forms is None else int(forms.height / log2(P)) + 1
    pairs = PAIRS[: needed if needed <= len(PAIRS) else 1]
    room = sum(log2(p) for p, _ in pairs)
    worst = None
    for pair in pairs:
        known = None
        if forms is not None:
            known, why = chances(forms, pair, room, seed)
        checked = _decided(_Draws(reference, graph, probe, seed, pair, free=True), known, why, target)
        if not checked.accepted or checked.log is None:
            return checked
        if worst is None or worst.log is None or checked.log > worst.log:
            worst = checked
    assert worst is not None
    return worst


@dataclass(frozen=True)
class Forms:
    """The difference of a graph and its reference, element by element of each output."""

    heights: Heights
    differences: Mapping[str, Array]

    @property
    def height(self) -> float:
        """log₂ of what coefficients may reach, with roots of numbers multiplied out."""
        heights = [float(n.height) for v in self.differences.values() for n in v.ravel() if not _is_zero(n)]
        return max([0.0, *heights]) * float(1 << len(self.heights.numbers))


def _is_zero(n: Form) -> bool:
    return n.exact is not None and not n.exact.terms


def differences(reference: Graph, graph: Graph, probe: Witness, seed: int = 0) -> Forms | Unevaluated:
    """The differences; an EvaluationError where the graph has no meaning, Unsupported where one has no form."""
    heights = Heights()
    inputs, scalars = _variables(reference, probe, heights)
    evaluator = Evaluator(heights, probe, inputs, scalars, free=True, seed=seed)
    both = evaluator.paired(reference, graph)
    if isinstance(both, Unevaluated):
        return both
    # An output without dimensions is an array too.
    apart = {n: np.asarray(heights.apply("sub", (got, expected))[0], object) for n, (expected, got) in both.items()}
    return Forms(heights, apart)


def chances(
    forms: Forms, primes: tuple[int, int] = PAIRS[0], room: float = log2(P), seed: int = 0
) -> tuple[dict[str, Array], str]:
    """For each element of each output its Chance, None without a bound; and the step that does not hold.

    `room` is log₂ of the product of all first primes in which draws are made.
    """
    certificates = Certificates(forms.heights, seed, primes)
    chance = np.frompyfunc(lambda n: _chance(certificates, n, room), 1, 1)
    return {name: np.asarray(chance(x), object) for name, x in forms.differences.items()}, certificates.why


def _variables(reference: Graph, probe: Witness, heights: Heights) -> tuple[dict[str, Value], dict[str, Value]]:
    """Variables for inputs and scalars, sizes as numbers."""
    names = iter([*dict.fromkeys(t.source for t in reference.inputs)])

    class Named:
        number = heights.number

        @staticmethod
        def draw(rng: Any, shape: tuple[int, ...]) -> Value:
            return heights.drawn(next(names, "a scalar"), (1, *shape))

    return draw_inputs(Named(), reference, probe, np.random.default_rng(0))


def _chance(certificates: Certificates, n: Form, room: float) -> Chance | None:
    """What a draw misses of a difference n; None without a bound."""
    degree, exponents = max(1, round(n.degree + 0.5)), n.all_exponents()
    roots = certificates.behind(n.all_roots())
    if _is_zero(n):
        return Chance(-inf, EXACT)
    plain = not (roots or certificates.heights.numbers or certificates.behind_exponents(exponents))
    paper = _paper(n, degree, certificates.primes[1]) if plain else None
    strong = _strong(certificates, n, degree, room, paper)
    if isinstance(strong, Chance):
        return strong
    certificates.why = strong.why
    return None if paper is None else Chance(paper, PAPER, degree, n.height, 0, len(exponents), paper)


def _strong(certificates: Certificates, n: Form, degree: int, room: float, paper: float | None) -> Chance | Fails:
    """What a draw misses of a difference by the theorem on independent exponents, or the step that does not hold."""
    roots, exponents, primes = certificates.behind(n.all_roots()), n.all_exponents(), certificates.primes
    if (wrong := certificates.numbers() or certificates.signs()) is not None:
        return wrong
    height = n.height * 2 ** len(certificates.heights.numbers)
    if height >= room - 1e-6:
        return Fails(f"coefficients of the difference may reach 2^{height:.0f}, beyond the primes")
    if (wrong := certificates.independent(roots, primes[0])) is not None:
        return wrong
    if not exponents:
        return Chance(len(roots) + log2(degree / primes[0]), STRONG, degree, n.height, len(roots), 0, paper)
    basis = certificates.basis(exponents)
    if isinstance(basis, Fails):
        return basis
    spread = certificates.spreading(basis)
    if isinstance(spread, Fails):
        return spread
    total = 2 ** len(roots) * degree * basis.spread * spread.atom + spread.bad
    radicands = len(roots | certificates.behind_exponents(exponents))
    return Chance(log2(total / primes[1]), STRONG, degree, n.height, radicands, len(basis.pieces), paper)


def _paper(n: Form, degree: int, q: int) -> float | None:
    """log₂ of 8dk⁴/q + q^(−1/k²), k the number of terms of the difference; None where that is 1 or more."""
    chance = 8 * degree * n.terms**4 / q + q ** (-1 / n.terms**2)
    return None if n.height >= log2(q) - 1 or chance >= 1 else log2(chance)


EXACT = "expansion"
STRONG = "the theorem on independent exponents"
PAPER = "Theorem 2 of the paper"


@dataclass
class _Draws:
    """Draws of one pair of fields for two graphs, and how often each element counted in them. With `free` maxima are
    free variables."""

    reference: Graph
    graph: Graph
    probe: Witness
    seed: int
    primes: tuple[int, int]
    free: bool
    draws: int = 0
    counted: dict[str, Array] = field(default_factory=dict)

    @property
    def fewest(self) -> int:
        """How often the element counted that did least often."""
        return min((int(c.min()) for c in self.counted.values()), default=0)

    def until(self, draws: int) -> str:
        """Draw until there are so many; returns in what the graphs differ, or nothing."""
        while self.draws < draws:
            size = min(CHUNK, draws - self.draws)
            wrong = self._compared(size, (self.seed + 1) * 65537 + self.draws)
            self.draws += size
            if wrong:
                return wrong
        return ""

    def _compared(self, draws: int, seed: int) -> str:
        fields = RootField(draws, seed, *self.primes)
        inputs, scalars = draw_inputs(fields, self.reference, self.probe, np.random.default_rng(seed))
        evaluator = Evaluator(fields, self.probe, inputs, scalars, free=self.free, seed=seed)
        both = evaluator.paired(self.reference, self.graph)
        if isinstance(both, Unevaluated):
            return str(both)
        for name, (expected, got) in both.items():
            counts = (fields.known(expected) & fields.known(got)).sum(0)
            self.counted[name] = self.counted.get(name, 0) + counts
            if fields.differs(expected, got).any():
                return f"output `{name}` differs"
        return ""

    def bounded(self, chances: Mapping[str, Array], why: str) -> Checked:
        """What the draws say, with the greatest of C(draws, n)·πⁿ over all elements, for each of the stages."""
        pairs = [
            (int(n), chance)
            for name, counts in self.counted.items()
            for n, chance in zip(counts.ravel(), chances[name].ravel(), strict=True)
        ]
        totals = [_choose(self.draws, n) + n * chance.log if n else 0.0 for n, chance in pairs]
        log, worst = max(zip(totals, (chance for _, chance in pairs), strict=True), key=lambda x: x[0])
        papers = [_choose(self.draws, n) + n * chance.paper for n, chance in pairs if chance.paper is not None]
        paper = max(papers) + log2(len(STAGES)) if len(papers) == len(pairs) else None
        bound = None if paper is None or paper >= 0 else paper
        return Checked(True, self.draws, self.fewest, log + log2(len(STAGES)), worst.theorem, worst, why, bound)


def _decided(drawn: _Draws, chances: Mapping[str, Array] | None, why: str, target: float) -> Checked:
    """Draw, in stages, until the bound by the chances of elements is small enough; `why` some have none."""
    if chances is not None and any(c is None for v in chances.values() for c in v.ravel()):
        chances = None
    best: Checked | None = None
    for stage in STAGES:
        if wrong := drawn.until(stage):
            return Checked(False, drawn.draws, drawn.fewest, None, "", None, wrong)
        fewest = drawn.fewest
        if chances is None and drawn.draws >= UNBOUNDED and fewest >= UNBOUNDED // 16:
            return Checked(True, drawn.draws, fewest, None, "", None, why or "an element has none")
        if chances is not None and fewest:
            best = drawn.bounded(chances, why)
            if best.log is not None and best.log <= target:
                return best
    if not drawn.fewest:
        return Checked(False, drawn.draws, 0, None, "", None, "no draw counts for some element")
    if best is not None and best.log is not None and best.log < 0:
        return best
    return Checked(True, drawn.draws, drawn.fewest, None, "", None, why or "draws that count are too few")


def _choose(n: int, k: int) -> float:
    """log₂ of the binomial coefficient."""
    return (lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)) / log(2)
