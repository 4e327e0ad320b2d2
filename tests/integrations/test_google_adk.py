"""Features of Google ADK alone."""

from __future__ import annotations

import pytest

from parley import TaskArtifactUpdateEvent, TaskState
from parley.extensions.declared import schemas_on
from parley.extensions.questions import question
from parley.extensions.usage import RUN_PROGRESS, spent_on
from tests.integrations.test_adapters import agent_of, completed, counted, progress_in, why

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("served", ["google_adk"], indirect=True)]


def asks(task, text: str) -> None:
    assert task.state is TaskState.INPUT_REQUIRED, (task.state, task.text)
    assert text in task.text


async def test_the_card_is_the_agents_own(served):
    async with agent_of(served) as remote:
        card = remote.card
    assert (card.name, card.description) == ("travel helper", "Helps with travel")
    assert set(card.skills[0].tags) >= {"google-adk", "add", "book", "apply"}
    async with agent_of(served, "structured") as remote:
        (schema,) = schemas_on(remote.card).values()
    assert set(schema.output["properties"]) == {"city", "celsius"}


async def test_replies_through_litellm_end_as_others(served):
    served.script.broken = 0
    with counted(served) as used:
        async with agent_of(served, "litellm") as remote:
            refused = await remote.send("refuse this")
            short = completed(await remote.send("shorten this"))
            filtered = await remote.send("filter this")
            whole = completed(await remote.send("break off once"))
            failed = await remote.send("fail with 401")
    assert (refused.state, filtered.state) == (TaskState.REJECTED, TaskState.REJECTED)
    assert "I do not help with that." in why(refused)
    assert (short.artifacts[0].metadata or {})[RUN_PROGRESS]["finishReason"] == "length"
    assert (whole.text, served.script.broken) == ("one two three four.", 2)
    assert why(failed) == "The language model does not accept this agent's credentials."
    tasks = (refused, short, filtered, whole)
    assert sum(spent_on(task).tokens for task in tasks) == used[0]


async def test_an_answer_that_is_neither_yes_nor_no_is_asked_again(served):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        task = await remote.send("is it nice there?", task_id=task.id)
        asks(task, "neither yes nor no")
        completed(await remote.send("yes", task_id=task.id))
    assert served.notes("book") == ["Oslo"]


async def test_the_result_of_a_long_running_tool_is_asked_of_the_caller(served):
    async with agent_of(served) as remote:
        task = await remote.send('call apply {"days": 3}')
        asks(task, '"status": "pending"')
        task = completed(await remote.send({"status": "granted"}, task_id=task.id))
    assert task.text == 'Result: {"status": "granted"}'


async def test_a_confirmation_takes_the_payload_that_the_tool_wants(served):
    async with agent_of(served) as remote:
        task = await remote.send('call pay {"amount": 9}')
        asks(task, "How much may be paid?")
        asks(await remote.send("well", task_id=task.id), '{"amount":9}')
        asks(await remote.send({"approve": "never"}, task_id=task.id), "neither yes nor no")
        task = completed(await remote.send({"amount": 5}, task_id=task.id))
    assert task.text == 'Result: {"paid": 5}'


async def test_files_that_a_tool_saves_are_artifacts(served):
    async with agent_of(served) as remote:
        first = completed(await remote.send("call draw {}"))
        again = completed(await remote.send("call draw {}", context_id=first.context_id))
    (picture,) = [each for each in first.artifacts if each.name == "picture.png"]
    assert (picture.parts[0].raw, picture.parts[0].media_type) == (b"pixels", "image/png")
    assert (first.text.strip(), again.text.strip()) == ("Result: drawn 0", "Result: drawn 1")


async def test_agents_in_a_row_are_steps_and_the_last_one_answers(served):
    async with agent_of(served, "sequence") as remote, remote.stream("hello") as events:
        shown = progress_in([event async for event in events])
        task = completed(await remote.get(events.task_id))
    steps = [each["name"] for each in shown if each["kind"] == "step"]
    assert [each for each in steps if each != "sequence"] == ["first", "second"]
    assert [artifact.name for artifact in task.artifacts] == ["answer"]


