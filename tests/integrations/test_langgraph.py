"""Features of LangGraph alone."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from uuid import UUID, uuid5

import pytest

import parley
from parley import Part, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent
from parley.client.auth import ApiKey
from parley.extensions.declared import schemas_on
from parley.extensions.questions import question
from parley.extensions.usage import spent_on
from tests.integrations import test_adapters
from tests.integrations.conftest import FrameworkServer
from tests.integrations.test_adapters import agent_of, completed, counted, progress_in, why
from tests.kit.services.postgres import missing

KEPT_TASKS = 20
"""The number of tasks whose newest checkpoint a thread keeps."""

SAVERS = [
    "shared-state",
    "saved-state",
    "saved-sqlite",
    "saved-async-sqlite",
    pytest.param("saved-postgres", marks=pytest.mark.service),
    pytest.param("saved-async-postgres", marks=pytest.mark.service),
]
"""Agents with a memory: the adapter's own checkpoints, then the savers of LangGraph."""

pytestmark = [pytest.mark.anyio, pytest.mark.parametrize("served", ["langgraph"], indirect=True)]


@pytest.fixture(params=SAVERS)
def saver(request: pytest.FixtureRequest) -> str:
    """The name of an agent with a saver; without PostgreSQL its agents are skipped."""
    if "postgres" in request.param:
        request.getfixturevalue("postgres")
    return request.param


@pytest.mark.parametrize("saver", SAVERS[1:], indirect=True)
@pytest.mark.parametrize(
    "asked",
    [
        partial(test_adapters.test_what_needs_approval_asks_the_caller_and_goes_on, answer="no"),
        test_adapters.test_a_context_is_the_frameworks_thread,
        test_adapters.test_tasks_at_once_in_one_context_lose_nothing_that_another_said,
        test_adapters.test_cancel_stops_the_run,
        test_adapters.test_usage_is_counted_once_over_a_question,
        test_adapters.test_a_reply_that_broke_off_is_asked_for_again,
    ],
    ids=["approval", "memory", "two at once", "cancel", "usage", "cut"],
)
async def test_the_contract_holds_with_every_saver(served, saver: str, asked, monkeypatch):
    name = saver.replace("saved", "agent")
    monkeypatch.setattr(test_adapters, "agent_of", lambda served: agent_of(served, name))
    await asked(served)


def statuses_in(events) -> list[str]:
    updates = [event for event in events if isinstance(event, TaskStatusUpdateEvent)]
    return [each.status.message.text for each in updates if each.status.message is not None]


@pytest.mark.parametrize("name", ["structured", "provided"])
async def test_structured_output_is_no_text_of_the_answer(served: FrameworkServer, name: str):
    with counted(served) as used:
        async with agent_of(served, name) as remote, remote.stream("weather in Oslo") as events:
            seen = [event async for event in events]
            task = completed(await remote.get(events.task_id))
    shown = [event.artifact for event in seen if isinstance(event, TaskArtifactUpdateEvent)]
    assert {each.name for each in shown} == {"result"}
    assert seen_in(task) == {"city": "Oslo", "celsius": 21.5}
    assert spent_on(task).tokens == used[0]


@pytest.mark.parametrize(
    ("said", "state", "told"),
    [
        ("refuse this", TaskState.REJECTED, "I do not help with that."),
        ("filter this", TaskState.REJECTED, "content filter"),
        ("shorten this", TaskState.FAILED, "maximum length"),
    ],
)
async def test_structured_output_that_ends_without_its_end_says_why(served, said, state, told):
    async with agent_of(served, "provided") as remote:
        task = await remote.send(said)
    assert (task.state, told in why(task)) == (state, True), why(task)


async def test_structured_output_that_broke_off_is_asked_for_again(served: FrameworkServer):
    served.script.broken = 0
    async with agent_of(served, "provided") as remote:
        task = await remote.send("break off once")
    assert served.script.broken == 2, why(task)


@pytest.mark.parametrize("name", ["heard", "heard-by-manager"])
async def test_requests_in_threads_are_counted_beside_the_users_callbacks(served, name: str):
    with counted(served) as used:
        async with agent_of(served, name) as remote:
            task = completed(await remote.send("add 2 and 3"))
    assert spent_on(task).tokens == used[0]
    assert served.notes("begin") == ["heard", "heard"]


