"""The identities that graphs are rewritten by are accepted, and the nearest false statements rejected, as the bench has
them."""

import pytest

from neptune.mirage.verifier.indexed import prove_equal
from neptune.mirage.verifier.verdict import Verifier
from qa.mirage_axioms import FALSE, IDENTITIES, graph


@pytest.mark.parametrize("name", IDENTITIES)
def test_an_identity_is_proved(name: str) -> None:
    a, b = map(graph, IDENTITIES[name])
    assert prove_equal(a, b).proved
    found = Verifier(a).verdict(b)
    assert found.equal, str(found)


@pytest.mark.parametrize("name", FALSE)
def test_a_false_neighbour_is_rejected(name: str) -> None:
    a, b = map(graph, FALSE[name])
    found = Verifier(a).verdict(b)
    assert not found.equal and found.tiers[0].outcome == "rejected", str(found)
    assert not prove_equal(a, b).proved
