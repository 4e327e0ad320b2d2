"""What comes of a message, and what becomes of its task."""

from __future__ import annotations

import asyncio
import logging

import pytest

import parley
from parley import Agent, Execution, Turn
from tests.contract.agents import gates
from tests.kit.scripted_server import HI, card, scripted
from tests.kit.scripted_server import Agent as Scripted
from tests.rules.conftest import only, placed
from tests.rules.told import said_in, state_of, words_of
from tests.rules.wire import Wire

pytestmark = pytest.mark.anyio

IDEMPOTENT = "urn:parley:idempotent-send:v1"
JSON_OF_0_3 = ("JSONRPC", "0.3")


# -- rules 3 and 4 ----------------------------------------------------------------------------


@pytest.mark.parametrize("ceiling", [300.0, 0.05])
async def test_rule_03_a_message_waits_for_its_task_up_to_a_ceiling(way, ceiling):
    """At the ceiling it is answered with the task as it stands."""
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


@only(("HTTP+JSON", "0.3"), ("GRPC", "0.3"))
async def test_rule_04_in_the_proto_of_0_3_a_configuration_that_says_nothing_says_false(wire):
    """As protobuf has it. Where there is none, nothing was said."""
    message = wire.message("hold please")
    task = (await wire.ask("SendMessage", {"message": message, "configuration": {}})).result["task"]
    assert state_of(task) in ("submitted", "working")
    gates[task["id"]].set()
    answer = await wire.ask("SendMessage", {"message": wire.message("work please")})
    assert state_of(answer.result["task"]) == "completed"


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


# -- rules 8 and 9 ----------------------------------------------------------------------------


async def test_rule_08_a_terminal_task_takes_no_message_and_no_subscriber(wire):
    for word in ("work", "fail", "reject"):
        task = await wire.task(f"{word} please")
        refusals = [await wire.send("more", taskId=task["id"])]
        for stream in (wire.streaming("more", taskId=task["id"]), wire.subscribing(task["id"])):
            async with stream as events:
                refusals.append(events.refusal)
        assert [each.reason for each in refusals] == ["UNSUPPORTED_OPERATION"] * 3
        if wire.binding == "JSONRPC":
            assert [each.code for each in refusals] == [-32004] * 3


async def test_rule_09_a_canceled_task_is_canceled_again_in_1_0_but_not_in_0_3(wire):
    """There -32002 is for tasks that are completed, failed or canceled (0.3 §8.2)."""
    for said in ("hold please", "ask please"):
        task = await wire.task(said, at_once=True)
        answers = [await wire.ask("CancelTask", task=task["id"]) for _ in range(3)]
        assert state_of(answers[0].result) == "canceled"
        for again in answers[1:]:
            if not wire.is_old:
                assert state_of(again.result) == "canceled"
                continue
            assert again.reason == "TASK_NOT_CANCELABLE"
            assert wire.binding == "GRPC" or again.code == -32002
            assert again.metadata["state"] == "canceled"
            assert "as canceled and" in again.message


async def test_rule_09_a_task_that_ended_otherwise_is_not_canceled(wire):
    for word, state in (("work", "COMPLETED"), ("fail", "FAILED"), ("reject", "REJECTED")):
        task = await wire.task(f"{word} please")
        refusal = await wire.ask("CancelTask", task=task["id"])
        assert refusal.reason == "TASK_NOT_CANCELABLE"
        named = state.lower() if wire.is_old else f"TASK_STATE_{state}"
        assert refusal.metadata["state"] == named
        assert f"ended as {named} and" in refusal.message
        assert state_of(await wire.get(task["id"])) == state.lower()


# -- rule 16 ----------------------------------------------------------------------------------


async def test_rule_16_what_was_authorised_for_one_task_is_not_for_another(wire):
    first = await wire.task("auth please")
    assert state_of(first) == "auth-required"
    # Not by another caller, whatever is in their message.
    refused = await wire.of("eve").send("the key", taskId=first["id"])
    assert refused.reason == "TASK_NOT_FOUND"
    done = await wire.task("the key", taskId=first["id"])
    assert state_of(done) == "completed"
    # Not in the same context, not by the same caller, not even by naming the task.
    more = {} if wire.is_proto else {"referenceTaskIds": [first["id"]]}
    second = await wire.task("auth please", contextId=first["contextId"], **more)
    assert second["id"] != first["id"]
    assert state_of(second) == "auth-required"


# -- rules 19 and 20 --------------------------------------------------------------------------


async def test_rule_19_a_message_to_a_task_is_of_the_tasks_context(wire):
    asked = await wire.task("ask please")
    refused = await wire.send("large", taskId=asked["id"], contextId="another")
    assert refused.reason == "INVALID_PARAMS"
    assert refused.fields == ("message.contextId",)
    assert state_of(await wire.get(asked["id"])) == "input-required"
    done = await wire.task("large", taskId=asked["id"])
    assert done["contextId"] == asked["contextId"]
    said = done["history"][-1]
    assert (said["contextId"], said["taskId"]) == (asked["contextId"], asked["id"])


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
    # Ids are the caller's own: another may use the same.
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
    """``break`` fails before there is a task, ``crash`` in one."""
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
    # What the caller is told leads to what the log has.
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