async def test_a_reply_that_broke_off_is_in_no_checkpoint(served: FrameworkServer):
    served.script.broken = 0
    async with agent_of(served, "heard") as remote:
        completed(await remote.send("break off once"))
    (asked,) = served.model.requests[-1].messages
    assert asked["role"] == "user"


async def test_a_model_that_names_no_finish_reason_has_not_broken_off(served: FrameworkServer):
    async with agent_of(served, "mumbling") as remote:
        assert completed(await remote.send("hello")).text == "I am no model."


async def test_a_graph_that_may_return_nothing_says_so(served: FrameworkServer):
    async with agent_of(served, "silent") as remote:
        task = completed(await remote.send("hello"))
    assert task.text == "The graph ended without a result."


async def test_a_node_that_is_an_agent_is_no_request_to_a_model(served: FrameworkServer):
    async with agent_of(served, "pipeline") as remote:
        assert spent_on(completed(await remote.send("birds"))).tokens == 0


async def test_the_card_is_made_of_the_graph(served: FrameworkServer):
    async with agent_of(served) as remote:
        assert remote.card.name == "Assistant"
        assert "add (Add two numbers.)" in remote.card.description
    async with agent_of(served, "trip") as remote:
        schema = schemas_on(remote.card)["run"]
    assert schema.input is not None
    assert schema.output is not None
    assert list(schema.input["properties"]) == ["where"]
    assert schema.input["required"] == ["where"]
    assert list(schema.output["properties"]) == ["facts"]


async def test_nodes_that_ask_at_once_are_asked_one_after_the_other(served: FrameworkServer):
    """One question has a schema, and one node asks the same question twice."""
    async with agent_of(served, "trip") as remote:
        task = await remote.send({"where": "Oslo"})
        asked = []
        answers = {"How many are you?": ["several", "3"], "Who comes along?": ["Ada", "Bob"]}
        while task.state is TaskState.INPUT_REQUIRED:
            text = next(each for each in answers if each in task.text)
            asked.append(task.text)
            if text.startswith("How"):
                assert question(task).schema == {"type": "integer"}
            task = await remote.send(answers[text].pop(0), task_id=task.id)
    assert len(asked) == 4
    assert sum("The answer must be of the type integer." in each for each in asked) == 1
    (result,) = completed(task).artifacts
    assert sorted(result.parts[0].data["facts"]) == ["3 people", "Ada and Bob", "to Oslo"]


async def test_input_that_does_not_fit_the_graphs_schema_is_asked_for(served: FrameworkServer):
    async with agent_of(served, "trip") as remote:
        task = await remote.send({"whither": "Oslo"})
        assert task.state is TaskState.INPUT_REQUIRED
        assert "'whither', which is unknown; it accepts 'where'" in task.text
        task = await remote.send({"where": 7}, task_id=task.id)
        assert "where: Input should be a valid string" in task.text
        task = await remote.send("Bergen", task_id=task.id)
    assert "How many are you?" in task.text or "Who comes along?" in task.text


@pytest.mark.parametrize(
    ("name", "text", "state"),
    [
        ("amount", "7", "{'amount': 7}"),
        ("painted", "red", "{'colour': <Colour.RED: 'red'>}"),
        ("painted", "{}", "{}"),
    ],
)
async def test_text_fills_the_only_field_that_takes_it(served, name: str, text: str, state: str):
    async with agent_of(served, name) as remote:
        task = completed(await remote.send(text))
    assert seen_in(task) == {"given": state}


async def test_an_input_that_text_cannot_fill_is_asked_for_a_few_times(served: FrameworkServer):
    async with agent_of(served, "painted") as remote:
        task = await remote.send("blue")
        for _ in range(3):
            assert task.text == (
                "Send data (JSON) with 'colour', 'done'. {} begins with none of them."
            )
            assert set(question(task).schema["properties"]) == {"colour", "done"}
            task = await remote.send("green", task_id=task.id)
    assert task.state is TaskState.REJECTED
    assert "'colour', 'done'" in why(task)


