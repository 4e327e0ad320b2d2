"""Catalogs, as anybody can write them: what is found valid is read, and the rest has a reason."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from parley.registry.catalog.reading import MAX_PROBLEMS, InvalidCatalog, problems_of, read_catalog
from tests.wire.catalog.test_problems import GOOD


def checked(data: bytes) -> None:
    """A catalog has problems, each with its reason, or every entry of it can be read."""
    try:
        problems = problems_of(data)
    except InvalidCatalog as error:
        assert str(error)
        return
    assert len(problems) <= MAX_PROBLEMS + 11
    assert all(each.what and str(each) for each in problems)
    if not any(each.is_error for each in problems):
        assert read_catalog(data).rejected == ()


def catalog_seeds() -> Iterator[bytes]:
    yield msgspec.json.encode(GOOD)
    yield b'{"specVersion":"1.0","entries":[]}'
    for entry in GOOD["entries"]:  # type: ignore[attr-defined]
        yield msgspec.json.encode({"specVersion": "1.0", "entries": [entry]})
