"""Turns of an agent with handoffs: run by its own function, or by the other agent."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from parley.agent.remote.callees import Connectable, address_of, referred
from parley.agent.services import TurnServices
from parley.agent.turn import Turn
from parley.agent.uses import UsableAgent
from parley.client.errors import ClientError, RemoteTaskFailed, Timeout
from parley.engine.content import to_parts
from parley.engine.handoff import (
    HANDOFF_KEY,
    MAX_CONTEXTS,
    MAX_HISTORY_BYTES,
    MAX_HISTORY_MESSAGES,
    MAX_NOTE_CHARACTERS,
    MAX_TASKS,
    HandedConversation,
    HandedOver,
    Handoff,
    Handoffs,
    Holding,
    back_in,
    change,
    holding,
)
from parley.engine.turn.attempt import Attempt, Failed, Rejected
from parley.model.errors import A2AError
from parley.model.ids import new_id
from parley.model.operations import SKILL_KEY
from parley.model.parts import Message, Part, Role
from parley.model.struct import encode
from parley.model.tasks import Task, TaskState
from parley.store.events import StepResult

log = logging.getLogger("parley.agent")

HANDOFF_PREFIX = "handoff:"
"""The prefix of the keys of handoffs in a task's log."""

CALL_KEY = "urn:parley:handoff"
"""The key of the calls that forward a conversation's messages; their number follows."""

Function = Callable[[TurnServices, Attempt], Awaitable[object]]


def ended(attempt: Attempt, value: Handoff) -> Message:
    """Return the answer that hands a conversation back (``handoff(back=True)``).

    Raises ``RuntimeError`` for a handoff to an agent, if this agent has declared none.
    """
    if not value.back:
        raise RuntimeError(
            f"the skill {attempt.request.skill.id!r} hands the conversation to {_called(value.to)},"
            " and may not: declare it with Agent(..., handoffs=[...]), and leave out "
            "replies='message', because a handoff needs a task"
        )
    is_answered = value.answer is not None
    marker: dict[str, Any] = {"back": True, "answered": is_answered}
    if value.note:
        marker["note"] = value.note
    parts = to_parts(value.answer) if is_answered else (Part(text=value.note or "Handed back."),)
    metadata = {HANDOFF_KEY: marker}
    return Message(message_id=new_id(), role=Role.AGENT, parts=parts, metadata=metadata)


async def in_turns(services: TurnServices, attempt: Attempt, function: Function) -> object:
    """Return the answer of the agent that owns the conversation: this one or the other.

    The decision is logged before it has effects, so a later attempt repeats it. If the other agent
    cannot be reached, or hands back without an answer, this agent answers the message.
    """
    assert services.handoffs is not None
    turns = _Turns(services, attempt, services.handoffs)
    over = await turns.begin()
    while True:
        if over is None and (over := turns.recorded()) is None:
            attempt.begin_again()
            value = await function(services, attempt)
            if not isinstance(value, Handoff):
                return value
            if value.back:
                return ended(attempt, value)
            over = turns.handed_over(value)
        answer = await turns.forward(over)
        if answer is not None:
            return answer.value
        over = None


class _Answer(NamedTuple):
    """The return value of a forwarded turn: the other agent's answer."""

    value: Message | None