async def test_text_to_a_node_that_wants_data_is_asked_for_once_more(served, saver: str):
    async with agent_of(served, saver) as remote:
        asked = await remote.send("want it")
        again = await remote.send("yes", task_id=asked.id)
        assert again.state is TaskState.INPUT_REQUIRED, why(again)
        assert "it needs data (JSON)" in again.text
        assert "What is it?" in again.text
        done = completed(await remote.send({"fact": "A"}, task_id=asked.id))
        assert seen_in(done) == {"facts": ["A"], "count": 1, "newest": "A"}
        assert served.notes("begin") == ["want it"] * 3
        asked = await remote.send("want it", context_id=asked.context_id)
        for _ in range(2):
            last = await remote.send("yes", task_id=asked.id)
    assert last.state is TaskState.FAILED, last.text


async def test_the_answers_before_are_kept_when_a_node_fails_with_the_next(served: FrameworkServer):
    """In a subgraph, and when the model's reply breaks off in between."""
    served.script.broken = 0
    async with agent_of(served, "twice") as remote:
        task = await remote.send("hello")
        for said, asked in [({"said": "A"}, "Second?"), ("B", "needs data"), ('{"said": "B"}', "")]:
            task = await remote.send(said, task_id=task.id)
            assert asked in why(task), (task.state, task.text)
    assert completed(task).text == "A and B"


async def test_a_subgraph_asks_and_earlier_nodes_do_not_run_again(served: FrameworkServer):
    async with agent_of(served, "nested") as remote:
        async with remote.stream("hello") as events:
            seen = [event async for event in events]
        task = await remote.get(events.task_id)
        assert task.status.message.text == "Is this right?"
        assert [each["name"] for each in progress_in(seen) if each["kind"] == "step"] == [
            "draft",
            "custom",
            "reviewed",
            "review",
        ]
        assert "drafting" in statuses_in(seen)
        task = completed(await remote.send({"resume": "it is"}, task_id=task.id))
    drafts = [artifact for artifact in task.artifacts if artifact.name == "draft.txt"]
    assert drafts[0].parts[0].raw == b"draft 1"
    sketches = [artifact for artifact in task.artifacts if artifact.parts[0].raw == b"\x89PNG"]
    assert [sketch.parts[0].media_type for sketch in sketches] == ["image/png"]
    assert "You said it is." in task.text
    assert served.notes("book") == ["draft"]


async def test_a_workflow_of_the_functional_api_asks_and_goes_on(served: FrameworkServer):
    async with agent_of(served, "workflow") as remote:
        task = await remote.send({"item": "lamp"})
        assert task.text == "It is 4. Agreed?"
        task = await remote.send("perhaps", task_id=task.id)
        assert "The answer must be of the type boolean." in task.text
        task = completed(await remote.send("no", task_id=task.id))
    (result,) = task.artifacts
    assert result.parts[0].data == {"item": "lamp", "sold": False}
    assert served.notes("add") == ["priced lamp"]


@pytest.mark.parametrize("answer", ["yes", "no"])
async def test_a_breakpoint_asks_whether_to_go_on(served: FrameworkServer, answer: str):
    """The graph of textbooks, compiled with ``interrupt_before`` and its own saver."""
    async with agent_of(served, "textbook") as remote:
        task = await remote.send("book a room")
        assert "book({'city': 'Oslo'})\nShall I continue with tools?" in task.text
        task = await remote.send("perhaps", task_id=task.id)
        assert "neither yes nor no" in task.text
        task = completed(await remote.send(answer, task_id=task.id))
    assert served.notes("book") == (["Oslo"] if answer == "yes" else [])
    assert ("did not allow" in task.text) is (answer == "no")


async def test_tasks_of_one_context_go_on_each_from_its_own_checkpoint(served: FrameworkServer):
    async with agent_of(served, "nested") as remote:
        first = await remote.send("one")
        second = await remote.send("two", context_id=first.context_id)
        assert second.state is TaskState.INPUT_REQUIRED
        done = completed(await remote.send("first", task_id=first.id))
        assert "You said first." in done.text
        done = completed(await remote.send("second", task_id=second.id))
    assert "You said second." in done.text
    assert served.notes("book") == ["draft", "draft"]


