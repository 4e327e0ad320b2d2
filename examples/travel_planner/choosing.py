"""Which offers to take: the best that the budget allows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

from desk import Offer
from trip import Held


def choose(
    offers: Mapping[str, Sequence[Offer]],
    kept: Sequence[Held],
    rates: Mapping[str, float],
    budget: float,
) -> tuple[dict[str, Offer], float]:
    """Return an offer for each kind, and the total with what is kept, in the budget's currency.

    Those with the most stars within the budget; the cheapest if none is within it, or without one.
    """
    paid = sum(each.price / rates[each.currency] for each in kept)
    best: tuple[dict[str, Offer], float] | None = None
    best_rank: tuple[bool, int, float] | None = None
    for combination in product(*offers.values()):
        total = paid + sum(each.price / rates[each.currency] for each in combination)
        fits = budget > 0 and total <= budget
        rank = (fits, sum(each.stars for each in combination) if fits else 0, -total)
        if best_rank is None or rank > best_rank:
            best, best_rank = (dict(zip(offers, combination, strict=True)), total), rank
    assert best is not None  # a product of nothing has one element
    return best
