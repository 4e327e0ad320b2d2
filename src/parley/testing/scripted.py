"""Scripted agents: real agents that follow a script and replace remote agents in a test."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, NamedTuple, Self

import msgspec

from parley.agent.agent import Agent
from parley.agent.turn import Turn
from parley.model.parts import Message
from parley.model.service import Caller
from parley.testing.matchers import shorten

When = str | re.Pattern[str] | Callable[[Message], object] | None
"""The messages that a rule matches: by a substring of the text (ignoring case), by a pattern, or by
a predicate; ``None`` matches all messages.
"""

START_SECONDS = 5.0
"""How long a served agent may take to start, in seconds."""


class Received(msgspec.Struct, frozen=True):
    """A message that a scripted agent received: it began a task, or answered a question."""

    message: Message
    task_id: str
    caller: Caller
    metadata: dict[str, Any]

    @property
    def text(self) -> str:
        """The text of the message."""
        return self.message.text

    @property
    def data(self) -> Any:
        """The first data part of the message, or ``None``."""
        values = [part.data for part in self.message.parts if part.has_data]
        return values[0] if values else None


class _Step(NamedTuple):
    """A step of a rule, with its value and options."""

    kind: str
    value: Any = None
    options: dict[str, Any] = {}


class _Rule:
    """The steps for some messages. ``left`` counts the messages it may still match; ``None`` is no
    limit.
    """

    def __init__(self, when: When, times: int | None) -> None:
        self.when = when
        self.left = times
        self.steps: list[_Step] = []

    def is_for(self, message: Message) -> bool:
        """Return whether this rule matches a message that begins a task."""
        match self.when:
            case None:
                return True
            case str() as text:
                return text.lower() in message.text.lower()
            case re.Pattern() as pattern:
                return pattern.search(message.text) is not None
            case when:
                return bool(when(message))


class ScriptedAgent(Agent):
    """An agent that answers by rules: ``ScriptedAgent("Rates").on("convert", reply="97.20 EUR")``.

    It is an ``Agent``, with a card, tasks and a log, so it can be served, connected to, and given
    to ``client(remotes={"https://rates.example": rates})``. ``received`` lists the messages it
    received.

    ``on`` begins a rule; the calls after it are the steps of the rule, in order:

        ScriptedAgent("Hotel")
            .on("book").works("Looking").asks("Which day?").replies(lambda day: f"Booked {day}")
            .on("cancel").fails("It is too late.")

    The first rule that matches a message applies. Without a match the task fails, and its status
    lists the rules. ``options`` are options of ``Agent``.
    """

    def __init__(self, name: str = "Scripted agent", **options: Any) -> None:
        options.setdefault("description", "Stands in for an agent in a test.")
        super().__init__(name, **options)
        self.received: list[Received] = []
        self._rules: list[_Rule] = []
        self._chosen: dict[str, _Rule] = {}
        self._seen: set[tuple[str, str]] = set()
        self.skill(id="scripted", name=name, description=self.description, default=True)(self._play)

    @property
    def texts(self) -> list[str]:
        """The texts of the received messages."""
        return [each.text for each in self.received]

    # -- rules ---------------------------------------------------------------------------------

    def on(
        self,
        when: When = None,
        *,
        reply: Any = msgspec.UNSET,
        fail: str | None = None,
        ask: str | None = None,
        times: int | None = None,
    ) -> Self:
        """Begin a rule; the calls after it add its steps.

        ``when`` is a text that the message contains, a compiled pattern, a function of the message,
        or ``None`` for all messages. ``reply``, ``ask`` and ``fail`` are short for a single step.
        The rule applies to the first ``times`` messages that it matches.
        """
        if times is not None and times < 1:
            raise ValueError(f"times is 1 or more, or None for always, not {times}")
        given = [
            step
            for step, value in (("replies", reply), ("asks", ask), ("fails", fail))
            if value not in (msgspec.UNSET, None) or (step == "replies" and value is None)
        ]
        if len(given) > 1:
            raise ValueError(
                f"give reply, ask or fail, or add steps: .on(...).{'(...).'.join(given)}(...)"
            )
        self._rules.append(_Rule(when, times))
        if reply is not msgspec.UNSET:
            self.replies(reply)
        elif ask is not None:
            self.asks(ask)
        elif fail is not None:
            self.fails(fail)
        return self

    def works(self, content: object = None) -> Self:
        """Report progress: the task is WORKING, with a message. The response is a task, not a
        message.
        """
        return self._then(_Step("works", content))

    def artifact(self, content: object, *, name: str = "", **options: Any) -> Self:
        """Write an artifact: see ``Turn.artifact``."""
        return self._then(_Step("artifact", content, {"name": name, **options}))

    def asks(self, question: object) -> Self:
        """Ask a question: the task is INPUT_REQUIRED. The later steps run after the answer."""
        return self._then(_Step("asks", question))

    def requires_auth(self, content: object) -> Self:
        """Ask for authorisation: the task is AUTH_REQUIRED."""
        return self._then(_Step("requires_auth", content))

    def takes(self, span: timedelta | float) -> Self:
        """Wait for a span of time: ``remote.advance(span)`` moves it."""
        seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
        return self._then(_Step("takes", seconds))

    def hangs(self) -> Self:
        """Never end: the task is WORKING until it is canceled or times out."""
        return self._then(_Step("hangs"))

    def replies(self, content: object) -> Self:
        """End with a result: text, data, bytes, a part, or a function that returns a result.

        The function receives the last message: the answer to a question, or the task's first
        message.
        """
        return self._then(_Step("replies", content))

    def fails(self, why: str) -> Self:
        """End as FAILED, with a reason."""
        return self._then(_Step("fails", why))

    def rejects(self, why: str) -> Self:
        """End as REJECTED, with a reason."""
        return self._then(_Step("rejects", why))

    def raises(self, error: Exception) -> Self:
        """Raise an error, as a skill may: an ``A2AError`` rejects the message."""
        return self._then(_Step("raises", error))

    def _then(self, step: _Step) -> Self:
        if not self._rules:
            raise ValueError(f"begin with a rule: .on(...).{step.kind}(...)")
        steps = self._rules[-1].steps
        if steps and steps[-1].kind in ("replies", "fails", "rejects", "raises", "hangs"):
            raise ValueError(
                f".{steps[-1].kind}(...) is the last step of its rule; begin another rule with .on"
            )
        steps.append(step)
        return self

    # -- running the rules -----------------------------------------------------------------------

    async def _play(self, turn: Turn) -> Any:
        self._note(turn)
        last = turn.message
        for step in self._rule_for(turn).steps:
            match step.kind:
                case "works":
                    await turn.working(step.value)
                case "artifact":
                    await turn.artifact(step.value, **step.options)
                case "asks":
                    last = await turn.ask(step.value)
                case "requires_auth":
                    answer = await turn.require_auth(step.value)
                    last = answer if isinstance(answer, Message) else last
                case "takes":
                    await asyncio.sleep(step.value)
                case "hangs":
                    await asyncio.get_running_loop().create_future()
                case "replies":
                    value = step.value(last) if callable(step.value) else step.value
                    return await value if asyncio.iscoroutine(value) else value
                case "fails":
                    turn.fail(step.value)
                case "rejects":
                    turn.reject(step.value)
                case "raises":
                    raise step.value
        return None

    def _note(self, turn: Turn) -> None:
        """Record the message of a turn, once: a turn may be run again."""
        key = (turn.task_id, turn.latest.message_id)
        if key not in self._seen:
            self._seen.add(key)
            self.received.append(
                Received(turn.latest, turn.task_id, turn.caller, dict(turn.metadata))
            )

    def _rule_for(self, turn: Turn) -> _Rule:
        """Return the rule of a task: the same rule in every turn of the task."""
        known = self._chosen.get(turn.task_id)
        if known is not None:
            return known
        for rule in self._rules:
            if rule.left == 0 or not rule.is_for(turn.message):
                continue
            if rule.left is not None:
                rule.left -= 1
            self._chosen[turn.task_id] = rule
            return rule
        known_rules = ", ".join([shorten(rule.when) for rule in self._rules]) or "none"
        turn.fail(
            f"the scripted agent {self.name!r} has no rule for {shorten(turn.text)}; "
            f"it has rules for: {known_rules}"
        )

    # -- serving on a socket -----------------------------------------------------------------------

    @asynccontextmanager
    async def serve(self, *, store: str = "memory:") -> AsyncIterator[str]:
        """Serve the agent on a free port of this machine, for tests of clients in other processes.

        Yields its address. ``parley.connect(agent)`` needs no port.
        """
        import socket

        import uvicorn

        from parley.host.app import asgi

        started = asyncio.Event()

        class Server(uvicorn.Server):
            async def startup(self, sockets: list[socket.socket] | None = None) -> None:
                await super().startup(sockets)
                started.set()

        with socket.socket(proto=socket.IPPROTO_TCP) as listening:
            listening.bind(("127.0.0.1", 0))
            config = uvicorn.Config(
                asgi(self, store=store), log_level="warning", timeout_graceful_shutdown=1, ws="none"
            )
            server = Server(config)
            serving = asyncio.create_task(server.serve(sockets=[listening]))
            try:
                async with asyncio.timeout(START_SECONDS):
                    await started.wait()
                yield f"http://127.0.0.1:{listening.getsockname()[1]}"
            finally:
                server.should_exit = True
                await serving
