"""The specification page says what the codec does: strangers write clients from it."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest

from parley.envelope import cards, codec, messages
from parley.envelope.codec import members_of, read_message
from parley.envelope.messages import ENVELOPE_ERRORS, TASK_ERRORS
from parley.envelope.server.card import schema, vectors
from parley.model.errors import ERRORS, PeerError
from parley.model.ids import LONGEST_ID
from parley.model.operations import OPERATIONS
from parley.wire.json.problems import collecting_problems
from tests.house.documents import ROOT, blocks

NAME = "docs/reference/envelope-specification.md"
PAGE = (ROOT / NAME).read_text("utf-8")
EXAMPLES = [each for each in blocks(NAME) if each.language == "json"]
SCHEMA = json.loads(schema())
CARD_SCHEMA = {**SCHEMA, "$id": "urn:card", "$ref": "#/$defs/card"}
ROWS = {found[1]: found[0] for found in re.finditer(r"^\| `([^`]+)` \|.*$", PAGE, flags=re.M)}


@pytest.mark.parametrize("block", EXAMPLES, ids=lambda each: f"line {each.line}")
def test_an_example_is_one(block: Any) -> None:
    example = json.loads(block.text)

    if "agentInfo" in example:
        jsonschema.Draft202012Validator(CARD_SCHEMA).validate(example)
        with collecting_problems() as problems:
            card = cards.read_card(example)
        assert not problems
        assert cards.read_card(cards.write_card(card)) == card
        return
    jsonschema.Draft202012Validator(SCHEMA).validate(example)
    written = members_of(read_message(block.text))
    for name in ("messageId", "source", "timestamp"):
        assert written[name] == example[name]


@pytest.mark.parametrize(
    "error", [*ERRORS, *ENVELOPE_ERRORS.values()], ids=lambda error: error.reason
)
def test_an_error_is_in_the_table_with_its_status(error: Any) -> None:
    assert re.search(rf"\| {error.http_status}[ ;]", ROWS[error.reason])


def test_the_page_names_every_member_and_choice() -> None:
    codes = {*TASK_ERRORS.values(), PeerError.reason}
    choices = [*messages.MessageType, *messages.SubType, *messages.Priority, *messages.Status]
    named = {*codes, *choices, *messages.RoutingStrategy, codec.UTF_8}
    kinds = [
        value
        for module in (messages, cards)
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__.startswith("parley.envelope")
    ]
    members = {field.encode_name for kind in kinds for field in msgspec.structs.fields(kind)} - {
        "further",
        "received",
    }
    assert len(members) > 70

    missing = {
        name
        for name in named | members
        if not re.search(rf"[`.\[\"]{re.escape(name)}[`.\"\[]", PAGE)
    }
    assert missing == set()
    for name in (messages.SUBPROTOCOL, messages.BINDING):
        assert f"`{name}`" in PAGE


def test_the_page_has_a_row_for_each_operation() -> None:
    for operation in OPERATIONS:
        row = ROWS[f"{messages.OPERATION_PREFIX}{operation.name}"]
        assert operation.request.__name__ in row
        if operation.streaming:
            assert "EVENTs with a `StreamResponse` each" in row


def test_the_worked_example_is_one_of_the_vectors() -> None:
    first, second = json.loads(vectors())["good"][:2]

    assert f"\n{first['canonical']}\n{first['signature']}\n" in PAGE
    assert f"`{second['signature']}`" in PAGE


def test_the_limits_on_the_page_are_those_of_the_codec() -> None:
    assert codec.MAX_BYTES == 10 * 2**20
    assert codec.MAX_DEPTH == 100
    assert cards.MAX_CARD_BYTES == 2**20
    for limit in ("10 MiB", "100 levels", f"{LONGEST_ID} bytes", "1 MiB, 1,000 capabilities"):
        assert limit in PAGE
