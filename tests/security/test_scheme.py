"""What all security schemes have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from parley.security import ApiKey, Basic, Bearer, Jwt, MutualTls


@pytest.mark.parametrize("name", ["", "two\nlines", "x" * 513, None])
@pytest.mark.parametrize(
    "make",
    [
        lambda name: ApiKey(name=name),
        lambda name: Basic({}, name=name),
        lambda name: Bearer(lambda token: None, name=name),
        lambda name: MutualTls(name=name),
        lambda name: Jwt(issuer="bank", audience="bank", keys=b"k" * 32, name=name),
    ],
)
def test_a_scheme_has_a_name_that_can_be_part_of_an_identity(
    make: Callable[[Any], object], name: Any
) -> None:
    with pytest.raises(ValueError, match="the name of a security scheme"):
        make(name)
