"""Contexts and tasks: which tasks share a context, which references count (specification §3.4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from parley import Agent, CallContext, Caller, Message, Part, Role, Task, TaskState, Turn
from parley.model.errors import TaskNotFoundError

pytestmark = pytest.mark.anyio

OTHER = CallContext(caller=Caller(id="somebody else", authenticated=True))


def travel(gates: dict[str, asyncio.Event] | None = None) -> Agent:
    """Return an agent that books; a message waits for the earlier tasks that it depends on."""
    agent = Agent("Travel")

    @agent.skill(replies="task", default=True)
    async def book(turn: Turn) -> str:
        gate = (gates or {}).get(turn.text)
        if gate is not None:
            await turn.working("waiting")
            await gate.wait()
        await turn.artifact(f"{turn.text} booked", name=turn.text)
        return "booked"

    @agent.skill(replies="task")
    async def depend(turn: Turn) -> str:
        before = [await turn.wait_for(task) for task in await turn.references()]
        return " + ".join(task.artifacts[0].name for task in before)

    @agent.skill(replies="task")
    async def change(turn: Turn) -> str:
        task = await turn.reference("Which booking?", describe=lambda t: t.artifacts[0].name)
        return f"changed {task.artifacts[0].name}" if task else "nothing to change"

    @agent.skill(replies="task")
    def change_in_thread(turn: Any) -> str:
        task = turn.reference(where=lambda task: "hotel" in task.artifacts[0].name)
        return f"changed {turn.wait_for(task, timeout=5).artifacts[0].name}"

    @agent.skill(replies="task")
    async def show(turn: Turn) -> str:
        found = await turn.referenced_artifacts()
        return ", ".join(artifact.text for artifact in found) or "nothing"

    return agent


def skill(name: str) -> dict[str, str]:
    return {"skill": name}


def said(task: Task) -> str:
    assert task.status.message is not None
    return task.status.message.text


async def test_a_refinement_is_a_new_task_in_the_same_context(talk: Any) -> None:
    async with talk(travel()) as caller:
        first = await caller.task("flight")
        second = await caller.task(
            "Earlier",
            context_id=first.context_id,
            reference_task_ids=(first.id,),
            metadata=skill("change"),
        )
        assert second.id != first.id
        assert second.context_id == first.context_id
        assert second.artifacts[0].text == "changed flight"


async def test_a_task_can_wait_for_the_result_of_another(talk: Any) -> None:
    gates = {"flight": asyncio.Event()}
    async with talk(travel(gates)) as caller, asyncio.timeout(5):
        flight = await caller.task("flight", return_immediately=True)
        sending = asyncio.create_task(
            caller.task(
                "then a hotel",
                context_id=flight.context_id,
                reference_task_ids=(flight.id,),
                metadata=skill("depend"),
            )
        )
        await asyncio.sleep(0)
        gates["flight"].set()
        assert (await sending).artifacts[0].text == "flight"


@pytest.mark.slow
async def test_a_wait_may_be_bounded_and_is_for_other_tasks_of_the_caller(talk: Any) -> None:
    agent = travel({"flight": asyncio.Event()})
    failures: list[str] = []

    @agent.skill(replies="task")
    async def wait(turn: Turn) -> None:
        flight = turn.latest.reference_task_ids[0]
        for what in (flight, "made-up", turn.task_id):
            try:
                # A turn can wait only for a known task that is still running.
                await turn.wait_for(what, timeout=0.5 if what == flight else 60)
            except (TimeoutError, TaskNotFoundError, ValueError) as error:
                failures.append(type(error).__name__)

    async with talk(agent) as caller:
        flight = await caller.task("flight", return_immediately=True)
        for context in (caller.context, OTHER):
            await caller.task(
                "wait", reference_task_ids=(flight.id,), metadata=skill("wait"), context=context
            )
    unknown, itself = "TaskNotFoundError", "ValueError"
    assert failures == ["TimeoutError", unknown, itself, unknown, unknown, itself]


async def test_references_to_nothing_and_to_others_tasks_are_left_out(talk: Any) -> None:
    async with talk(travel()) as caller:
        mine = await caller.task("flight")
        foreign = await caller.task("cruise", context=OTHER)
        task = await caller.task(
            "sum up",
            reference_task_ids=("made-up", foreign.id, mine.id, mine.id),
            metadata=skill("depend"),
        )
        assert task.artifacts[0].text == "flight"


async def test_the_only_task_of_the_context_is_the_one_that_is_meant(talk: Any) -> None:
    async with talk(travel()) as caller:
        nothing = await caller.task("Cheaper", context_id="c", metadata=skill("change"))
        assert nothing.artifacts[0].text == "nothing to change"
        await caller.task("flight", context_id="c2")
        task = await caller.task("Cheaper", context_id="c2", metadata=skill("change"))
        assert task.artifacts[0].text == "changed flight"


@pytest.mark.parametrize(
    ("answer", "meant"),
    [("2", "flight"), ("#1.", "hotel"), ("the FLIGHT please", "flight"), ("{flight}", "flight")],
)
async def test_when_several_could_be_meant_the_caller_is_asked(
    talk: Any, answer: str, meant: str
) -> None:
    async with talk(travel()) as caller:
        flight = await caller.task("flight", context_id="c")
        hotel = await caller.task("hotel", context_id="c")
        task = await caller.task("Cheaper", context_id="c", metadata=skill("change"))
        assert task.state is TaskState.INPUT_REQUIRED
        assert said(task) == "Which booking?\n1. hotel\n2. flight"
        assert task.status.message.reference_task_ids == (hotel.id, flight.id)
        await caller.task("sauna", context_id="c")  # started later, so it is not meant
        task = await caller.task("neither", task_id=task.id)
        assert said(task) == "Which booking?\n1. hotel\n2. flight"
        done = await caller.task(answer.format(flight=flight.id), task_id=task.id)
        assert done.artifacts[0].text == f"changed {meant}"


async def test_a_reference_answers_which_task_is_meant(talk: Any) -> None:
    async with talk(travel()) as caller:
        flight = await caller.task("flight", context_id="c")
        await caller.task("hotel", context_id="c")
        task = await caller.task("Cheaper", context_id="c", metadata=skill("change"))
        done = await caller.task("this", task_id=task.id, reference_task_ids=(flight.id,))
        assert done.artifacts[0].text == "changed flight"


async def test_functions_in_threads_can_do_the_same(talk: Any) -> None:
    async with talk(travel()) as caller:
        await caller.task("flight", context_id="c")
        await caller.task("hotel", context_id="c")
        done = await caller.task("Cheaper", context_id="c", metadata=skill("change_in_thread"))
        assert done.artifacts[0].text == "changed hotel"


async def test_parts_refer_to_artifacts(talk: Any) -> None:
    async with talk(travel()) as caller:
        flight = await caller.task("flight", context_id="c")
        hotel = await caller.task("hotel", context_id="c")
        foreign = await caller.task("cruise", context=OTHER)

        def refer_to(artifact_id: str, task_id: str = "") -> dict[str, str]:
            return {**({"taskId": task_id} if task_id else {}), "artifactId": artifact_id}

        def pointing(*named: tuple[str, str], references: tuple[str, ...] = ()) -> Message:
            return Message(
                message_id="m",
                role=Role.USER,
                parts=tuple(Part(text="this", metadata=refer_to(*each)) for each in named),
                context_id="c",
                metadata=skill("show"),
                reference_task_ids=references,
            )

        a, b, c = (task.artifacts[0].artifact_id for task in (flight, hotel, foreign))
        shown = await caller.task(pointing((a, flight.id), (b, hotel.id)))
        assert shown.artifacts[0].text == "flight booked, hotel booked"
        # Without a task id, an artifact is searched in the context: first in the referenced tasks.
        assert (await caller.task(pointing((b,)))).artifacts[0].text == "hotel booked"
        shown = await caller.task(pointing((a,), references=(flight.id,)))
        assert shown.artifacts[0].text == "flight booked"
        shown = await caller.task(pointing((c, foreign.id), ("made-up", flight.id), ("made-up",)))
        assert shown.artifacts[0].text == "nothing"
