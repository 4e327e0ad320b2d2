"""What is asked of a registry, and the texts of its entries: read within limits, or refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from parley.model.errors import InvalidParamsError
from parley.registry.catalog.reading import InvalidEntry, read_entry
from parley.registry.catalog.searching import QueryModel
from parley.registry.search.filters import constraints_of, constraints_of_expression, order_of
from parley.registry.search.searcher import MAX_OFFSET, asked_digest, page_token, place_in
from parley.registry.search.texts import MARKS, MAX_TEXT, marks_of, texts_of

DATA = Path(__file__).parents[1] / "data" / "registry"
ASKED = asked_digest("search", "weather")


def expressions(data: bytes) -> None:
    """An expression becomes constraints with values, or is refused with a short reason."""
    text = data.decode("utf-8", "replace")
    for read in (constraints_of_expression, order_of):
        try:
            for each in read(text):
                assert each.field
        except InvalidParamsError as error:
            assert 0 < len(str(error)) < 1_000


def expression_seeds() -> Iterator[bytes]:
    yield b"type = 'application/a2a-agent-card+json' AND createdAfter > '2026-01-01'"
    yield b"NOT (tags = a OR tags IN ('b', \"c\")) AND contains(displayName, 'x'), y"
    yield b"updatedAt DESC, displayName"


def filters(data: bytes) -> None:
    """A filter in JSON becomes constraints with values, or is refused with a reason."""
    try:
        given = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    try:
        for each in constraints_of(QueryModel(filter=given)):
            assert each.field
            assert all(each.values)
    except InvalidParamsError as error:
        assert str(error)


def filter_seeds() -> Iterator[bytes]:
    yield b'{"type":["application/a2a-agent-card+json"],"metadata.seats":3,"a.b":[true,"x"]}'


def places(data: bytes) -> None:
    """A token is a place within bounds, or is refused."""
    try:
        place = place_in(data.decode("utf-8", "replace"), ASKED)
    except InvalidParamsError:
        return
    assert 0 <= place.offset <= MAX_OFFSET
    assert place_in(page_token(ASKED, place), ASKED) == place


def place_seeds() -> Iterator[bytes]:
    yield page_token(ASKED, place_in("", ASKED)).encode()


def texts(data: bytes) -> None:
    """Any text has some of the marks, each once and in their order."""
    found = marks_of({"C": data.decode("utf-8", "surrogateescape")})
    assert found == tuple(mark for mark in MARKS if mark in found)


def text_seeds() -> Iterator[bytes]:
    for line in (DATA / "instructing.txt").read_text("utf-8").splitlines()[1:]:
        text = line.split(" | ", 1)[1].encode("latin-1", "backslashreplace")
        yield text.decode("unicode_escape").encode("utf-8", "replace")


def described(data: bytes) -> None:
    """The texts of an entry are within bounds, whatever it holds."""
    try:
        entry = read_entry(msgspec.json.decode(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidEntry):
        return
    found = texts_of(entry)
    assert found.keys() <= set("ABCD")
    assert all(0 < len(text) <= MAX_TEXT for text in found.values())


def described_seeds() -> Iterator[bytes]:
    catalog = msgspec.json.decode((DATA / "catalog.json").read_bytes())
    for entry in catalog["entries"][:5]:
        yield msgspec.json.encode(entry)
    entry = {**catalog["entries"][0], "data": {"tools": [{"name": "x", "inputSchema": {}}]}}
    yield msgspec.json.encode({name: entry[name] for name in entry if name != "url"})
