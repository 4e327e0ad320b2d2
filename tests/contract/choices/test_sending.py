"""Messages and their replies: direct messages, tasks and streams."""

from __future__ import annotations

import asyncio
import logging

import pytest

import parley
from parley import Agent, Execution, Turn
from parley.model.tasks import TaskState
from tests.contract.choices.conftest import only, placed
from tests.contract.choices.told import said_in, state_of, words_of
from tests.contract.choices.wire import Wire
from tests.kit.scripted_server import HI, Exchange, card, scripted
from tests.kit.scripted_server import Agent as Scripted

pytestmark = pytest.mark.anyio

IDEMPOTENT = "urn:parley:idempotent-send:v1"


# -- rules 3 and 4 ----------------------------------------------------------------------------


@pytest.mark.parametrize("ceiling", [300.0, 0.05])
async def test_rule_03_a_message_waits_for_its_task_up_to_a_ceiling(way, ceiling):
    """At the ceiling, the response is the current task."""
    patient = Agent("Patient", execution=Execution(blocking_timeout=ceiling))
    began, go_on = asyncio.Event(), asyncio.Event()

    @patient.skill(replies="task")
    async def wait(turn: Turn) -> str:
        await turn.working("at it")
        began.set()
        await go_on.wait()
        return "done"

    async with placed(parley.asgi(patient, drain=0.0)) as place:
        wire = Wire(place, *way)
        answer = asyncio.create_task(wire.task("hello"))
        async with asyncio.timeout(5):
            await began.wait()
            if ceiling < 1:
                assert state_of(await answer) == "working"
            assert answer.done() is (ceiling < 1)
            go_on.set()
            task = await answer
        if ceiling > 1:
            assert state_of(task) == "completed"


@pytest.mark.parametrize(
    ("version", "said"), [("1.0", {"returnImmediately": True}), ("0.3", {"blocking": False})]
)
async def test_rule_04_the_client_says_it_as_the_version_does(version, said):
    offer = {"protocolBinding": "JSONRPC", "protocolVersion": version}
    reply = HI if version == "1.0" else {"kind": "message", **HI["message"], "role": "agent"}
    if version == "0.3":
        reply["parts"] = [{"kind": "text", "text": "hi"}]
    async with scripted(Scripted(reply)) as server:
        reference = card(server.url, supportedInterfaces=[{**offer, "url": server.url}])
        async with parley.connect(reference, retries=0) as remote:
            await remote.send("hello", return_immediately=True)
        configuration = server.exchanges[0].params["configuration"]
    assert configuration == said


# -- rule 16 ----------------------------------------------------------------------------------


async def test_rule_16_what_was_authorised_for_one_task_is_not_for_another(wire):
    first = await wire.task("auth please")
    assert state_of(first) == "auth-required"
    # Another caller cannot authorize it, whatever the message says.
    refused = await wire.of("eve").send("the key", taskId=first["id"])
    assert refused.reason == "TASK_NOT_FOUND"
    done = await wire.task("the key", taskId=first["id"])
    assert state_of(done) == "completed"
    # The next task needs its own key: not even a reference to the first task replaces it.
    more = {} if wire.is_proto else {"referenceTaskIds": [first["id"]]}
    second = await wire.task("auth please", contextId=first["contextId"], **more)
    assert second["id"] != first["id"]
    assert state_of(second) == "auth-required"


# -- rules 19 and 20 --------------------------------------------------------------------------


async def test_rule_20_a_context_is_named_by_its_caller_and_is_nobody_elses(wire):
    context = f"of-{wire.binding}-{wire.version}"
    mine = await wire.task("work please", contextId=context)
    theirs = await wire.of("bob").task("work please", contextId=context)
    assert mine["contextId"] == theirs["contextId"] == context
    if not wire.is_old:
        listed = await wire.ask("ListTasks", {"contextId": context})
        assert [task["id"] for task in listed.result["tasks"]] == [mine["id"]]
    unnamed = await wire.task("work please")
    assert unnamed["contextId"] not in ("", context)