async def test_agents_side_by_side_write_artifacts_of_their_own(served):
    async with agent_of(served, "parallel") as remote, remote.stream("hello") as events:
        seen = [event async for event in events]
        task = completed(await remote.get(events.task_id))
    assert {artifact.name for artifact in task.artifacts} == {"left", "right"}
    texts = ["".join(part.text for part in each.parts) for each in task.artifacts]
    assert texts == ["You said: hello"] * 2
    assert sum(isinstance(event, TaskArtifactUpdateEvent) for event in seen) > 4


async def test_a_loop_answers_with_its_last_round(served):
    async with agent_of(served, "loop") as remote:
        task = completed(await remote.send("hello"))
    assert task.text.startswith("You said: Continue")


async def test_a_workflow_asks_with_a_schema_and_returns_data(served):
    async with agent_of(served, "workflow") as remote:
        task = await remote.send("plan")
        asks(task, "Which city?")
        assert question(task).schema["properties"] == {"city": {"type": "string"}}
        asks(await remote.send("Oslo", task_id=task.id), "does not fit")
        task = completed(await remote.send({"city": "Oslo"}, task_id=task.id))
    (result,) = [artifact for artifact in task.artifacts if artifact.name == "result"]
    assert result.parts[0].data == {"to": "Oslo"}


async def test_an_agent_without_a_model_answers(served):
    async with agent_of(served, "custom") as remote:
        task = completed(await remote.send("hi"))
    assert task.text == "Hello from a custom agent."


async def test_a_remote_agent_is_a_sub_agent_and_asks_the_caller(served):
    to_remote = 'call transfer_to_agent {"agent_name": "remote"}'
    async with agent_of(served, "parent") as remote:
        task = completed(await remote.send(to_remote))
        assert "consulted on call transfer_to_agent" in task.text
        task = await remote.send(f'{to_remote[:-1]}, "weather": 1}}')
        asks(task, "Which city?")
        task = completed(await remote.send("Oslo", task_id=task.id))
    assert task.text == "sunny in Oslo"


async def test_a_session_service_of_adk_keeps_the_conversation(served):
    async with agent_of(served, "kept") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        same = completed(await remote.send("who am I?", context_id=first.context_id))
    assert same.text == "You are Ada."


async def test_a_question_outlives_a_crash(served):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        waiting = await remote.send('call apply {"days": 1}')
    served.kill()
    served.start()
    async with agent_of(served) as remote:
        completed(await remote.send("yes", task_id=task.id))
        completed(await remote.send("granted", task_id=waiting.id))
    assert served.notes("book") == ["Oslo"]


async def test_the_program_that_moves_here_serves_its_agent(served):
    async with agent_of(served, "moved") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        task = completed(await remote.send("who am I?", context_id=first.context_id))
    assert task.text == "You are Ada."


async def test_the_page_serves_an_agent(served):
    async with agent_of(served, "page") as remote:
        task = completed(await remote.send("add 2 and 3"))
    assert task.text == "The sum is 5."


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("with_tools", "agent, what about the weather"),
        ("with_sub_agent", 'call transfer_to_agent {"agent_name": "remote", "weather": 1}'),
    ],
    ids=["tools", "sub_agent"],
)
async def test_the_page_calls_agents_outside_of_parley(served, kind, said):
    async with agent_of(served, "outside") as remote:
        answer = await remote.send({"kind": kind, "said": said, "answer": "Oslo"})
    assert "Which city?" in answer.text
    assert "sunny in Oslo" in answer.text


async def test_a_question_comes_alone_and_with_its_schema(served):
    async with agent_of(served, "caller") as remote:
        task = await remote.send("agent, show me a country")
        asked = question(task)
        assert (asked.text, set(asked.schema["properties"])) == ("Which country?", {"name"})
        task = completed(await remote.send({"name": "Norway"}, task_id=task.id))
    assert "a map of Norway" in task.text


