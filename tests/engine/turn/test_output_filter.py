"""Parts from callers and agents, and the modes they accept (specification §3.2.2)."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from msgspec.structs import replace

from parley import Agent, Message, Part, Role, TaskState, Turn
from parley.engine.content import gives
from parley.model.errors import ContentTypeNotSupportedError

pytestmark = pytest.mark.anyio


def drawer() -> Agent:
    agent = Agent("Drawer", input_modes=["text/plain"], output_modes=["text/plain"])

    @agent.skill(input_modes=["image/*"], output_modes=["image/png", "text/plain"])
    async def draw(turn: Turn) -> Part | str:
        if turn.message.text.startswith("ask"):
            await turn.ask("Which picture?")
        if turn.accepts("image/png"):
            return Part(raw=b"png", media_type="image/png")
        return "a picture"

    @agent.skill(default=True)
    async def tell(turn: Turn) -> str:
        return "a tale"

    @agent.skill(output_modes=["application/json"])
    def count(turn: Any) -> dict[str, int]:
        return {"words": 2, "accepted": len(turn.accepted_output_modes)}

    return agent


PICTURE = Part(raw=b"x", media_type="image/jpeg")


def picture(**options: Any) -> Message:
    return Message(
        message_id="m-1", role=Role.USER, parts=(PICTURE,), metadata={"skill": "draw"}, **options
    )


def test_data_can_be_given_as_text_and_not_the_other_way_round() -> None:
    assert gives(["application/json"], ["text/plain"])
    assert not gives(["text/plain"], ["application/json"])
    assert gives(["image/*"], ["image/webp"])
    assert gives(["text/plain"], [])


async def test_a_caller_who_accepts_nothing_of_the_skill_is_told_what_it_gives(talk: Any) -> None:
    ran = []
    agent = drawer()

    @agent.skill
    async def watch(turn: Turn) -> str:
        ran.append(turn)
        return "seen"

    async with talk(agent) as caller:
        for skill, supported in (("watch", "text/plain"), ("count", "application/json")):
            with pytest.raises(ContentTypeNotSupportedError, match=supported) as raised:
                await caller.send(
                    "Hi", metadata={"skill": skill}, accepted_output_modes=("video/mp4",)
                )
            assert raised.value.metadata["supported"] == supported
            with pytest.raises(ContentTypeNotSupportedError):
                async for _ in caller.stream(
                    "Hi", metadata={"skill": skill}, accepted_output_modes=("video/mp4",)
                ):
                    pass
        assert ran == []


async def test_the_modes_of_a_skill_come_before_those_of_the_agent(talk: Any) -> None:
    async with talk(drawer()) as caller:
        assert (await caller.send(picture())).parts[0].media_type == "image/png"
        with pytest.raises(ContentTypeNotSupportedError, match=r"parts\[0\].*image/\*"):
            await caller.send("Hi", metadata={"skill": "draw"})
        with pytest.raises(ContentTypeNotSupportedError, match="text/plain"):
            await caller.send(replace(picture(), metadata=None))


async def test_a_turn_can_ask_what_the_caller_accepts(talk: Any) -> None:
    async with talk(drawer()) as caller:
        reply = await caller.send(picture(), accepted_output_modes=("text/*",))
        assert reply.text == "a picture"
        reply = await caller.send(picture(), accepted_output_modes=("image/*", "text/plain"))
        assert reply.parts[0].raw == b"png"
        reply = await caller.send(
            "Hi", metadata={"skill": "count"}, accepted_output_modes=("application/json",)
        )
        assert reply.parts[0].data == {"words": 2, "accepted": 1}


async def test_data_becomes_text_for_those_who_take_no_data(talk: Any) -> None:
    async with talk(drawer()) as caller:
        modes = ("text/plain", "image/png")
        metadata = {"skill": "count"}
        reply = await caller.send("Hi", metadata=metadata, accepted_output_modes=modes)
        assert reply.parts == (Part(text='{"words":2,"accepted":2}', media_type="text/plain"),)
        agent = Agent("Counter", output_modes=["application/json"])

        @agent.skill(replies="task")
        async def count(turn: Turn) -> dict[str, int]:
            await turn.working({"step": 1})
            return {"words": 2}

    async with talk(agent) as caller:
        task = await caller.task("Hi", accepted_output_modes=("text/plain",))
        assert task.artifacts[0].parts == (Part(text='{"words":2}', media_type="text/plain"),)
        assert task.history[-1].text == '{"step":1}'


async def test_what_has_no_accepted_form_is_sent_with_a_warning(
    talk: Any, caplog: pytest.LogCaptureFixture
) -> None:
    agent = Agent("Mixed", output_modes=["text/plain", "image/png"])

    @agent.skill(replies="task")
    async def mix(turn: Turn) -> Part:
        await turn.artifact("one")
        await turn.artifact("two")
        return Part(raw=b"png", media_type="image/png")

    async with talk(agent) as caller:
        with caplog.at_level(logging.WARNING, "parley.engine"):
            task = await caller.task("Hi", accepted_output_modes=("image/png",))
    assert [a.parts[0].media_type for a in task.artifacts] == ["", "", "image/png"]
    assert [r.getMessage() for r in caplog.records] == [
        "the caller accepts 'image/png', and gets text/plain"
    ]


async def test_a_follow_up_is_checked_against_the_skill_of_its_task(talk: Any) -> None:
    agent = drawer()

    @agent.skill(input_modes=["text/plain", "image/*"], output_modes=["image/png", "text/plain"])
    async def redraw(turn: Turn) -> Part | str:
        await turn.ask("Which picture?")
        if turn.accepts("image/png"):
            return Part(raw=b"png", media_type="image/png")
        return "a picture"

    async with talk(agent) as caller:
        task = await caller.task("Go", metadata={"skill": "redraw"})
        assert task.state is TaskState.INPUT_REQUIRED
        video = Part(raw=b"x", media_type="video/mp4")
        answer = picture(task_id=task.id)
        wrong = replace(answer, parts=(video,))
        with pytest.raises(ContentTypeNotSupportedError, match=r"image/\*"):
            await caller.send(wrong)
        with pytest.raises(ContentTypeNotSupportedError, match="acceptedOutputModes"):
            await caller.send(answer, accepted_output_modes=("video/mp4",))
        done = await caller.task(answer, accepted_output_modes=("text/plain",))
        assert done.artifacts[0].text == "a picture"


async def test_accepted_modes_hold_until_a_message_names_others(talk: Any) -> None:
    seen = []
    agent = Agent("Chatty", output_modes=["text/plain", "text/html"])

    @agent.skill
    def chat(turn: Any) -> str:
        seen.append((turn.accepted_output_modes, turn.accepts("text/html")))
        turn.ask("More?")
        turn.ask("Still more?")
        return "enough"

    async with talk(agent) as caller:
        task = await caller.task("Hi", accepted_output_modes=("text/plain",))
        await caller.task("Yes", task_id=task.id)
        await caller.task("Yes", task_id=task.id, accepted_output_modes=("text/html",))
    assert seen == [(("text/plain",), False), (("text/plain",), False), (("text/html",), True)]