async def test_tasks_at_once_in_one_thread_keep_what_each_changed(served, saver: str):
    async with agent_of(served, saver) as remote:
        first = await remote.send("one")
        context = {"context_id": first.context_id}
        begun = completed(await remote.send("add zero", **context))
        assert seen_in(begun) == {"facts": ["zero"], "count": 1, "newest": "zero"}
        second = await remote.send("two", **context)
        done = completed(await remote.send("A", task_id=first.id))
        assert seen_in(done) == {"facts": ["A"], "count": 1, "newest": "A"}
        completed(await remote.send("B", task_id=second.id))
        last = completed(await remote.send("add three", **context))
    facts = ["zero", "A", "B", "three"]
    assert seen_in(last) == {"facts": facts, "count": 4, "newest": "three"}
    messages = served.notes("begin")[-1].split("; ")
    assert messages == ["add zero", "said zero", "one", "said A", "two", "said B", "add three"]


async def test_a_task_that_waits_while_many_others_end_takes_nothing_from_them(served, saver: str):
    async with agent_of(served, saver) as remote:
        begun = completed(await remote.send("add zero"))
        context = {"context_id": begun.context_id}
        waiting = await remote.send("one", **context)
        numbers = [str(number) for number in range(KEPT_TASKS + 1)]
        for number in numbers:
            completed(await remote.send(f"add {number}", **context))
        completed(await remote.send("A", task_id=waiting.id))
        last = completed(await remote.send("add last", **context))
    facts = ["zero", *numbers, "A", "last"]
    assert seen_in(last) == {"facts": facts, "count": len(facts), "newest": "last"}


async def test_tasks_that_end_at_once_on_two_replicas_are_both_in_the_thread(served):
    async with agent_of(served, "replicas") as remote:
        begun = completed(await remote.send("add zero"))
        context = {"context_id": begun.context_id}
        waiting = [await remote.send(name, **context) for name in ("left", "right")]
        answers = zip("AB", waiting, strict=True)
        both = [remote.send(said, task_id=task.id) for said, task in answers]
        for task in await asyncio.gather(*both):
            completed(task)
        last = seen_in(completed(await remote.send("add last", **context)))
    assert sorted(last["facts"]) == ["A", "B", "last", "zero"]
    assert last["count"] == 4


async def test_a_crash_between_two_writes_loses_no_state_and_leaves_no_checkpoint(served):
    def checkpoints() -> set[str]:
        return {key for key, _ in served.kept() if key.count(":") > 2}

    before, cuts = checkpoints(), 0
    async with agent_of(served, "torn") as remote:
        while (task := await remote.send({"writes": cuts})).state is TaskState.INPUT_REQUIRED:
            await remote.cancel(task.id)
            assert checkpoints() == before, cuts
            if cuts % 3 == 0:
                task = await remote.send({"writes": cuts})
                task = completed(await remote.send("yes", task_id=task.id))
                assert seen_in(task) == {"done": ["one", "two"]}
                before = checkpoints()
            cuts += 1
    assert task.state is TaskState.COMPLETED, task.text
    assert cuts > 10


@pytest.mark.parametrize(
    "decisions",
    [["yes"], [{"type": "shrug"}], [{"type": "edit"}], [{"type": "reject", "message": 5}]],
)
async def test_decisions_that_are_none_are_asked_for_again(served: FrameworkServer, decisions):
    async with agent_of(served) as remote:
        task = await remote.send("book a room")
        task = await remote.send({"decisions": decisions}, task_id=task.id)
        assert task.state is TaskState.INPUT_REQUIRED, task.text
        assert " decision " in task.text
        task = completed(await remote.send({"decisions": [{"type": "approve"}]}, task_id=task.id))
    assert served.notes("book") == ["Oslo"]


async def test_a_task_has_nothing_of_others_that_wait_or_were_canceled(served: FrameworkServer):
    async with agent_of(served) as remote:
        waiting = await remote.send("book a room")
        for _ in range(2):
            context = {"context_id": waiting.context_id}
            completed(await remote.send("count to five", **context))
            messages = served.model.requests[-1].messages
            assert not any(each.get("tool_calls") for each in messages)
            await remote.cancel(waiting.id)


