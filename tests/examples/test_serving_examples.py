"""Examples of serving, of streams, and of drawings with revisions."""

from __future__ import annotations

import json
import struct
import zlib

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

import parley
from parley import (
    ArtifactVersions,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)
from parley.registry.app.registry import Registry
from parley.server.run import serving
from tests.examples.conftest import EXAMPLES
from tests.kit.servers import under_uvicorn

pytestmark = pytest.mark.anyio


async def test_several_agents_answer_each_under_its_path(example) -> None:
    agents = example("several_agents").AGENTS
    async with under_uvicorn(parley.asgi(agents, store="memory:")) as url:
        for path, agent in agents.items():
            async with parley.connect(f"{url}{path}") as remote:
                assert remote.card.name == agent.name
                assert remote.interface.url == f"{url}{path}"
        async with parley.connect(f"{url}/time") as remote:
            assert "Tokyo" in (await remote.send("What time is it in Tokyo?")).text


async def test_tenants_answer_at_one_address(example) -> None:
    tenants = example("tenants").TENANTS
    async with under_uvicorn(parley.asgi(tenants=tenants, store="memory:")) as url:
        for tenant, agent in tenants.items():
            async with parley.connect(f"{url}/{tenant}") as remote:
                assert remote.card.name == agent.name
                assert (remote.interface.url, remote.interface.tenant) == (url, tenant)
        async with parley.connect(f"{url}/globex") as remote:
            assert "Tokyo" in (await remote.send("What time is it in Tokyo?")).text


async def test_an_agent_answers_inside_an_application(example) -> None:
    async with (
        under_uvicorn(example("mounted").app) as url,
        parley.connect(f"{url}/agents/time") as remote,
    ):
        assert remote.interface.url.startswith(f"{url}/agents/time")
        assert "Tokyo" in (await remote.send("What time is it in Tokyo?")).text


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_every_example_says_how_to_run_it(path) -> None:
    docstring = path.read_text("utf-8").split('"""')[1]
    assert f"examples/{path.name}" in docstring or f"{path.stem}:app" in docstring
    ways = ("parley send", f"pytest examples/{path.name}", "curl")  # some examples are no agents
    assert any(way in docstring for way in ways)


async def test_a_catalog_lists_what_is_served(example) -> None:
    module = example("catalog")
    app = parley.asgi(module.AGENTS, publisher=module.PUBLISHER, store="memory:")
    async with (
        under_uvicorn(app) as url,
        aiohttp.ClientSession() as http,
        http.get(f"{url}/.well-known/ard.json") as answer,
    ):
        catalog = await answer.json(content_type="application/ai-catalog+json")
    assert [entry["identifier"] for entry in catalog["entries"]] == [
        f"urn:air:agent.localhost:agent:{name}" for name in ("time", "boats", "flights")
    ]
    assert all(len(entry["representativeQueries"]) >= 2 for entry in catalog["entries"])


# -- the registry reads the agents of the catalog, as its docstring says ---------------------------


async def test_the_agents_of_the_catalog_are_found_and_called(example) -> None:
    catalog = example("catalog")
    assert example("registry").CATALOGS == ["http://127.0.0.1:9999"]
    app = parley.asgi(catalog.AGENTS, publisher=catalog.PUBLISHER, store="memory:")
    async with under_uvicorn(app) as there:
        registry = Registry("memory:", sources=[there], publisher="registry.localhost")
        async with serving(registry.app) as url:
            found = await parley.find("what time is it in Tokyo", registry=url)
            assert found[0].name == catalog.AGENTS["/time"].name
            async with parley.connect(found[0]) as agent:
                assert "Tokyo" in (await agent.send("What time is it in Tokyo?")).text


# -- a report that grows while a client reads it, from a script or from a model --------------------


@pytest.fixture
def report(example, monkeypatch):
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    module = example("streaming_report")
    monkeypatch.setattr(module, "PAUSE", 0)
    return module.agent


async def test_the_report_is_streamed_in_chunks_of_one_artifact(report, serve) -> None:
    async with serve(report) as agent:
        events = [event async for event in agent.stream("Write a report about tides")]
        task = await agent.get(events[0].id)
    assert isinstance(events[0], Task)
    chunks = [e for e in events if isinstance(e, TaskArtifactUpdateEvent)]
    assert len(chunks) > 20
    assert [c.append for c in chunks] == [False] + [True] * (len(chunks) - 1)
    assert [c.last_chunk for c in chunks] == [False] * (len(chunks) - 1) + [True]
    assert len({c.artifact.artifact_id for c in chunks}) == 1
    assert "".join(c.artifact.text for c in chunks) == task.text
    assert task.text.startswith(
        "# A report about tides\n\n## Summary\n\nEverybody has heard of tides;"
    )
    assert task.state is TaskState.COMPLETED


async def test_progress_is_told_between_the_chunks(report, serve) -> None:
    async with serve(report) as agent:
        events = [event async for event in agent.stream("Write a report about tides")]
    said = [
        e.status.message.text
        for e in events
        if isinstance(e, TaskStatusUpdateEvent) and e.status.message
    ]
    assert said == [
        "Writing section 1 of 3: Summary",
        "Writing section 2 of 3: What is known",
        "Writing section 3 of 3: What to do next",
    ]


async def test_a_model_behind_the_openai_api_writes_it(report, serve, monkeypatch) -> None:
    asked = []

    async def completions(request: Request) -> StreamingResponse:
        asked.append((request.headers["authorization"], await request.json()))

        async def body():
            for words in ("Tides ", "rise."):
                chunk = {"choices": [{"delta": {"content": words}}]}
                yield f"data: {json.dumps(chunk)}\n\n"
            yield 'data: {"choices": [{"delta": {}}]}\n\ndata: [DONE]\n\n'

        return StreamingResponse(body(), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/chat/completions", completions, methods=["POST"])])
    async with under_uvicorn(app) as model, serve(report) as agent:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{model}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "secret")
        monkeypatch.setenv("OPENAI_MODEL", "small")
        task = await agent.send("Write a report about tides")
    assert task.state is TaskState.COMPLETED
    assert task.text.count("Tides rise.") == 3
    authorization, question = asked[0]
    assert authorization == "Bearer secret"
    assert (question["model"], question["stream"]) == ("small", True)
    assert question["messages"][0]["content"].endswith("report on tides.")


async def test_a_model_that_fails_fails_the_report(report, serve, monkeypatch) -> None:
    async with under_uvicorn(Starlette()) as nothing, serve(report) as agent:
        monkeypatch.setenv("OPENAI_BASE_URL", nothing)
        task = await agent.send("Write a report about tides")
    assert task.state is TaskState.FAILED
    assert "404" not in task.status.message.text  # details are for the server's log


# -- revisions of drawings, each by its own task ---------------------------------------------------


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