class _Turns:
    """The handoffs for the message of one attempt."""

    def __init__(self, services: TurnServices, attempt: Attempt, handoffs: Handoffs) -> None:
        self._services = services
        self._attempt = attempt
        self._handoffs = handoffs
        self._runner = attempt.runner
        self._targets = {_key(agent): agent for agent in handoffs.to}
        self._count = 0

    # -- the answering agent -------------------------------------------------------------------

    async def begin(self) -> HandedOver | None:
        """Return the handoff in effect when the turn begins; ``None`` if this agent answers."""
        logged = self._logged(0)
        if logged is not None:
            return logged if logged.to else None
        journal = self._attempt.journal
        if journal.answers or journal.results:
            return None  # the function has begun: answers to its questions belong to it
        held = await holding(self._runner.store, self._runner.scope, self._runner.context_id)
        if not held.to:
            return None
        lasts, now = self._handoffs.lasts, self._runner.store.now()
        is_over = lasts is not None and held.at + lasts.total_seconds() * 1000 <= now
        if is_over or self._target(held.to) is None:
            await self._returns(held.revision)
            return None
        over = HandedOver(to=held.to, name=held.name, revision=held.revision)
        await self._log(0, over)
        return over

    def recorded(self) -> HandedOver | None:
        """Return the handoff that an earlier attempt logged, ``None`` if there is none."""
        return self._logged(self._count + 1)

    def handed_over(self, value: Handoff) -> HandedOver:
        """Return the handoff of a message by the function.

        Raises ``RuntimeError`` for an undeclared agent, and ``Failed`` for a message with too many
        handoffs.
        """
        if self._count >= self._handoffs.most:
            raise Failed(
                f"This message was handed over {self._handoffs.most} times without an answer."
            )
        return HandedOver(
            to=self._named(value.to),
            is_new=True,
            note=value.note,
            say=value.say,
            skill=value.skill,
            history=value.history,
        )

    async def _take(self, over: HandedOver) -> HandedOver:
        """Log that another agent gets the message, and make it the owner of the conversation."""
        runner = self._runner
        if not over.revision:
            held = await holding(runner.store, runner.scope, runner.context_id)
            over = replace(over, revision=held.revision + 1)
            await self._log(self._count, over)
        now = runner.store.now()

        def taken(held: Holding) -> Holding | None:
            if held.revision != over.revision - 1:
                return None  # already done, or another message was first
            return replace(held, to=over.to, revision=over.revision, at=now)

        await self._change(taken)
        return over

    def _named(self, to: object) -> str:
        if isinstance(to, str) and "://" not in to:
            for key, agent in self._targets.items():
                if to in (getattr(agent, "key", None), getattr(agent, "name", None)):
                    return key
        else:
            key = _key(to)
            if self._target(key) is not None:
                return key
        known = ", ".join(map(_called, self._handoffs.to)) or "addresses"
        raise RuntimeError(
            f"the skill {self._attempt.request.skill.id!r} hands the conversation to "
            f"{_called(to)}; this agent may hand one to {known} (Agent(..., handoffs=...))"
        )

    def _target(self, key: str) -> Any:
        """Return the agent with a key, ``None`` if it is no longer declared."""
        known = self._targets.get(key)
        if known is None and self._handoffs.any_address and "://" in key:
            return key
        return known

    # -- the other agent's turn ----------------------------------------------------------------

    async def forward(self, over: HandedOver) -> _Answer | None:
        """Return the other agent's answer to the message; ``None`` if this agent must answer it.

        Raises ``Failed`` and ``Rejected`` if the other agent's task ends so.
        """
        self._count += 1
        attempt, returned = self._attempt, f"{HANDOFF_PREFIX}{self._count}:returned"
        if (kept := attempt.journal.results.get(returned)) is not None:
            attempt.handed = msgspec.json.decode(kept, type=HandedConversation)
            return None
        is_first = over.is_new and not over.revision
        if over.is_new:
            over = await self._take(over)
        target, name = self._target(over.to), over.name
        if target is None:  # removed by a deployment meanwhile
            await self._returned(over, over.to, "The agent is no longer declared.")
            return None
        turn = Turn(attempt, self._services)
        try:
            if isinstance(target, UsableAgent):
                name = target.name
            else:
                at, options = target, {}
                if isinstance(target, Connectable):
                    at, options = target.target, dict(target.connection)
                target = await turn.connect(at, **options)
                name = target.card.name
            await self._show(over, name, announces=is_first)
            answer = await turn.delegate(
                target,
                list(self._message.parts),
                key=f"{CALL_KEY}:{self._count}",
                progress=True,
                artifacts=True,
                timeout=self._handoffs.timeout,
                **await self._options(over),
            )
        except RemoteTaskFailed as error:
            await self._note(over, error.task)
            if back_in(_metadata(error.task)) is not None:
                await self._returns(over.revision)
            if error.task.state is TaskState.REJECTED:
                raise Rejected(error.task.text or f"{name} rejects this.") from error
            raise Failed(error.task.text or f"{name} failed at this.") from error
        except Timeout as error:
            raise Failed(f"{name or 'The other agent'} did not answer in time.") from error
        except (ClientError, A2AError) as error:
            if isinstance(error, A2AError) and not error.is_remote:
                raise
            log.warning(
                "task %s: %s did not accept a conversation, which returns: %s",
                self._runner.task_id,
                over.to,
                error,
            )
            await self._returned(over, name or over.to, "The agent cannot be reached.")
            return None
        await self._note(over, answer.reply)
        return await self._answered(over, name, answer.reply)

    async def _answered(
        self, over: HandedOver, name: str, answer: Task | Message
    ) -> _Answer | None:
        marker = back_in(_metadata(answer))
        shown: dict[str, Any]
        said = answer if isinstance(answer, Message) else answer.status.message
        if marker is None:
            shown = {HANDOFF_KEY: {"agent": name}}
        else:
            if marker.get("answered") is False:
                note = marker.get("note")
                await self._returned(
                    over, name, note[:MAX_NOTE_CHARACTERS] if isinstance(note, str) else ""
                )
                return None
            await self._returns(over.revision)
            shown = {HANDOFF_KEY: {"agent": name, "back": True}}
        if said is None:
            return _Answer(None)
        metadata = {**(said.metadata or {}), **shown}
        return _Answer(
            Message(message_id=new_id(), role=Role.AGENT, parts=said.parts, metadata=metadata)
        )

    async def _show(self, over: HandedOver, name: str, *, announces: bool) -> None:
        """Tell the caller which agent answers."""
        writer = self._attempt.working()
        message = None
        if announces and over.say != "":
            text = over.say or f"{name} answers from now on."
            message = self._attempt.message(text)
        writer.status(TaskState.WORKING, message, {HANDOFF_KEY: {"agent": name}})
        await writer.drain()

    @property
    def _message(self) -> Message:
        return self._attempt.request.message

    async def _options(self, over: HandedOver) -> dict[str, Any]:
        """Return the options for the message: context, references, note, history, skill."""
        request, runner = self._attempt.request, self._runner
        held = await holding(runner.store, runner.scope, runner.context_id)
        metadata = {k: v for k, v in (self._message.metadata or {}).items() if k != HANDOFF_KEY}
        if metadata.get(SKILL_KEY) == request.skill.id:
            del metadata[SKILL_KEY]  # it is a skill of this agent
        if over.skill:
            metadata[SKILL_KEY] = over.skill
        if over.is_new:
            metadata[HANDOFF_KEY] = await self._context(over)
        known = {ours: its for ours, (key, its) in held.tasks.items() if key == over.to}
        references = [known[each] for each in self._message.reference_task_ids if each in known]
        options: dict[str, Any] = {
            "message_metadata": metadata or None,
            "references": references,
            "accepted_output_modes": request.accepted_output_modes,
        }
        if over.to in held.contexts:
            options["context_id"] = held.contexts[over.to]
        return options

    async def _context(self, over: HandedOver) -> dict[str, Any]:
        """Return the metadata for the other agent: the sender, the note, and the history."""
        told: dict[str, Any] = {"from": self._services.name, "note": over.note}
        if over.history and self._services.contexts.keeps_history:
            runner = self._runner
            messages = await runner.store.history(
                runner.scope, runner.context_id, MAX_HISTORY_MESSAGES
            )
            kept: list[Any] = []
            size = 0
            for message in reversed(messages):
                data = encode(message)
                size += len(data)
                if size > MAX_HISTORY_BYTES:
                    break
                kept.insert(0, msgspec.json.decode(data))
            told["history"] = kept
        return told

    async def _note(self, over: HandedOver, answer: Task | Message) -> None:
        """Store the other agent's context, and its task for references in later messages."""

        def noted(held: Holding) -> Holding | None:
            contexts, tasks = dict(held.contexts), dict(held.tasks)
            if answer.context_id:
                contexts[over.to] = answer.context_id
            if isinstance(answer, Task):
                tasks[self._runner.task_id] = (over.to, answer.id)
            changed = replace(
                held,
                contexts=dict(list(contexts.items())[-MAX_CONTEXTS:]),
                tasks=dict(list(tasks.items())[-MAX_TASKS:]),
            )
            return None if changed == held else changed

        await self._change(noted)

    # -- the record ----------------------------------------------------------------------------

    async def _returned(self, over: HandedOver, name: str, note: str) -> None:
        """Return the conversation and the message to this agent. Logged for later attempts."""
        await self._returns(over.revision)
        self._attempt.handed = HandedConversation(sender=name, note=note, is_back=True)
        await self._keep(f"{HANDOFF_PREFIX}{self._count}:returned", self._attempt.handed)

    async def _returns(self, revision: int) -> None:
        """Return the conversation to this agent, unless it has changed since a revision."""

        def returned(held: Holding) -> Holding | None:
            if held.revision != revision or not held.to:
                return None
            return replace(held, to="", name="", revision=revision + 1)

        await self._change(returned)

    async def _change(self, function: Callable[[Holding], Holding | None]) -> None:
        runner = self._runner
        await change(runner.store, runner.scope, runner.context_id, function)

    def _logged(self, number: int) -> HandedOver | None:
        found = self._attempt.journal.results.get(f"{HANDOFF_PREFIX}{number}")
        return None if found is None else msgspec.json.decode(found, type=HandedOver)

    async def _log(self, number: int, over: HandedOver) -> None:
        await self._keep(f"{HANDOFF_PREFIX}{number}", over)

    async def _keep(self, key: str, value: object) -> None:
        """Log a value, durably."""
        writer = self._attempt.working()
        kept = self._attempt.journal.results[key] = msgspec.Raw(msgspec.json.encode(value))
        writer.write(StepResult(key=key, value=kept))
        await writer.flush()


def _key(agent: Any) -> str:
    """Return the identifier of an agent in records: its key, or its address."""
    target: Any = agent.target if isinstance(agent, Connectable) else agent
    return address_of(referred(target)[0])


def _called(agent: Any) -> str:
    named = isinstance(agent, UsableAgent | Connectable)
    return repr(getattr(agent, "name", None)) if named else repr(agent)[:200]


def _metadata(answer: Task | Message) -> Mapping[str, Any]:
    """Return the metadata of an answer: of a message, or of a task with its last message."""
    if isinstance(answer, Message):
        return answer.metadata or {}
    said = answer.status.message
    return {**(answer.metadata or {}), **((said.metadata or {}) if said is not None else {})}