def seen_in(task) -> dict:
    """Return the last state of a task: its last data."""
    return [part.data for artifact in task.artifacts for part in artifact.parts][-1]


async def test_a_graph_that_a_node_calls_in_a_thread_asks_too(served: FrameworkServer):
    async with agent_of(served, "calling") as remote:
        task = await remote.send("hello")
        assert task.text == "Is this right?"
        task = completed(await remote.send("yes", task_id=task.id))
    assert task.text == "You said yes."


async def test_callers_do_not_reach_each_others_threads(served: FrameworkServer):
    """Both callers use the same context id, and the agents share a checkpointer."""
    said = {}
    async with agent_of(served, "open") as remote:
        completed(await remote.send("my name is Eve", context_id="shared"))
        said["eve"] = await remote.send("who am I?", context_id="shared")
    for name in ("ada", "bob"):
        url = f"{served.url}/keyed"
        async with parley.connect(url, auth=ApiKey(name)) as remote:
            said[name] = await remote.send("who am I?", context_id="shared")
            completed(await remote.send(f"my name is {name}", context_id="shared"))
    texts = {name: completed(task).text for name, task in said.items()}
    unknown = "I do not know you."
    assert texts == {"eve": "You are Eve.", "ada": unknown, "bob": unknown}


async def test_a_kill_loses_no_question_and_no_result_with_any_saver(served: FrameworkServer):
    """With the adapter's own checkpoints, and with each durable saver."""
    savers = ["sqlite", "async-sqlite"]
    savers += [] if missing() else ["postgres", "async-postgres"]
    learners = ["shared-state", *(f"saved-{name}" for name in savers)]
    asked, running = {}, {}
    served.script.close()
    with counted(served) as used:
        for name in learners:
            async with agent_of(served, name) as remote:
                begun = completed(await remote.send("add zero"))
                asked[name] = await remote.send("one", context_id=begun.context_id)
        for name in savers:
            async with agent_of(served, f"agent-{name}") as remote:
                running[name] = await remote.send(f"crash on {name}", return_immediately=True)
                served.await_result(f"crash on {name}")
        served.kill()
        served.script.open()
        served.start()
        for name in learners:
            async with agent_of(served, name) as remote:
                completed(await remote.send("A", task_id=asked[name].id))
                last = completed(await remote.send("add last", context_id=asked[name].context_id))
            assert seen_in(last) == {"facts": ["zero", "A", "last"], "count": 3, "newest": "last"}
        done = []
        for name in savers:
            async with agent_of(served, f"agent-{name}") as remote:
                done.append(completed(await remote.wait(running[name].id)))
    assert {task.text for task in done} == {"The sum is 42."}
    assert served.notes("add") == ["20+22"] * len(savers)
    assert sum(spent_on(task).tokens for task in done) == used[0]


async def test_a_crash_repeats_no_node_that_has_ended_and_interrupts_stay(served: FrameworkServer):
    """With the checkpoints of the context, and with the graph's own saver.

    A question of a remote agent, passed on by a tool, stays too.
    """
    async with agent_of(served, "saved") as remote:
        own = await remote.send("hello")
    async with agent_of(served, "nested") as remote:
        kept = await remote.send("hello")
    async with agent_of(served, "caller") as remote:
        asked = await remote.send("agent, what is the weather?")
    async with agent_of(served, "steps") as remote:
        task = await remote.send({"done": ["given"]}, return_immediately=True)
    served.await_note("wait", "second")
    served.kill()
    (served.files / "gate").touch()
    served.start()
    async with agent_of(served, "steps") as remote:
        task = completed(await remote.wait(task.id))
    (result,) = task.artifacts
    assert sorted(result.parts[0].data["done"]) == ["beside", "first", "given", "second", "third"]
    ran = [name for name in served.notes("add") if name != "review"]
    assert sorted(ran) == ["beside", "first", "second", "second", "third"]
    async with agent_of(served, "saved") as remote:
        assert completed(await remote.send("yes", task_id=own.id)).text == "You said yes."
    async with agent_of(served, "nested") as remote:
        completed(await remote.send("yes", task_id=kept.id))
    async with agent_of(served, "caller") as remote:
        assert "sunny in Oslo" in completed(await remote.send("Oslo", task_id=asked.id)).text
    assert served.notes("book") == ["draft"]


