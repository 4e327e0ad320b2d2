"""The steps of the demo: each calls one agent through the public client."""

from __future__ import annotations

from parley.cli.demo.view import DemoView
from parley.cli.output.failures import CommandFailure
from parley.client import ArtifactVersions, connect
from parley.model.parts import Message
from parley.model.tasks import Task, TaskArtifactUpdateEvent, TaskState, TaskStatusUpdateEvent


async def card(view: DemoView, address: str) -> None:
    """Show the time agent's card."""
    view.step("An agent card", "Who is there, what it can do, and where to reach it.")
    async with connect(f"{address}/time") as agent:
        view.show_card(agent.card, f"{address}/time/.well-known/agent-card.json")


async def direct_reply(view: DemoView, address: str) -> None:
    """Ask the time agent for a direct reply."""
    view.step("A direct reply", "A quick answer is a message: no task, nothing to wait for.")
    async with connect(f"{address}/time") as agent:
        for question in ("What time is it in Tokyo?", "北京现在几点?"):
            view.show_request(question)
            reply = await agent.send(question)
            if not isinstance(reply, Message):
                raise _unexpected("a message", reply)
            view.show_reply(reply.text)


async def any_client(view: DemoView, address: str) -> None:
    """Ask the same question over every interface of the card."""
    view.step("Any client", "Two generations of the protocol, at one address and with no flag.")
    async with connect(f"{address}/time") as agent:
        offered = agent.card.supported_interfaces
    for interface in offered:
        binding, version = interface.protocol_binding, interface.protocol_version
        async with connect(f"{address}/time", binding=binding, version=version) as agent:
            view.show_request(f"What time is it in Lima?   ({binding}, {version})")
            view.show_reply((await agent.send("What time is it in Lima?")).text)


async def streamed_task(view: DemoView, address: str) -> None:
    """Request a report, and show it while it grows."""
    view.step("A task that streams", "Longer work is a task; its artifact grows as you watch.")
    async with connect(f"{address}/report") as agent:
        question = "Write a report about tides"
        view.show_request(question)
        stream = agent.stream(question)
        with view.growing_artifact() as artifact:
            async with stream:
                async for event in stream:
                    if isinstance(event, TaskArtifactUpdateEvent):
                        artifact.add(event.artifact.name, event.artifact.text)
                    elif isinstance(event, TaskStatusUpdateEvent):
                        text = event.status.message.text if event.status.message else ""
                        artifact.status(event.status.state, text)
                    elif isinstance(event, Task):
                        artifact.status(event.state, "")
        task = await agent.get(stream.task_id)
        if task.state is not TaskState.COMPLETED:
            raise _unexpected("a completed task", task)


async def question(view: DemoView, address: str) -> None:
    """Book a flight, and answer the question that comes back."""
    view.step("A task that asks", "It stops for an answer, for as long as that takes.")
    async with connect(f"{address}/flights") as agent:
        request = "Book a flight from Berlin to Lisbon"
        view.show_request(request)
        task = await agent.send(request)
        if not isinstance(task, Task) or task.state is not TaskState.INPUT_REQUIRED:
            raise _unexpected("a question", task)
        view.show_task(task)
        answer = "2027-03-14"
        view.show_request(answer)
        done = await agent.send(answer, task_id=task.id)
        if not isinstance(done, Task) or done.state is not TaskState.COMPLETED:
            raise _unexpected("a completed task", done)
        view.show_task(done)


async def picture(view: DemoView, address: str) -> None:
    """Request a picture of a boat, and then a red one."""
    view.step("A file, and a second thought", '"Make it red" is a new task in the same context.')
    async with connect(f"{address}/boats") as agent:
        view.show_request("Draw a sailboat")
        first = await agent.send("Draw a sailboat")
        if not isinstance(first, Task):
            raise _unexpected("a task", first)
        view.show_task(first)
        view.show_request("Make it red")
        versions = ArtifactVersions.of([first])
        second = await agent.send(versions.message("Make it red", *versions.names))
        if not isinstance(second, Task) or second.context_id != first.context_id:
            raise _unexpected("a task in the same context", second)
        view.show_task(second)


def _unexpected(wanted: str, found: Task | Message) -> CommandFailure:
    what = f"a task in {found.state.value}" if isinstance(found, Task) else "a message"
    return CommandFailure(
        "PARLEY_ERR_DEMO", f"the demo expected {wanted} and got {what}: {found.text!r}"
    )


STEPS = (card, direct_reply, any_client, streamed_task, question, picture)
