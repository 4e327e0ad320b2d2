"""The shared state of one turn's calls: names in the log, connections, contexts and questions.

Progress and artifacts of a remote task are passed on to the turn's own task. Passed-on messages
name their speaker.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.agent.remote.connections import Connections
from parley.engine.caller import chain_id
from parley.engine.turn.attempt import Attempt, RemoteCall, UserAnswer
from parley.extensions.call_chain import MAX_PATH, Chain, ChainBudget
from parley.model.ids import new_id
from parley.model.parts import Artifact, Message, Part, Role
from parley.model.service import TraceContext
from parley.model.struct import Timestamp
from parley.model.tasks import Event, Task, TaskArtifactUpdateEvent, TaskState
from parley.store.fold import CONTINUES


class CallTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms of one call, in addition to the terms of its turn.

    ``asker`` is the name of the called agent in questions and progress that are passed on.
    ``seconds`` is the time limit of the other agent, which is sent in its chain of calls; its task
    is canceled after that. ``budget`` limits its cost.
    """

    asker: str = ""
    seconds: float | None = None
    budget: ChainBudget | None = None


NO_TERMS = CallTerms()


class CallOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of one call, in addition to its message's options (``BoundAgent.send``)."""

    context_key: str = ""
    pass_questions: bool = False
    progress: bool = False
    artifacts: bool = False
    cancel_remote: bool = True
    return_immediately: bool = False
    terms: CallTerms = NO_TERMS


IDENTIFY_SECONDS = 2.0
"""The time that an ending turn waits for the ids of remote tasks that it has just started."""


class TurnCalls:
    """The calls of one attempt: names, connections and contexts. Made by the first call."""

    def __init__(self, attempt: Attempt, connections: Connections) -> None:
        self.attempt = attempt
        self.connections = connections
        self.agent_name = connections.agent_name
        self._own_id = ""
        self._begun = 0
        self._counts: Counter[str] = Counter()
        self._unidentified: dict[asyncio.Event, AbstractContextManager[None]] = {}
        self._open: set[Callable[[], None]] = set()
        attempt.on_end += (self._close,)
        attempt.before_question += (self._identify,)

    # -- connections ---------------------------------------------------------------------------

    def opened(self, close: Callable[[], None]) -> None:
        """Record how to close a connection of this turn, which is closed with the turn at the
        latest."""
        self._open.add(close)

    def closed(self, close: Callable[[], None]) -> None:
        """Drop the record of a closed connection. Idempotent."""
        self._open.discard(close)

    def _close(self) -> None:
        for close in list(self._open):
            close()

    # -- names and records ---------------------------------------------------------------------

    def begin(self, address: str, key: str | None) -> str:
        """Return the name of a call in the log: its key, or its number among the agent's calls.

        Raises ``ValueError`` for a key that this turn has used.
        """
        self._begun += 1
        if key is None:
            self._counts[address] += 1
            key = f"{address}#{self._counts[address]}"
        elif not key:
            raise ValueError("the key of a call is empty; leave it out to identify it by its order")
        self.attempt.begin_call(key)
        return key

    def logged(self, name: str, address: str) -> RemoteCall | None:
        """Return a call's record in the log. Raises ``ValueError`` if it went to another agent."""
        found = self.attempt.logged_call(name)
        if found is not None and found.address != address:
            raise ValueError(
                f"the call {name!r} went to {found.address} in an earlier attempt, and now goes to "
                f"{address}; a key names one call, so that its answer can be found again"
            )
        return found

    # -- calls without a known remote task -----------------------------------------------------

    def sending(self) -> asyncio.Event:
        """Return an event to set when the task of a message that is being sent is known.

        The turn stays awake until then.
        """
        event, awake = asyncio.Event(), self.attempt.waits.busy()
        awake.__enter__()
        self._unidentified[event] = awake
        return event

    def identified(self, event: asyncio.Event) -> None:
        """Record that the task of a message is known, or that there will be none."""
        event.set()
        if (awake := self._unidentified.pop(event, None)) is not None:
            awake.__exit__(None, None, None)

    async def _identify(self) -> None:
        """Wait for the tasks of messages that are being sent, so that the turn's next run finds
        them.

        Gives up after ``IDENTIFY_SECONDS``.
        """
        if not self._unidentified:
            return
        waits = [asyncio.ensure_future(event.wait()) for event in self._unidentified]
        try:
            with self.attempt.waits.busy():
                await asyncio.wait(waits, timeout=IDENTIFY_SECONDS)
        finally:
            for wait in waits:
                wait.cancel()

    # -- data sent with a message --------------------------------------------------------------

    async def chain(self, terms: CallTerms = NO_TERMS) -> Chain:
        """Return the chain of calls that a message from this turn belongs to."""
        runner, inbound = self.attempt.runner, self.attempt.request.chain or Chain()
        if not self._own_id:
            self._own_id = await chain_id(runner.store, runner.scope.agent)
        at = runner.deadline_at
        if terms.seconds is not None:
            own = runner.store.now() + int(terms.seconds * 1000)
            at = own if at is None else min(at, own)
        return Chain(
            hops=inbound.hops + 1,
            deadline=None if at is None else Timestamp.from_milliseconds(at),
            path=(*inbound.path, self._own_id)[-MAX_PATH:],
            budget=terms.budget or self.left_of(inbound.budget),
        )

    def left_of(self, budget: ChainBudget | None) -> ChainBudget | None:
        """Return the rest of a caller's budget, which counts only the calls of this turn."""
        if budget is None or budget.calls is None:
            return budget
        return replace(budget, calls=max(0, budget.calls - self._begun))

    def trace(self) -> TraceContext:
        """Return the trace of a connection: a child of the turn's trace, if the turn has one.

        With tracing it is the position of the turn's span, below which every call has a span.
        """
        observed = self.attempt.observed
        if observed is not None and observed.position:
            return observed.position
        trace = self.attempt.request.trace
        if not trace.traceparent:
            return trace
        version, trace_id, _, *rest = trace.traceparent.split("-")
        return replace(
            trace, traceparent="-".join([version, trace_id, secrets.token_hex(8), *rest])
        )

    # -- contexts ------------------------------------------------------------------------------

    async def context_id(self, address: str, key: str) -> str:
        """Return the remote context for this turn's context; empty if there is none yet."""
        runner = self.attempt.runner
        found = await runner.store.get_value(
            runner.scope, runner.context_id, _context_key(address, key)
        )
        return "" if found is None else found.decode()

    async def keep_context(self, address: str, key: str, context_id: str) -> None:
        """Store the remote context for this turn's context, unless another call was first."""
        runner = self.attempt.runner
        await runner.store.compare_and_set(
            runner.scope, runner.context_id, _context_key(address, key), None, context_id.encode()
        )

    # -- questions -----------------------------------------------------------------------------

    async def ask(self, task: Task, name: str, asker: str = "") -> UserAnswer:
        """Ask the caller a remote task's question, and return the answer, in this turn or a later
        one.

        The parts are passed on unchanged, unless an ``asker`` is named: then they name the agent
        that asks.
        """
        return await self.attempt.ask(task.state, self._passed_on(task, asker), f"call:{name}")

    async def show(self, task: Task, asker: str = "") -> None:
        """Show the caller a remote task's request, and reply; the turn continues."""
        writer = self.attempt.working()
        writer.status(task.state, self.attempt.message(self._passed_on(task, asker)))
        await writer.flush()
        self.attempt.runner.reply()

    def shown(self) -> None:
        """Set this task to WORKING again if it had another state: the remote task can continue."""
        writer = self.attempt.working()
        if writer.fold.state is TaskState.AUTH_REQUIRED:
            writer.status(TaskState.WORKING)

    def _passed_on(self, task: Task, asker: str) -> Message:
        question = task.status.message
        active = self.attempt.request.extensions
        passed_on = Message(
            message_id=new_id(),
            role=Role.AGENT,
            parts=question.parts if question is not None else (Part(text="What do you want?"),),
            extensions=tuple(u for u in question.extensions if u in active) if question else (),
        )
        return said_by(asker, passed_on, question.metadata if question else None)


