"""Every fuzz target, for a moment: its seeds, what once broke it, and inputs made of them.

``make fuzz`` searches on, by what no input before has reached.
"""

from __future__ import annotations

import random

import pytest

from tests.fuzz import messages
from tests.fuzz.mutation import Mutator
from tests.fuzz.targets import TARGETS, regressions

MUTATED = 150


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name: str) -> None:
    target, chance = TARGETS[name], random.Random(name)
    seeds = [*target.seeds()]
    assert seeds
    mutator = Mutator(chance, target.form, messages.words())
    for data in seeds:
        target.run(data)
    for _ in range(MUTATED):
        target.run(mutator.mutated(chance.choice(seeds), seeds))


@pytest.mark.parametrize("name", TARGETS)
def test_what_broke_a_promise_once_does_not_again(name: str) -> None:
    for path in regressions(name):
        TARGETS[name].run(path.read_bytes())
