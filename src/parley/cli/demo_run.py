"""The demo: its agents, its steps, and its plain-text output."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from parley import Agent, Turn, __version__
from parley.cli.loading import load
from parley.cli.output.answer import PlainAnswer, labelled
from parley.cli.output.failures import INTERRUPTED, CommandFailure
from parley.cli.output.streams import print_line
from parley.cli.output.text import shell_words
from parley.cli.settings.server import reporting
from parley.cli.shipped import shipped
from parley.client import ArtifactVersions, connect
from parley.client.answer import Answer
from parley.host.app import asgi, open_app, run_app
from parley.host.banner import try_command
from parley.host.options import ServerOptions
from parley.host.program import DEFAULT_ADDRESS, invocation
from parley.model.cards import AgentCard
from parley.model.parts import Part
from parley.model.tasks import Event, Task, TaskState
from parley.server.app import App
from parley.server.run import ListenError, serving
from parley.server.settings import Settings

AGENTS = {
    "/hello": "hello.py",
    "/time": "time_agent.py",
    "/report": "streaming_report.py",
    "/flights": "flight_booking.py",
    "/boats": "sailboat.py",
}
TEXTS = Settings(missing_version="1.0")  # for messages typed by hand, without a version


def run_demo(view: PlainView, port: int, *, once: bool) -> int:
    """Serve the example agents, call them and show the calls; return the exit status."""
    agents = load([f"{path}={shipped('examples') / file}" for path, file in AGENTS.items()])
    with tempfile.TemporaryDirectory(prefix="parley-demo-", ignore_cleanup_errors=True) as kept:
        app = asgi(agents, store=f"sqlite:///{Path(kept, 'parley.db')}", settings=TEXTS)
        try:
            asyncio.run(_run(view, app, agents, port, once=once))
        except KeyboardInterrupt:
            return INTERRUPTED if once else 0
    return 0


def serve_practice_agent(port: int) -> None:
    """Serve an agent for trying out commands, until Ctrl-C."""
    agent = practice_agent()
    served = ServerOptions(store="memory:", port=port, publisher="")

    def said(address: str) -> str:
        words = (("Hello",), ("task",), ("ask",), ("--stream", "stream"))
        tries = [["card", "get", address], *[["send", address, *each] for each in words]]
        lines = [f"  {shell_words([*invocation(), *words])}" for words in tries]
        return "\n".join([f"{agent.name}: {address}", *lines, "Ctrl-C stops it."])

    with reporting("memory:"):
        run_app(
            open_app(agent, served), served, on_listening=lambda address: print_line(said(address))
        )


def practice_agent() -> Agent:
    """Return an agent whose behaviour its callers select."""
    agent = Agent(
        name="Practice agent",
        description="Behaves as the first word of a message says, for trying out commands",
        version=__version__,
    )

    @agent.skill(tags=["demo"], examples=["Hello", "task", "stream", "file", "ask", "slow", "fail"])
    async def practise(turn: Turn) -> str:
        """Answers at once, or does: task, stream, file, ask, slow, fail, reject."""
        word = (turn.text.lower().split() or [""])[0]
        if word in ("task", "slow"):
            await turn.working("Working on it")
            await turn.sleep(60 if word == "slow" else 0.2)
        elif word == "stream":
            async with turn.stream(name="story") as story:
                for number in range(1, 6):
                    await asyncio.sleep(0.2)
                    await story.write(f"Piece {number}. ")
        elif word == "file":
            await turn.artifact(Part(raw=b"Hello\n", filename="hello.txt", media_type="text/plain"))
        elif word == "ask":
            return f"You like {(await turn.ask('Which colour do you like?')).text}."
        elif word == "fail":
            raise RuntimeError("the message asked for a failure")
        elif word == "reject":
            turn.reject("The message asked for a rejection.")
        return f"You said: {turn.text}"

    return agent


async def _run(
    view: PlainView, app: App, agents: Mapping[str, Agent], port: int, *, once: bool
) -> None:
    if hasattr(signal, "SIGTERM"):
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    async with AsyncExitStack() as stack:
        try:
            address = await stack.enter_async_context(serving(app, port=port))
        except ListenError:
            address = await stack.enter_async_context(serving(app, port=0))
        await _show(view, agents, address, once=once)


async def _show(view: PlainView, agents: Mapping[str, Agent], address: str, *, once: bool) -> None:
    view.begin(address, list(agents))
    for step in STEPS:
        await step(view, address)
        await view.pause()
    commands = [try_command(agent, address + path) for path, agent in agents.items()]
    port = () if address == DEFAULT_ADDRESS else ("--port", str(urlsplit(address).port))
    view.end(commands, serving=not once, options=port)
    if not once:
        await asyncio.Event().wait()


async def card(view: PlainView, address: str) -> None:
    """Show the time agent's card."""
    view.step("An agent card", "Who is there, what it can do, and where to reach it.")
    async with connect(f"{address}/time") as agent:
        view.show_card(agent.card, f"{address}/time/.well-known/agent-card.json")


async def direct_reply(view: PlainView, address: str) -> None:
    """Ask the time agent for a direct reply."""
    view.step("A direct reply", "A quick answer is a message: no task, nothing to wait for.")
    async with connect(f"{address}/time") as agent:
        for question in ("What time is it in Tokyo?", "北京现在几点?"):
            view.show_request(question)
            reply = await agent.send(question)
            if reply.task is not None:
                raise _unexpected("a message", reply)
            view.show(reply.reply)


