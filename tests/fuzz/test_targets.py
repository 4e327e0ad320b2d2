"""Every fuzz target, briefly: its seeds, inputs that once broke it, and inputs derived from them.

``make fuzz`` searches for longer.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.inputs import inputs
from tests.fuzz.run import TARGETS, seeds_of

MADE = settings(
    max_examples=25,
    database=None,
    deadline=None,
    phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_a_promise(name: str) -> None:
    target, seeds = TARGETS[name], seeds_of(name)
    assert seeds

    @seed(1)
    @MADE
    @given(inputs(target.form, seeds))
    def made(data: bytes) -> None:
        target.run(data)

    made()


@pytest.mark.parametrize("name", TARGETS)
def test_what_broke_a_promise_once_does_not_again(name: str) -> None:
    for data in seeds_of(name):
        TARGETS[name].run(data)
