"""Where streams begin and end, and who sees what of them."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest

import parley
from parley import Agent, Execution, Turn
from parley.model.tasks import TaskState
from tests.contract.agents import gates
from tests.kit.scripted_server import Exchange, card, scripted
from tests.rules.conftest import only, placed
from tests.rules.wire import Wire

pytestmark = pytest.mark.anyio

HTTP_JSON = [("HTTP+JSON", "1.0"), ("HTTP+JSON", "0.3")]
NEW = [("JSONRPC", "1.0"), ("HTTP+JSON", "1.0"), ("GRPC", "1.0")]
OLD = [("JSONRPC", "0.3"), ("HTTP+JSON", "0.3"), ("GRPC", "0.3")]


async def held(wire: Wire) -> str:
    """The id of a task that works until its gate is opened."""
    task = await wire.task("hold please", at_once=True)
    return str(task["id"])


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


@only(*NEW)
async def test_rule_02_a_subscription_stays_open_through_input_required(wire):
    task = await wire.task("show please", at_once=True)
    async with wire.subscribing(task["id"]) as events:
        gates[task["id"]].set()
        await events.until("input-required")
        await wire.send("large", taskId=task["id"])
        rest = await events.rest()
    assert rest[-1].state == "completed"


def lasting() -> Agent:
    """An agent whose streams are not to end before their tasks do."""
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
        assert server.calls == ["SendStreamingMessage"]  # and does not look for more


# -- rule 10 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [None, 0, 1, 2, 9])
async def test_rule_10_the_stream_of_a_message_obeys_the_history_length(wire, length):
    """So does that of a follow-up, which begins with the task as it stood."""
    configuration = {} if length is None else {"historyLength": length}
    shown = 9 if length is None else length
    if length == 0 and (wire.binding, wire.version) == ("GRPC", "0.3"):
        shown = 9  # that proto cannot tell 0 from nothing said
    async with wire.streaming("ask please", configuration=configuration) as events:
        first = await events.next()
        assert len(first.value.get("history", [])) == min(shown, 1)
        await events.rest()
    task_id = first.value["id"]
    whole = (await wire.get(task_id))["history"]
    more = {"taskId": task_id, "configuration": configuration}
    async with wire.streaming("large", **more) as events:
        task = await events.next()
        assert (task.kind, task.state) == ("task", "input-required")
        kept = [each["messageId"] for each in whole]
        found = [each["messageId"] for each in task.value.get("history", [])]
        assert found == (kept[-shown:] if shown else [])
        assert (await events.rest())[-1].state == "completed"


async def test_rule_10_a_subscription_shows_all_of_the_history_as_it_cannot_say_how_much(wire):
    configuration = {"historyLength": 1}
    task = await wire.task("ask please", configuration=configuration)
    before = len((await wire.get(task["id"])).get("history", []))
    async with wire.subscribing(task["id"]) as events:
        assert len((await events.next()).value["history"]) == before


# -- rule 21 ----------------------------------------------------------------------------------


async def test_rule_21_streams_of_one_task_tell_the_same_and_one_that_is_closed_ends_no_other(wire):
    task_id = await held(wire)
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(wire.subscribing(task_id))
        second = await stack.enter_async_context(wire.subscribing(task_id))
        async with wire.subscribing(task_id) as third:
            for events in (first, second, third):
                assert (await events.next()).kind == "task"
        gates[task_id].set()
        told, same = await first.rest(), await second.rest()
    assert told[-2:] == same[-2:]
    assert told[-1].state == "completed"
    assert words(told) == ["let go"]


def words(events):
    return [
        "".join(p["text"] for p in e.value["artifact"]["parts"])
        for e in events
        if e.kind == "artifactUpdate"
    ]


# -- rules 27 and 42 --------------------------------------------------------------------------


@pytest.fixture(params=["unknown task", "terminal task", "refused message"])
async def refused(request, wire):
    """A request for a stream that is refused, and why."""
    if request.param == "unknown task":
        return wire.subscribing("nobody"), "TASK_NOT_FOUND"
    if request.param == "terminal task":
        done = await wire.task("work please")
        return wire.subscribing(done["id"]), "UNSUPPORTED_OPERATION"
    picture = [{"text": "words please"}, {"url": "https://x.example/a", "mediaType": "image/png"}]
    return wire.streaming(picture), "CONTENT_TYPE_NOT_SUPPORTED"


STATUS = {
    "TASK_NOT_FOUND": (404, "NOT_FOUND"),
    "UNSUPPORTED_OPERATION": (400, "FAILED_PRECONDITION"),
    "CONTENT_TYPE_NOT_SUPPORTED": (400, "INVALID_ARGUMENT"),
}


async def test_rule_42_a_stream_that_is_refused_is_a_plain_error_and_never_a_stream(wire, refused):
    asked, reason = refused
    async with asked as events:
        refusal = events.refusal
        assert await events.next() is None
    assert refusal is not None
    assert refusal.reason == reason
    http, grpc = STATUS[reason]
    assert refusal.status == {"JSONRPC": 200, "HTTP+JSON": http, "GRPC": grpc}[wire.binding]
    if wire.binding != "GRPC":
        assert refusal.headers["content-type"] in ("application/json", "application/a2a+json")


@only(*HTTP_JSON)
async def test_rule_27_what_fails_before_the_first_event_has_the_status_of_its_error(wire):
    """The agent itself fails: nothing but its first event says so."""
    async with wire.streaming("break please") as events:
        refusal = events.refusal
    assert refusal is not None
    assert (refusal.status, refusal.reason) == (500, "INTERNAL_ERROR")


# -- rule 34 ----------------------------------------------------------------------------------


@only(*OLD)
@pytest.mark.parametrize(("said", "state"), [("ask", "input-required"), ("work", "completed")])
async def test_rule_34_the_last_update_of_a_stream_of_0_3_is_final(wire, said, state):
    async with wire.streaming(f"{said} please") as events:
        told = await events.rest()
    assert told[-1].state == state
    assert told[-1].value["final"] is True
    earlier = [event.value for event in told[:-1] if event.kind == "statusUpdate"]
    assert not any(value.get("final", False) for value in earlier)


@only(*OLD)
async def test_rule_34_a_subscription_of_0_3_ends_when_input_is_required(wire):
    task_id = (await wire.task("show please", at_once=True))["id"]
    async with wire.subscribing(task_id) as events:
        gates[task_id].set()
        told = await events.rest()
    assert (told[-1].state, told[-1].value["final"]) == ("input-required", True)