def _context_key(address: str, key: str) -> str:
    digest = hashlib.sha256(f"{address}\n{key}".encode()).hexdigest()
    return f"urn:parley:remote-context:{digest[:32]}"


class Passing:
    """Passes on the events of one call. Artifacts get ids of this task, so a re-run replaces
    them."""

    def __init__(self, attempt: Attempt, name: str, options: CallOptions) -> None:
        self._attempt = attempt
        self._name = name
        self._progress = options.progress
        self._artifacts = options.artifacts
        self._asker = options.terms.asker

    async def pass_on(self, event: Event) -> None:
        """Write an event to the turn's own task, if it must be passed on."""
        if isinstance(event, Message):
            return
        if isinstance(event, TaskArtifactUpdateEvent):
            if self._artifacts:
                continues = event.append and CONTINUES in (event.metadata or {})
                await self._write(
                    event.artifact, append=event.append, last=event.last_chunk, continues=continues
                )
            return
        if isinstance(event, Task) and self._artifacts:
            for artifact in event.artifacts:
                await self._write(artifact, append=False, last=event.state.is_terminal)
        message = event.status.message
        if self._progress and message is not None and event.status.state is TaskState.WORKING:
            writer = self._attempt.writer()
            said = self._attempt.message(list(message.parts))
            writer.status(TaskState.WORKING, said_by(self._asker, said, message.metadata))
            await writer.drain()

    async def _write(
        self, artifact: Artifact, *, append: bool, last: bool, continues: bool = False
    ) -> None:
        digest = hashlib.sha256(f"{self._name}\n{artifact.artifact_id}".encode()).hexdigest()
        own_id = f"{self._attempt.runner.task_id[-12:]}-{digest[:12]}"
        artifact = replace(artifact, artifact_id=own_id, extensions=())
        writer = self._attempt.write_artifact(
            artifact, append=append, last=last, continues=continues
        )
        await writer.drain()


SPEAKER = "urn:parley:part"
"""The metadata key with the names of the parts that sent a message, the outermost first."""


def said_by(name: str, message: Message, metadata: dict[str, Any] | None) -> Message:
    """Return a message that names its speaker; the unchanged message without a name.

    ``metadata`` is the message's original metadata: it may have passed through other parts.
    """
    if not name:
        return message
    inner = (metadata or {}).get(SPEAKER)
    names = [name, *(str(each) for each in inner)] if isinstance(inner, list) else [name]
    parts = list(message.parts)
    for index, part in enumerate(parts):
        if part.text is not None:
            parts[index] = replace(part, text=f"{name}: {part.text}")
            break
    return replace(
        message, parts=tuple(parts), metadata={**(message.metadata or {}), SPEAKER: names[:16]}
    )