async def test_two_calls_that_need_approval_are_asked_one_after_the_other(served):
    async with agent_of(served) as remote:
        task = await remote.send("twice book a room")
        asks(task, "Oslo")
        asks(await remote.send("no", task_id=task.id), "Bergen")
        completed(await remote.send("yes", task_id=task.id))
    assert served.notes("book") == ["Bergen"]


async def test_a_pipeline_of_a_tutorial_keeps_its_state_and_leaves_its_loop(served):
    async with agent_of(served, "pipeline") as remote, remote.stream("hello") as events:
        shown = progress_in([event async for event in events])
        completed(await remote.get(events.task_id))
    state = [each["detail"] for each in shown if each.get("name") == "state"]
    assert {"draft": "You said: hello"} in state
    assert {name for each in state for name in each} == {"draft"}  # not the data of callbacks
    calls = [each["name"] for each in shown if each["kind"] == "toolCall"]
    assert calls == ["exit_loop"]
    asked = [str(request.messages[0]["content"]) for request in served.model.requests]
    assert any("Improve: You said: hello" in each for each in asked)


async def test_a_session_forgets_its_oldest_messages(served):
    async with agent_of(served, "short") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        for said in ("hello again", "who am I?"):
            asked = len(served.model.requests)
            completed(await remote.send(said, context_id=first.context_id))
    known = str(served.model.requests[asked].messages)
    assert "who am I?" in known
    assert "Ada" not in known


async def test_a_session_keeps_a_bounded_number_of_bytes(served):
    async with agent_of(served, "small") as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        same = {"context_id": first.context_id}
        assert completed(await remote.send("who am I?", **same)).text == "You are Ada."
        for letter in "ab":
            completed(await remote.send(letter * 6_000, **same))
        assert completed(await remote.send("who am I?", **same)).text == "I do not know you."


async def test_a_call_that_waits_is_none_of_other_tasks_and_goes_when_it_is_canceled(served):
    async with agent_of(served) as remote:
        waiting = await remote.send("book a room")
        same = {"context_id": waiting.context_id}
        for cancels in (True, False):
            completed(await remote.send("Hello, my name is Ada", **same))
            assert "book" not in str(served.model.requests[-1].messages)
            if cancels:
                await remote.cancel(waiting.id)
        assert completed(await remote.send("who am I?", **same)).text == "You are Ada."


async def test_a_login_is_asked_for_without_the_secret_of_the_client(served):
    async with agent_of(served) as remote:
        task = await remote.send("call read_files {}")
    assert task.state is TaskState.AUTH_REQUIRED
    assert "https://login.test/authorize" in task.status.message.text
    assert "the-client-secret" not in str(task)


@pytest.mark.parametrize("name", ["app", "runner"])
async def test_apps_and_runners_are_served(served, name):
    async with agent_of(served, name) as remote:
        first = completed(await remote.send("Hello, my name is Ada"))
        same = completed(await remote.send("who am I?", context_id=first.context_id))
    assert same.text == "You are Ada."


async def test_a_call_outside_of_parley_belongs_to_the_trace_of_its_program(served):
    said = {"kind": "with_tools", "said": "agent, say the trace", "answer": ""}
    async with agent_of(served, "outside") as remote:
        answer = await remote.send(said)
    trace_id = answer.text.split("\n")[-1]
    assert f"the trace is {trace_id}" in answer.text


async def test_a_crash_between_two_writes_keeps_an_event_and_what_it_changed_together(served):
    whole = {"events": 1, "state": {"seats": 2, "window": None}}
    async with agent_of(served, "torn") as remote:
        found = [await remote.send({"writes": writes}) for writes in range(5)]
    kept = [each.artifacts[0].parts[0].data for each in found]
    assert whole in kept
    assert [each for each in kept if each not in ({}, whole)] == []
