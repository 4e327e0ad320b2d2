"""Cards: the one that all see, and the one that an agent shows to those it knows."""

from __future__ import annotations

import pytest

from parley.client.bindings.binding import canonical
from parley.model.errors import UnsupportedOperationError
from parley.model.operations import GetExtendedAgentCardRequest
from tests.contract.conftest import past_the_card, reach
from tests.kit.servers import WAYS

pytestmark = pytest.mark.anyio

ENVELOPE = ("urn:parley:envelope:v1", "1.0")
OFFERED = [*(way for way in WAYS if way != ENVELOPE), ENVELOPE]
OF_0_3 = [way for way in OFFERED if way[1] == "0.3"]


async def test_a_pinned_client_speaks_as_it_was_told(remote, speech):
    assert remote.interface.protocol_binding == canonical(speech.binding)
    assert remote.interface.protocol_version[:3] == speech.version
    assert remote.version == speech.version


async def test_the_card_offers_every_way_the_preferred_first(remote):
    offered = [(i.protocol_binding, i.protocol_version) for i in remote.card.supported_interfaces]
    assert offered == OFFERED


async def test_the_extended_card_is_told_in_every_way(remote, speech):
    card = await remote.extended_card()
    assert card.name == "Contract agent"
    assert card.description == "Does what it is told, for ada."
    assert {skill.id for skill in card.skills} >= {"say", "work", "secret"}
    # A card of 0.3 names the interfaces of that version alone.
    offered = [(i.protocol_binding, i.protocol_version[:3]) for i in card.supported_interfaces]
    assert offered == (OF_0_3 if speech.is_old else OFFERED)


async def test_an_agent_without_an_extended_card_says_so(server, speech):
    async with reach(server.plain, speech) as plain:
        with pytest.raises(UnsupportedOperationError):
            await plain.extended_card()
        # And so does the agent itself, to a client that asks though the card says no.
        with pytest.raises(UnsupportedOperationError):
            await past_the_card(plain, "GetExtendedAgentCard", GetExtendedAgentCardRequest())
