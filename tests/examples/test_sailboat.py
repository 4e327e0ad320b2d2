"""Drawings that are drawn again, each by a task of its own."""

from __future__ import annotations

import struct
import zlib

import pytest

from parley import ArtifactVersions, Message, Part, Role, TaskState

pytestmark = pytest.mark.anyio


@pytest.fixture
def boats(example):
    return example("sailboat").agent


def sails(task) -> tuple[int, ...]:
    """Return the colour of the sails in a task's picture, after checking that it is a PNG."""
    [artifact] = task.artifacts
    [part] = artifact.parts
    assert (artifact.name, part.media_type) == ("sailboat.png", "image/png")
    raw = part.raw
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(raw):
        size, kind = struct.unpack(">I4s", raw[at : at + 8])
        chunks[kind] = raw[at + 8 : at + 8 + size]
        checksum = struct.unpack(">I", raw[at + 8 + size : at + 12 + size])[0]
        assert checksum == zlib.crc32(kind + chunks[kind])
        at += 12 + size
    width, height = struct.unpack(">2I", chunks[b"IHDR"][:8])
    pixels = zlib.decompress(chunks[b"IDAT"])
    assert len(pixels) == height * (width + 1)
    colour = pixels[100 * (width + 1) + 1 + 170]  # a point of the main sail
    return tuple(chunks[b"PLTE"][3 * colour : 3 * colour + 3])


async def test_it_draws_a_boat(boats, serve) -> None:
    async with serve(boats) as agent:
        task = await agent.send("Draw a green sailboat")
    assert task.state is TaskState.COMPLETED
    assert sails(task) == (40, 140, 80)


async def test_a_change_is_a_new_task_in_the_same_context(boats, serve) -> None:
    async with serve(boats) as agent:
        first = await agent.send("Draw a sailboat")
        second = await agent.send("Make it red", task=first)
        unchanged = await agent.get(first.id)
    assert second.id != first.id
    assert second.context_id == first.context_id
    assert second.history[0].reference_task_ids == (first.id,)
    assert second.artifacts[0].name == first.artifacts[0].name
    assert second.artifacts[0].artifact_id != first.artifacts[0].artifact_id
    assert sails(second) == (205, 45, 45)
    assert unchanged == first


async def test_the_context_is_enough_when_there_is_one_boat(boats, serve) -> None:
    async with serve(boats) as agent:
        first = await agent.send("Draw a blue sailboat")
        second = await agent.send("Make it red", context_id=first.context_id)
    assert second.status.message is None
    assert sails(second) == (205, 45, 45)


async def test_it_asks_which_one_when_there_are_several(boats, serve) -> None:
    async with serve(boats) as agent:
        white = await agent.send("Draw a sailboat")
        context = white.context_id
        await agent.send("Draw a blue sailboat", context_id=context)
        asking = await agent.send("Make it red", context_id=context)
        assert asking.state is TaskState.INPUT_REQUIRED
        assert asking.text == "Which sailboat do you mean: blue or white?"
        still = await agent.send("The large one", task=asking)
        assert still.state is TaskState.INPUT_REQUIRED
        task = await agent.send("The blue one", task=still)
    assert task.id == asking.id
    assert task.state is TaskState.COMPLETED
    assert sails(task) == (205, 45, 45)


async def test_a_reference_says_which_one(boats, serve) -> None:
    async with serve(boats) as agent:
        white = await agent.send("Draw a sailboat")
        await agent.send("Draw a blue sailboat", context_id=white.context_id)
        task = await agent.send(
            Message(
                message_id="m-1",
                role=Role.USER,
                parts=(Part(text="Make it red"),),
                context_id=white.context_id,
                reference_task_ids=(white.id,),
            )
        )
    assert task.state is TaskState.COMPLETED
    said = [message.text for message in task.history if message.role is Role.AGENT]
    assert said == ["Painting the white sailboat red"]


async def test_a_boat_is_redrawn_in_its_colour_when_none_is_named(boats, serve) -> None:
    async with serve(boats) as agent:
        first = await agent.send("Draw a purple sailboat")
        second = await agent.send("Again, please", task=first)
    assert sails(second) == sails(first) == (130, 60, 160)


async def test_its_client_goes_on_from_the_version_that_pleased(example, serve, capsys) -> None:
    module = example("sailboat")
    async with serve(module.agent) as agent:
        await module.repaint(agent.card.supported_interfaces[0].url)
    assert capsys.readouterr().out.splitlines() == [
        "1 white new ",
        "2 black from 1 rejected",
        "3 red from 1 ",
    ]


async def test_of_several_boats_the_one_that_a_message_names_is_meant(boats, serve) -> None:
    async with serve(boats) as agent:
        versions = ArtifactVersions()
        versions.add(await agent.send("Draw a blue sailboat"))
        another = "Draw a green sailboat"
        versions.add(await agent.send(another, context_id=versions.context_id))
        versions.accept(versions.versions("sailboat.png")[0])
        task = await agent.send(versions.message("Again, please", "sailboat.png"))
    assert task.state is TaskState.COMPLETED
    assert sails(task) == (40, 80, 180)
