"""Labels and practices between a real server and real clients."""

import asyncio
from typing import Any

import pytest
from parley_data_protection import URI, DataNotAllowed, DataProtection, Label, Practice

import parley
from parley import Agent, Part, Turn
from parley.model.errors import InvalidParamsError
from parley.server.run import serving

PRACTICE = Practice(purposes=["booking"], retention_days=30, regions=["EU"])
FITS = Label(purposes=["booking", "support"], retention_days=30, regions=["EU", "CH"])
seen: list[str] = []


def hotel(*extensions: Any) -> Agent:
    agent = Agent("Hotel", extensions=extensions)

    @agent.skill
    async def book(turn: Turn) -> str:
        """Books."""
        seen.append(turn.text)
        label = DataProtection.of(turn.message)
        return "no label" if label is None else ",".join(sorted(label.purposes))

    return agent


def run(test: Any, agent: Agent) -> None:
    async def main() -> None:
        seen.clear()
        async with serving(parley.asgi(agent)) as url:
            await test(url)

    asyncio.run(main())


def test_data_that_the_card_allows_is_labelled_and_sent() -> None:
    async def test(url: str) -> None:
        async with parley.connect(url, extensions=[DataProtection(label=FITS)]) as client:
            assert (await client.send("Ada, room 7")).text == "booking,support"
            [declared] = [e for e in client.card.capabilities.extensions if e.uri == URI]
        assert declared.params == {
            "purposes": ["booking"], "retentionDays": 30, "regions": ["EU"], "labelled": False,
        }  # fmt: skip

    run(test, hotel(DataProtection(PRACTICE)))


@pytest.mark.parametrize(
    ("label", "why"),
    [
        (Label(purposes=["ads"]), "not for booking"),
        (Label(retention_days=7), "kept 7 days"),
        (Label(regions=["US"]), "must not be in EU"),
    ],
)
def test_data_that_the_card_does_not_allow_is_neither_sent_nor_taken(
    label: Label, why: str
) -> None:
    async def test(url: str) -> None:
        with pytest.raises(DataNotAllowed, match=why):
            async with parley.connect(url, extensions=[DataProtection(label=label)]) as client:
                await client.send("secret")
        async with parley.connect(url, extensions=[DataProtection()]) as client:
            with pytest.raises(DataNotAllowed, match=why):
                await client.send("secret", message_metadata=DataProtection.says(label))
        async with parley.connect(url, extensions=[URI]) as client:  # which does not check
            with pytest.raises(InvalidParamsError, match=why):
                await client.send("secret", message_metadata=DataProtection.says(label))
            part = Part(text="secret", metadata=DataProtection.says(label))
            with pytest.raises(InvalidParamsError, match=why):
                await client.send([Part(text="hello"), part])
        assert seen == []

    run(test, hotel(DataProtection(PRACTICE)))


def test_an_agent_that_says_nothing_gets_nothing() -> None:
    async def test(url: str) -> None:
        with pytest.raises(DataNotAllowed, match="does not say"):
            async with parley.connect(url, extensions=[DataProtection(label=FITS)]) as client:
                await client.send("secret")
        assert seen == []

    run(test, hotel())


def test_an_agent_may_take_only_what_is_labelled() -> None:
    async def test(url: str) -> None:
        async with parley.connect(url, extensions=[URI]) as client:
            with pytest.raises(InvalidParamsError, match="only with a label"):
                await client.send("secret")
            assert (await client.send("x", message_metadata=DataProtection.says(FITS))).text

    run(test, hotel(DataProtection(PRACTICE, labelled=True, required=True)))
