"""In which ways the contract is asked over which store."""

from __future__ import annotations

from itertools import product

from tests.contract.conftest import STORES, ways_over
from tests.kit.servers import WAYS


def test_all_ways_meet_all_stores() -> None:
    met = {
        (way, store)
        for question in range(100)
        for store in range(1, len(STORES))
        for way in ways_over(f"test_{question}", store)
    }
    assert met == set(product(WAYS, range(1, len(STORES))))


def test_every_question_meets_every_store_in_both_versions() -> None:
    for store in range(1, len(STORES)):
        assert {version for _, version in ways_over("test_one", store)} == {"1.0", "0.3"}
