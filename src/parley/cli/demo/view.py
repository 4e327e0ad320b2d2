"""What the demo shows things on: here plain lines; ``stage_rich`` is the one for terminals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from msgspec import UNSET

from parley import __version__
from parley.cli.output.rendering import file_line
from parley.cli.output.streams import say
from parley.cli.output.text import json_text, one_line, shell_words, visible
from parley.cli.program import invocation
from parley.model.cards import AgentCard
from parley.model.parts import Part
from parley.model.tasks import Task, TaskState


class Paper(Protocol):
    """An artifact that grows."""

    def add(self, name: str, text: str) -> None:
        """Add text to the artifact."""
        ...

    def status(self, state: TaskState, said: str) -> None:
        """Show the state of the task, and what the agent says about it."""
        ...


class Stage(Protocol):
    """Where the demo is shown."""

    def begin(self, address: str, paths: Sequence[str]) -> None:
        """Say what is served where."""
        ...

    def scene(self, title: str, about: str) -> None:
        """Begin a scene."""
        ...

    def card(self, card: AgentCard, url: str) -> None:
        """Show an agent card."""
        ...

    def asked(self, text: str) -> None:
        """Show what is sent to the agent."""
        ...

    def replied(self, text: str) -> None:
        """Show what the agent replies directly."""
        ...

    def growing(self) -> AbstractContextManager[Paper]:
        """Show an artifact while it grows."""
        ...

    def task(self, task: Task) -> None:
        """Show a task as it stands: its state, what the agent says, and its files and data."""
        ...

    async def pause(self) -> None:
        """Give whoever watches a moment."""
        ...

    def end(self, commands: Sequence[str], *, serving: bool, options: Sequence[str] = ()) -> None:
        """Say what to try next; ``options`` are those of a demo that it can be tried with."""
        ...


def state_name(state: TaskState) -> str:
    """Return a state as people say it: ``input required``."""
    return state.name.lower().replace("_", " ")


def speaks(card: AgentCard) -> str:
    """Return how an agent can be called: ``JSONRPC and HTTP+JSON, in 1.0 and 0.3``."""
    offered = card.supported_interfaces
    bindings = dict.fromkeys(interface.protocol_binding for interface in offered)
    versions = dict.fromkeys(interface.protocol_version for interface in offered)
    return f"{' and '.join(bindings)}, in {' and '.join(versions)}"


def can(card: AgentCard) -> str:
    """Return what the agent can do beyond answering, in a few words."""
    capabilities = card.capabilities
    able = ["streams"] if capabilities.streaming else []
    able += ["webhooks"] if capabilities.push_notifications else []
    able += [uri.uri.split(":")[-2].replace("-", " ") for uri in capabilities.extensions]
    return ", ".join(able)


def try_title(*, serving: bool, options: Sequence[str]) -> str:
    """Return what is above the commands to try."""
    if serving:
        return "Try it yourself, in another terminal"
    return f"To try it yourself, run {shell_words([*invocation(), 'demo', *options])} and"


class PlainStage:
    """Plain lines, for pipes and logs: no colours, nothing that moves."""

    def __init__(self) -> None:
        self._scenes = 0

    def _line(self, label: str, text: str) -> None:
        for number, line in enumerate(visible(text).splitlines() or [""]):
            say(f"  {'' if number else label:<9}{line}".rstrip())

    def begin(self, address: str, paths: Sequence[str]) -> None:
        """Say what is served where."""
        version = __version__
        say(f"Parley {version}: {len(paths)} agents on {address}")

    def scene(self, title: str, about: str) -> None:
        """Begin a scene."""
        self._scenes += 1
        say(f"\n{self._scenes}. {title}\n   {about}")

    def card(self, card: AgentCard, url: str) -> None:
        """Show an agent card."""
        self._line("card", url)
        self._line("agent", f"{card.name} {card.version}: {card.description}")
        self._line("speaks", speaks(card))
        self._line("can", can(card))
        for skill in card.skills:
            self._line("skill", f"{skill.id}: {skill.description}")

    def asked(self, text: str) -> None:
        """Show what is sent to the agent."""
        self._line("you", text)

    def replied(self, text: str) -> None:
        """Show what the agent replies directly."""
        self._line("agent", text)

    @contextmanager
    def growing(self) -> Iterator[Paper]:
        """Show an artifact while it grows, line by line."""
        paper = _PlainPaper()
        yield paper
        paper.end()

    def task(self, task: Task) -> None:
        """Show a task as it stands."""
        said = task.status.message.text if task.status.message else ""
        self._line("task", f"{state_name(task.state)}{': ' if said else ''}{said}")
        for artifact in task.artifacts:
            for part in artifact.parts:
                self._line("artifact", shown_part(part, artifact.name))

    async def pause(self) -> None:
        """Go on at once."""

    def end(self, commands: Sequence[str], *, serving: bool, options: Sequence[str] = ()) -> None:
        """Say what to try next; ``options`` are those of a demo that it can be tried with."""
        say(f"\n{try_title(serving=serving, options=options)}:")
        for command in commands:
            say(f"  {command}")
        if serving:
            say("\nServing until Ctrl-C.")


class _PlainPaper:
    def __init__(self) -> None:
        self._text = ""

    def add(self, name: str, text: str) -> None:
        self._text += text
        *whole, self._text = self._text.split("\n")
        for line in whole:
            self._show(line)

    def status(self, state: TaskState, said: str) -> None:
        say(f"  {'task':<9}{state_name(state)}{': ' if said else ''}{one_line(said)}")

    def end(self) -> None:
        if self._text:
            self._show(self._text)

    def _show(self, line: str) -> None:
        say(f"  {'report':<9}{line}".rstrip())


def shown_part(part: Part, name: str) -> str:
    """Return a part as a person reads it; ``name`` is that of its artifact."""
    if part.is_file:
        return file_line(part, name)
    return part.text or "" if part.data is UNSET else json_text(part.data)
