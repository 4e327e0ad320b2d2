"""What the demo shows: each scene calls one agent through the public client."""

from __future__ import annotations

from parley.cli.demo.view import Stage
from parley.cli.output.failures import CommandFailure
from parley.client import connect
from parley.model.parts import Message
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent


async def card(stage: Stage, address: str) -> None:
    """Show who the time agent is, from its card."""
    stage.scene("An agent card", "Who is there, what it can do, and where to reach it.")
    async with connect(f"{address}/time") as agent:
        stage.card(agent.card, f"{address}/time/.well-known/agent-card.json")


async def direct_reply(stage: Stage, address: str) -> None:
    """Ask the time agent something that it answers at once."""
    stage.scene("A direct reply", "A quick answer is a message: no task, nothing to wait for.")
    async with connect(f"{address}/time") as agent:
        for question in ("What time is it in Tokyo?", "北京现在几点?"):
            stage.asked(question)
            reply = await agent.send(question)
            if not isinstance(reply, Message):
                raise _unexpected("a message", reply)
            stage.replied(reply.text)


async def any_client(stage: Stage, address: str) -> None:
    """Ask the same over every interface of the card."""
    stage.scene("Any client", "Two generations of the protocol, at one address and with no flag.")
    async with connect(f"{address}/time") as agent:
        offered = agent.card.supported_interfaces
    for interface in offered:
        binding, version = interface.protocol_binding, interface.protocol_version
        async with connect(f"{address}/time", binding=binding, version=version) as agent:
            stage.asked(f"What time is it in Lima?   ({binding}, {version})")
            stage.replied((await agent.send("What time is it in Lima?")).text)


async def streamed_task(stage: Stage, address: str) -> None:
    """Have a report written, and show it while it is."""
    stage.scene("A task that streams", "Longer work is a task; its artifact grows as you watch.")
    async with connect(f"{address}/report") as agent:
        question = "Write a report about tides"
        stage.asked(question)
        stream = agent.stream(question)
        with stage.growing() as paper:
            async with stream:
                async for event in stream:
                    if isinstance(event, TaskArtifactUpdateEvent):
                        paper.add(event.artifact.name, event.artifact.text)
                    elif isinstance(event, TaskStatusUpdateEvent):
                        said = event.status.message.text if event.status.message else ""
                        paper.status(event.status.state, said)
                    elif isinstance(event, Task):
                        paper.status(event.state, "")
        task = await agent.get(stream.task_id)
        if task.state is not TaskState.COMPLETED:
            raise _unexpected("a completed task", task)


async def question(stage: Stage, address: str) -> None:
    """Book a flight, and answer the question that comes back."""
    stage.scene("A task that asks", "It stops for an answer, for as long as that takes.")
    async with connect(f"{address}/flights") as agent:
        request = "Book a flight from Berlin to Lisbon"
        stage.asked(request)
        task = await agent.send(request)
        if not isinstance(task, Task) or task.state is not TaskState.INPUT_REQUIRED:
            raise _unexpected("a question", task)
        stage.task(task)
        answer = "2027-03-14"
        stage.asked(answer)
        done = await agent.send(answer, task_id=task.id)
        if not isinstance(done, Task) or done.state is not TaskState.COMPLETED:
            raise _unexpected("a completed task", done)
        stage.task(done)


async def picture(stage: Stage, address: str) -> None:
    """Have a boat drawn, and the same one in red."""
    stage.scene("A file, and a second thought", '"Make it red" is a new task in the same context.')
    async with connect(f"{address}/boats") as agent:
        stage.asked("Draw a sailboat")
        first = await agent.send("Draw a sailboat")
        if not isinstance(first, Task):
            raise _unexpected("a task", first)
        stage.task(first)
        stage.asked("Make it red")
        second = await agent.send("Make it red", context_id=first.context_id)
        if not isinstance(second, Task) or second.context_id != first.context_id:
            raise _unexpected("a task in the same context", second)
        stage.task(second)


def _unexpected(wanted: str, found: Task | Message) -> CommandFailure:
    what = f"a task in {found.state.value}" if isinstance(found, Task) else "a message"
    return CommandFailure(
        "PARLEY_ERR_DEMO", f"the demo expected {wanted} and got {what}: {found.text!r}"
    )


SCENES = (card, direct_reply, any_client, streamed_task, question, picture)
