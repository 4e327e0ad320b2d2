"""Scripted agents: real agents with behaviour set by a test."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

import parley
from parley.model.errors import InvalidParamsError
from parley.testing import (
    ScriptedAgent,
    artifact,
    auth_required,
    client,
    completed,
    containing,
    failed,
    input_required,
    rejected,
    working,
)

pytestmark = pytest.mark.anyio


async def test_the_first_rule_that_fits_counts() -> None:
    rates = (
        ScriptedAgent("Rates")
        .on("convert", reply="97.20 EUR")
        .on(re.compile(r"^\d+$"), reply=lambda message: f"{message.text} it is")
        .on(lambda message: message.metadata, reply={"has": "metadata"})
        .on("bad", fail="No such currency.")
    )
    async with client(rates) as remote:
        assert (await remote.send("Please CONVERT 100 USD")).text == "97.20 EUR"
        assert (await remote.send("42")).text == "42 it is"
        reply = await remote.send("?", message_metadata={"a": 1})
        assert reply.task is None
        assert reply.parts[0].data == {"has": "metadata"}
        assert await remote.send("bad") == failed("No such currency.")
        assert await remote.send("what") == failed(
            "the scripted agent 'Rates' has no rule for 'what'; it has rules for: 'convert', "
            r"re.compile('^\\d+$'), " + repr(rates._rules[2].when) + ", 'bad'"
        )
    assert rates.texts == ["Please CONVERT 100 USD", "42", "?", "bad", "what"]


async def test_steps_are_done_in_order_and_a_question_waits_for_its_answer() -> None:
    hotel = (
        ScriptedAgent("Hotel")
        .on("book")
        .works("Looking")
        .artifact("Rooms: 3", name="rooms")
        .asks("Which day?")
        .replies(lambda answer: f"Booked {answer.text}")
    )
    async with client(hotel) as remote:
        task = await remote.send("book")
        assert task.id
        assert task == input_required("Which day?", artifacts=[artifact("Rooms: 3", name="rooms")])
        done = await remote.send("Friday", task=task)
        assert done == completed(containing("Booked Friday"))
    assert [(each.text, each.task_id) for each in hotel.received] == [
        ("book", task.id),
        ("Friday", task.id),
    ]


async def test_a_rule_may_be_for_some_messages_only() -> None:
    flaky = ScriptedAgent("Flaky").on(fail="Busy.", times=2).on(reply="Here you are.")
    async with client(flaky) as remote:
        assert await remote.send("?") == failed("Busy.")
        assert await remote.send("?") == failed("Busy.")
        assert (await remote.send("?")).text == "Here you are."


async def test_the_other_ends() -> None:
    agent = (
        ScriptedAgent("Ends")
        .on("reject")
        .rejects("Not here.")
        .on("raise")
        .raises(InvalidParamsError("Wrong."))
        .on("hang")
        .works()
        .hangs()
        .on("auth")
        .requires_auth("Sign in.")
        .replies("In.")
        .on("slow")
        .works("Slowly")
        .takes(timedelta(hours=3))
        .replies("At last.")
    )
    async with client(agent) as remote:
        assert await remote.send("reject") == rejected("Not here.")
        with pytest.raises(InvalidParamsError, match=r"Wrong\."):
            await remote.send("raise")
        hangs = await remote.send("hang", return_immediately=True)
        slow = await remote.send("slow", return_immediately=True)
        auth = await remote.send("auth")
        assert hangs.id
        assert slow.id
        assert auth.id
        assert auth == auth_required("Sign in.")
        assert await remote.send("ok", task=auth) == completed("In.")
        await remote.advance(timedelta(hours=3))
        assert await remote.get(slow.id) == completed("At last.")
        assert await remote.get(hangs.id) == working()
        await remote.cancel(hangs.id)


async def test_it_can_be_served_on_a_socket() -> None:
    rates = ScriptedAgent("Rates").on("convert", reply="97.20")
    async with rates.serve() as url, parley.connect(url) as remote:
        assert url.startswith("http://127.0.0.1:")
        assert (await remote.send("convert")).text == "97.20"
    assert rates.texts == ["convert"]


def test_scripts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"begin with a rule: .on\(...\).replies"):
        ScriptedAgent().replies("?")
    with pytest.raises(ValueError, match=r"is the last step of its rule"):
        ScriptedAgent().on("a", reply="b").works()
    with pytest.raises(ValueError, match="times is 1 or more"):
        ScriptedAgent().on("a", reply="b", times=0)
    with pytest.raises(ValueError, match="give reply, ask or fail, or add steps"):
        ScriptedAgent().on("a", reply="b", fail="c")
