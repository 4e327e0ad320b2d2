"""The article of a noun in a message."""

from __future__ import annotations

import pytest

from parley.model.errors import an


@pytest.mark.parametrize(
    "words",
    [
        "an EVENT", "a RESPONSE", "a HEARTBEAT", "an ERROR", "an int", "an AgentCard", "a list",
        "an hour", "a minute", "a URL", "a UUID", "a UserDict", "a Union", "an Unset", "a NoneType",
        "an OPTIONS", "an unspecified",
    ],
)  # fmt: skip
def test_a_noun_has_the_article_of_its_first_sound(words: str) -> None:
    assert an(words.partition(" ")[2]) == words