# -- rule 40 ---------------------------------------------------------------------------------


async def test_rule_40_who_asks_for_it_has_a_repeated_message_answered_once(wire):
    wire.headers["X-A2A-Extensions" if wire.is_old else "A2A-Extensions"] = IDEMPOTENT
    id = f"once-{wire.binding}-{wire.version}"
    first, again = [await wire.task("work please", messageId=id) for _ in range(2)]
    assert first == again
    other = await wire.send("work, but otherwise", messageId=id)
    assert other.reason == "INVALID_PARAMS"
    assert other.fields == ("message.messageId",)
    # Message ids belong to a caller: another caller may use the same id.
    stranger = wire.of("bob")
    stranger.headers.update({"A2A-Extensions": IDEMPOTENT})
    assert (await stranger.task("work please", messageId=id))["id"] != first["id"]


async def test_rule_40_the_client_asks_for_it_where_the_card_offers_it():
    for offered in (False, True):
        agent = Scripted(HI)
        agent.extensions = (IDEMPOTENT,) if offered else ()
        async with scripted(agent) as server, parley.connect(server.url, retries=0) as remote:
            await remote.send("hello")
        asked = server.exchanges[-1].headers.get("a2a-extensions", "")
        assert (IDEMPOTENT in asked) is offered


# -- rule 36 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["break", "crash"])
async def test_rule_36_what_an_agent_raises_is_in_the_log_and_nowhere_else(wire, word, caplog):
    """``break`` fails before the task exists, ``crash`` fails within its task."""
    with caplog.at_level(logging.ERROR, "parley"):
        answer = await wire.send(f"{word} please")
    if word == "break":
        assert answer.reason == "INTERNAL_ERROR"
        told = answer.message
    else:
        assert state_of(answer.result) == "failed"
        told = said_in(answer.result)
    assert b"hunter2" not in answer.body
    assert b"RuntimeError" not in answer.body
    record = next(each for each in caplog.records if each.exc_info is not None)
    assert "hunter2" in str(record.exc_info[1])
    # The response contains the reference of the log entry.
    logged = set(record.getMessage().replace("(", " ").replace(")", " ").split())
    assert any(len(piece) >= 12 and piece in logged for piece in told.split())


# -- rule 43 ----------------------------------------------------------------------------------


async def test_rule_43_what_a_status_said_is_in_the_history_once_another_takes_its_place(wire):
    task = await wire.task("work please")
    assert state_of(task) == "completed"
    assert [words_of(message) for message in task["history"]] == ["work please", "on it"]
    asked = await wire.task("ask please")
    assert [words_of(message) for message in asked["history"]] == ["ask please"]
    done = await wire.task("large", taskId=asked["id"])
    assert [words_of(m) for m in done["history"]] == ["ask please", "Which size?", "large"]
    assert (await wire.get(done["id"]))["history"] == done["history"]


HTTP_JSON = [("HTTP+JSON", "1.0"), ("HTTP+JSON", "0.3")]
NEW = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0")]
OLD = [("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"), ("GRPC", "0.3")]


# -- rule 1 -----------------------------------------------------------------------------------