async def test_an_agent_is_a_node_and_asks_by_an_interrupt(served: FrameworkServer):
    async with agent_of(served, "pipeline") as remote:
        done = completed(await remote.send("birds"))
        assert done.text == "consulted on birds"
        task = await remote.send("the weather, please")
        assert task.text == "Which city?"
        task = completed(await remote.send("Oslo", task_id=task.id))
    assert task.text == "sunny in Oslo"


async def test_a_graph_has_its_runtime_context(served: FrameworkServer):
    """The defaults of its schema, and given values: with a checkpointer and without."""
    async with agent_of(served, "greeter") as remote:
        assert completed(await remote.send("hello")).text == "Welcome."
    async with agent_of(served, "unkept") as remote:
        assert completed(await remote.send("Hello")).text == "Hello."


async def test_without_a_checkpointer_the_turn_asks(served: FrameworkServer):
    async with agent_of(served, "unsaved") as remote:
        task = await remote.send("agent, what is the weather?")
        assert "Which city?" in task.text
        task = completed(await remote.send("Oslo", task_id=task.id))
    assert "sunny in Oslo" in task.text


async def test_outside_of_parley_questions_are_interrupts_too(served: FrameworkServer):
    async with agent_of(served, "plain") as remote:
        answer = await remote.send("go")
    told = json.loads(answer.text)
    assert told == ["Which city?", "The agent says: sunny in Oslo", "Which city?", "sunny in Oslo"]


async def test_graphs_of_a_langgraph_json_have_their_addresses(served: FrameworkServer):
    by_name = f"{served.url}/a2a/echo"
    by_id = f"{served.url}/a2a/{uuid5(UUID('6ba7b821-9dad-11d1-80b4-00c04fd430c8'), 'echo')}"
    by_query = f"{served.url}/.well-known/agent-card.json?assistant_id=echo"
    for address in (by_name, by_id, by_query):
        async with parley.connect(address) as remote:
            assert remote.card.name == "echo"
            assert completed(await remote.send("hello")).text == "HELLO"


async def test_the_page_does_what_it_says(served: FrameworkServer):
    async with agent_of(served, "page") as remote:
        task = await remote.send("two nights")
        assert task.text == "Book two nights?"
        task = completed(await remote.send("yes", task_id=task.id))
    assert task.text == "Booked: two nights."


async def test_the_files_of_a_message_reach_the_graph(served: FrameworkServer):
    image = Part(raw=b"\x89PNG", media_type="image/png", filename="dot.png")
    text = Part(raw=b"alpha", media_type="text/plain", filename="a.txt")
    async with agent_of(served) as remote:
        task = completed(await remote.send(["look at these", image, text]))
    assert task.text == "I see 1: image_url"


async def test_the_currency_agent_asks_for_what_is_missing(served: FrameworkServer):
    """The example, with the script that replies where no model is configured."""
    async with agent_of(served, "currency") as remote:
        async with remote.stream("How much are 100 euros?") as events:
            seen = [event async for event in events]
        task = await remote.get(events.task_id)
        assert task.text == "Which currency do you want?"
        async with remote.stream("dollars", task_id=task.id) as events:
            seen = [event async for event in events]
        task = completed(await remote.get(task.id))
        assert "Looking up EUR and USD" in statuses_in(seen)
        assert "100 EUR are 108.89 USD at the rate of 2025-03-14." in task.text
        (result,) = [each for each in task.artifacts if each.name == "result"]
        wanted = {"amount": 108.89, "currency": "USD", "rate": 1.0889, "day": "2025-03-14"}
        assert result.parts[0].data == wanted
        assert set((result.metadata or {})["schema"]["properties"]) == set(wanted)
        at_once = completed(await remote.send("10 GBP in JPY, please"))
    assert "1922.95 JPY" in at_once.text