async def any_client(view: PlainView, address: str) -> None:
    """Ask the same question over every interface of the card."""
    view.step("Any client", "Two generations of the protocol, at one address and with no flag.")
    async with connect(f"{address}/time") as agent:
        offered = agent.card.supported_interfaces
    for interface in offered:
        binding, version = interface.protocol_binding, interface.protocol_version
        async with connect(f"{address}/time", binding=binding, version=version) as agent:
            view.show_request(f"What time is it in Lima?   ({binding}, {version})")
            view.show((await agent.send("What time is it in Lima?")).reply)


async def streamed_task(view: PlainView, address: str) -> None:
    """Request a report, and show it while it grows."""
    view.step("A task that streams", "Longer work is a task; its artifact grows as you watch.")
    async with connect(f"{address}/report") as agent:
        question = "Write a report about tides"
        view.show_request(question)
        stream = agent.stream(question)
        with view.answer() as shown:
            async with stream:
                async for event in stream:
                    shown.event(event)
        task = await agent.get(stream.task_id)
        if task.state is not TaskState.COMPLETED:
            raise _unexpected("a completed task", task)


async def question(view: PlainView, address: str) -> None:
    """Book a flight, and answer the question that comes back."""
    view.step("A task that asks", "It stops for an answer, for as long as that takes.")
    async with connect(f"{address}/flights") as agent:
        request = "Book a flight from Berlin to Lisbon"
        view.show_request(request)
        task = await agent.send(request)
        if task.task is None or task.question is None:
            raise _unexpected("a question", task)
        view.show(task.reply)
        answer = "2027-03-14"
        view.show_request(answer)
        done = await agent.send(answer, task=task)
        if done.task is None or not done.ok:
            raise _unexpected("a completed task", done)
        view.show(done.reply)


async def picture(view: PlainView, address: str) -> None:
    """Request a picture of a boat, and then a red one."""
    view.step("A file, and a second thought", '"Make it red" is a new task in the same context.')
    async with connect(f"{address}/boats") as agent:
        view.show_request("Draw a sailboat")
        first = await agent.send("Draw a sailboat")
        if first.task is None:
            raise _unexpected("a task", first)
        view.show(first.reply)
        view.show_request("Make it red")
        versions = ArtifactVersions.of([first.task])
        second = await agent.send(versions.message("Make it red", *versions.names))
        if second.task is None or second.context_id != first.context_id:
            raise _unexpected("a task in the same context", second)
        view.show(second.reply)


def _unexpected(wanted: str, found: Task | Answer[Any]) -> CommandFailure:
    what = f"a task in {found.state.value}" if found.id else "a message"
    return CommandFailure(
        "PARLEY_ERR_DEMO", f"the demo expected {wanted} and got {what}: {found.text!r}"
    )


STEPS = (card, direct_reply, any_client, streamed_task, question, picture)


def bindings_text(card: AgentCard) -> str:
    """Return an agent's bindings and versions: ``JSONRPC and HTTP+JSON, in 1.0 and 0.3``."""
    offered = card.supported_interfaces
    bindings = dict.fromkeys(interface.protocol_binding for interface in offered)
    versions = dict.fromkeys(interface.protocol_version for interface in offered)
    return f"{' and '.join(bindings)}, in {' and '.join(versions)}"


def capabilities_text(card: AgentCard) -> str:
    """Return an agent's capabilities in words."""
    capabilities = card.capabilities
    names = ["streams"] if capabilities.streaming else []
    names += ["webhooks"] if capabilities.push_notifications else []
    names += [uri.uri.split(":")[-2].replace("-", " ") for uri in capabilities.extensions]
    return ", ".join(names)


def try_title(*, serving: bool, options: Sequence[str]) -> str:
    """Return the heading of the commands to try."""
    if serving:
        return "Try it yourself, in another terminal"
    return f"To try it yourself, run {shell_words([*invocation(), 'demo', *options])} and"


class PlainView:
    """Plain lines, for pipes and logs."""

    def __init__(self) -> None:
        self._steps = 0

    def begin(self, address: str, paths: Sequence[str]) -> None:
        """Show the server's address and agents."""
        version = __version__
        print_line(f"Parley {version}: {len(paths)} agents on {address}")

    def step(self, title: str, about: str) -> None:
        """Show the title of the next step."""
        self._steps += 1
        print_line(f"\n{self._steps}. {title}\n   {about}")

    def show_card(self, card: AgentCard, url: str) -> None:
        """Show an agent card."""
        labelled("card", url)
        labelled("agent", f"{card.name} {card.version}: {card.description}")
        labelled("speaks", bindings_text(card))
        labelled("can", capabilities_text(card))
        for skill in card.skills:
            labelled("skill", f"{skill.id}: {skill.description}")

    def show_request(self, text: str) -> None:
        """Show a message to the agent."""
        labelled("you", text)

    def answer(self) -> PlainAnswer:
        """Return what shows the events of an answer."""
        return PlainAnswer()

    def show(self, answer: Event) -> None:
        """Show a whole answer."""
        with self.answer() as shown:
            shown.event(answer)

    async def pause(self) -> None:
        """Do not pause."""

    def end(self, commands: Sequence[str], *, serving: bool, options: Sequence[str] = ()) -> None:
        """Show commands to try; ``options`` are the options of a demo to try them with."""
        print_line(f"\n{try_title(serving=serving, options=options)}:")
        for command in commands:
            print_line(f"  {command}")
        if serving:
            print_line("\nServing until Ctrl-C.")