async def test_rule_01_the_client_posts_and_when_that_is_not_taken_gets_from_then_on():
    asked = []

    async def agent(exchange: Exchange) -> None:
        asked.append(exchange.method)
        if exchange.method == "POST":
            await exchange.body_of(b"no", 405)
            return
        await exchange.open_stream()
        done = b'{"task":{"id":"t","contextId":"c","status":{"state":"TASK_STATE_COMPLETED"}}}'
        await exchange.chunk(b"data: " + done + b"\n\n")
        await exchange.end_stream()

    async with scripted(agent) as server:
        interface = {"url": server.url, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
        reference = card(server.url, supportedInterfaces=[interface])
        async with parley.connect(reference, retries=0) as remote:
            for _ in range(2):
                events = [event async for event in remote.subscribe("t")]
                assert [event.state for event in events] == [TaskState.COMPLETED]
    assert asked == ["POST", "GET", "GET"]


# -- rule 2 -----------------------------------------------------------------------------------


def lasting() -> Agent:
    """An agent that keeps its streams open until their tasks end."""
    agent = Agent("Lasting", execution=Execution(stream_until_terminal=True))

    @agent.skill(replies="task")
    async def ask(turn: Turn) -> str:
        return f"size {(await turn.ask('Which size?')).text}"

    return agent


@pytest.mark.parametrize("way", NEW, ids="-".join)
async def test_rule_02_an_agent_may_keep_it_open_until_the_end(way):
    async with placed(parley.asgi(lasting(), drain=0.0)) as place:
        wire = Wire(place, *way)
        async with wire.streaming("go") as events:
            asked = await events.until("input-required")
            await wire.send("large", taskId=asked.value["taskId"])
            rest = await events.rest()
    assert rest[-1].state == "completed"
    assert words(rest) == ["size large"]


@pytest.mark.parametrize("way", OLD, ids="-".join)
async def test_rule_02_in_0_3_it_ends_all_the_same_because_that_update_is_final(way):
    async with (
        placed(parley.asgi(lasting(), drain=0.0)) as place,
        Wire(place, *way).streaming("go") as events,
    ):
        told = await events.rest()
    assert (told[-1].state, told[-1].value["final"]) == ("input-required", True)


async def test_rule_02_a_stream_of_a_message_stays_open_while_authorisation_is_required(wire):
    async with wire.streaming("auth please") as events:
        asked = await events.until("auth-required")
        await wire.send("the key", taskId=asked.value["taskId"])
        rest = await events.rest()
    assert rest[-1].state == "completed"


@pytest.mark.parametrize("stays_open", [False, True])
async def test_rule_02_the_client_takes_either_end_of_a_stream_for_normal(stays_open):
    async def agent(exchange: Exchange) -> None:
        status = {"state": "TASK_STATE_INPUT_REQUIRED"}
        await exchange.open_stream()
        task = {"id": "t", "contextId": "c", "status": {"state": "TASK_STATE_WORKING"}}
        await exchange.chunk(exchange.frame({"task": task}))
        update = {"taskId": "t", "contextId": "c", "status": status}
        await exchange.chunk(exchange.frame({"statusUpdate": update}))
        if stays_open:
            await exchange.never()
        await exchange.end_stream()

    async with scripted(agent) as server, parley.connect(card(server.url), retries=0) as remote:
        events = [event async for event in remote.stream("hello")]
        assert events[-1].status.state is TaskState.INPUT_REQUIRED
        assert server.calls == ["SendStreamingMessage"]  # the client does not fetch the task


# -- rule 21 ----------------------------------------------------------------------------------


def words(events):
    return [
        "".join(p["text"] for p in e.value["artifact"]["parts"])
        for e in events
        if e.kind == "artifactUpdate"
    ]


# -- rules 27 and 42 --------------------------------------------------------------------------


@pytest.fixture(params=["unknown task", "terminal task", "refused message"])
async def refused(request, wire):
    """A stream request that the server rejects, and the reason."""
    if request.param == "unknown task":
        return wire.subscribing("nobody"), "TASK_NOT_FOUND"
    if request.param == "terminal task":
        done = await wire.task("work please")
        return wire.subscribing(done["id"]), "UNSUPPORTED_OPERATION"
    picture = [{"text": "words please"}, {"url": "https://x.example/a", "mediaType": "image/png"}]
    return wire.streaming(picture), "CONTENT_TYPE_NOT_SUPPORTED"


@only(*HTTP_JSON)
async def test_rule_27_what_fails_before_the_first_event_has_the_status_of_its_error(wire):
    """The agent itself fails before the first event, so the status can still be 500."""
    async with wire.streaming("break please") as events:
        refusal = events.refusal
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (500, "INTERNAL_ERROR")
