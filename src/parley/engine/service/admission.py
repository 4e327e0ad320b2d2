"""How messages are taken in: checked, told from repeats, and handed to the executor."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from parley.agent.agent import Agent
from parley.engine.caller import kept, record_of
from parley.engine.content import gives, media_type_of, takes
from parley.engine.executor import AgentExecutor
from parley.engine.replies.reply_handle import ReplyHandle
from parley.engine.replies.waiters import ended
from parley.engine.skill import Skill
from parley.engine.turn.attempt import Request
from parley.engine.turn.replay import facts_of
from parley.model.encoding import decode, encode
from parley.model.errors import (
    ContentTypeNotSupportedError,
    FieldViolation,
    InvalidParamsError,
    OverloadedError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)
from parley.model.extensions import IDEMPOTENT_SEND
from parley.model.parts import Message, Role
from parley.model.requests import SendMessageConfiguration, SendMessageRequest
from parley.model.service import CallContext
from parley.model.uuid7 import new_id
from parley.push.validation import validated
from parley.store.events import Kind, Received
from parley.store.task_store import (
    MAX_PUSHES,
    Append,
    DuplicateReceipt,
    PushRecord,
    Receipt,
    Scope,
    TaskEnded,
    TaskRecord,
    TaskStore,
    TooManyPushes,
    TooManyWaiting,
    UnknownTask,
)


class Admitted(msgspec.Struct, frozen=True):
    """A message that was taken in; ``ticket`` will have its reply.

    ``is_new`` is false for a message of whose task something may be in the log already.
    """

    ticket: ReplyHandle
    is_new: bool = True


class Repeated(msgspec.Struct, frozen=True):
    """A message that was taken in before, and answered directly by ``reply``, or by a task.

    ``began`` says that the message began the task; ``ticket`` waits for the turn that took it.
    """

    reply: Message | None = None
    task_id: str = ""
    began: bool = False
    ticket: ReplyHandle | None = None


class _Sending(msgspec.Struct):
    """A message under way, of a caller that may repeat it."""

    digest: bytes
    admitted: asyncio.Event
    ticket: ReplyHandle | None = None


class Admission:
    """Takes in the messages to one agent.

    A message of a caller that asked for it (``urn:parley:idempotent-send:v1``) is taken in once,
    however often and however simultaneously it comes; any other repeated id is a new message.
    """

    def __init__(self, agent: Agent, executor: AgentExecutor, store: TaskStore) -> None:
        self._agent = agent
        self._executor = executor
        self._store = store
        self._sends: dict[tuple[Scope, str], _Sending] = {}

    async def admit(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        *,
        logged: bool = False,
        shown: bool = False,
    ) -> Admitted | Repeated:
        """Take a message in, or say how it was answered before.

        ``logged`` asks for a task that is in the log before its function runs. ``shown`` asks for
        the whole of a task that is there already, as it was before the message.
        Raises ``A2AError`` for a message that cannot be taken, and ``StoreError``.
        """
        _check(request)
        if IDEMPOTENT_SEND in context.extensions:
            return await self._once(request, context, scope, logged, shown)
        return Admitted(await self._take(request, context, scope, (), logged, shown))

    async def _once(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        logged: bool,
        shown: bool,
    ) -> Admitted | Repeated:
        message_id = request.message.message_id
        digest = _digest(request)
        key = (scope, message_id)
        while (sending := self._sends.get(key)) is not None:
            _check_digest(sending.digest, digest)
            await sending.admitted.wait()
            if sending.ticket is not None:
                return Admitted(sending.ticket, is_new=False)
        sending = self._sends[key] = _Sending(digest, asyncio.Event())
        try:
            repeated = await self._repeated(scope, message_id, digest)
            if repeated is not None:
                return repeated
            ticket = await self._take_once(request, context, scope, digest, logged, shown)
            if ticket is None:
                repeated = await self._repeated(scope, message_id, digest)
                if repeated is not None:
                    return repeated
                raise OverloadedError("the message is being taken in by another", retry_after=1)
            if not ticket.is_settled:
                sending.ticket = ticket
                ticket.forget = lambda: self._sends.pop(key, None)
            return Admitted(ticket, is_new=not ticket.is_logged)
        finally:
            if sending.ticket is None:
                self._sends.pop(key, None)
            sending.admitted.set()

    async def _repeated(self, scope: Scope, message_id: str, digest: bytes) -> Repeated | None:
        """Return what came of a message that was taken in before."""
        receipt = await self._store.receipt(scope, message_id)
        if receipt is None:
            return None
        _check_digest(receipt.digest, digest)
        if receipt.reply:
            return Repeated(reply=decode(receipt.reply, Message))
        began = receipt.turn == 1
        elsewhere = self._executor.elsewhere
        ticket = await elsewhere.ticket_of(receipt.task_id, "" if began else message_id)
        return Repeated(task_id=receipt.task_id, began=began, ticket=ticket)

    async def _take_once(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        digest: bytes,
        logged: bool,
        shown: bool,
    ) -> ReplyHandle | None:
        """Take a message in with a receipt; nothing when another replica was quicker.

        Where there are other replicas the receipt is durable before the function runs.
        """
        shared = self._store.is_shared
        receipts = (Receipt(message_id=request.message.message_id, digest=digest),)
        try:
            ticket = await self._take(request, context, scope, receipts, logged or shared, shown)
        except DuplicateReceipt:
            return None
        if shared:
            await ticket.begun()
        return None if ticket.is_repeat else ticket

    async def _take(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        receipts: Sequence[Receipt],
        logged: bool,
        shown: bool,
    ) -> ReplyHandle:
        """Start the turn of a message, or log it for the task that it names."""
        push = self._push(request, context)
        if context.extensions:
            profile = self._executor.outlet.profiles.of(context.extensions)
            if profile is not None and profile.listens:
                request = await profile.receive(request, context)
        message = request.message
        if message.task_id:
            return await self._join(request, context, scope, receipts, push, shown)
        skill = self._agent.pick(message, request.metadata)
        if skill is None:
            skill = await self._agent.route(
                message, request.metadata, context.caller, self._executor.in_thread
            )
        self._check_modes(request, skill)
        configuration = request.configuration
        return self._executor.begin(
            Request(
                message=message,
                skill=skill,
                caller=kept(context.caller, self._agent.options.keep_claims),
                tenant=context.tenant,
                accepted_output_modes=configuration.accepted_output_modes if configuration else (),
                metadata=request.metadata,
                extensions=context.extensions,
            ),
            scope=scope,
            context_id=message.context_id or new_id(),
            logged=skill.replies == "task" or (logged and skill.replies is None),
            receipts=receipts,
            push=push,
        )

    def _push(self, request: SendMessageRequest, context: CallContext) -> PushRecord | None:
        """Return the webhook that comes with a message, checked before anything is done."""
        config = request.configuration and request.configuration.task_push_notification_config
        if not config:
            return None
        if not self._agent.push_notifications:
            raise PushNotificationNotSupportedError(
                "this agent sends no push notifications; leave out "
                "configuration.taskPushNotificationConfig"
            )
        at = "configuration.taskPushNotificationConfig."
        if config.task_id and request.message.task_id not in ("", config.task_id):
            invalid(f"{at}taskId", "the task of the message, or left out")
        return validated(config, self._executor.push.egress, version=context.version, at=at)

    def _check_modes(self, request: SendMessageRequest, skill: Skill) -> None:
        """Refuse what the skill cannot take, and whom it has nothing to give that they accept."""
        agent, configuration = self._agent, request.configuration
        _check_parts(request.message, skill.input_modes or agent.input_modes)
        if configuration is not None and configuration.accepted_output_modes:
            offered = skill.output_modes or agent.output_modes
            accepted = configuration.accepted_output_modes
            if not gives(offered, accepted):
                raise ContentTypeNotSupportedError(
                    f"configuration.acceptedOutputModes has {', '.join(accepted)[:200]}; "
                    f"this agent gives {', '.join(offered)}",
                    metadata={"supported": ", ".join(offered)},
                )

    async def _skill_of(self, record: TaskRecord) -> Skill:
        """Return the skill that a task is worked on by."""
        agent = self._agent
        if len(agent.skills) == 1:
            return agent.default_skill
        first = await self._store.private_records(record.task.id, [Kind.TURN], limit=1)
        return agent.skills.get(facts_of(first).skill, agent.default_skill)

    async def _join(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        receipts: Sequence[Receipt],
        push: PushRecord | None,
        shown: bool,
    ) -> ReplyHandle:
        """Log a message for the task that it names (E2)."""
        message, configuration = request.message, request.configuration
        task_id = message.task_id
        try:
            record = await owned(
                self._store, task_id, scope, history=None if shown else 0, artifacts=shown
            )
        except TaskNotFoundError:
            raise _not_continued(task_id) from None
        if message.context_id and message.context_id != record.task.context_id:
            invalid(
                "message.contextId",
                f"the task {task_id} belongs to another context; "
                "leave contextId out, or give the task's own",
            )
        if record.task.state.is_terminal:
            raise ended(task_id)
        self._check_modes(request, await self._skill_of(record))
        self._executor.check_room()
        entry = new_id()
        message = msgspec.structs.replace(message, context_id=record.task.context_id)
        received = Received(
            entry=entry,
            message=message,
            accepted_output_modes=configuration.accepted_output_modes if configuration else (),
            extensions=tuple(sorted(context.extensions)),
            caller=record_of(kept(context.caller, self._agent.options.keep_claims)),
        )
        append = Append(
            task_id=task_id,
            events=(received,),
            expected_seq=None,
            turn=record.turn,
            scope=scope,
            receipts=[msgspec.structs.replace(r, task_id=task_id) for r in receipts],
            pushes=(push,) if push is not None else (),
            place=self._executor.place_for(record),
            max_waiting=self._executor.options.max_waiting_messages,
        )
        ticket = self._executor.expect(task_id, entry)
        ticket.found = record
        try:
            await self._executor.errand(self._deliver(append, ticket))
        except TaskEnded:
            raise ended(task_id) from None
        except UnknownTask:
            raise _not_continued(task_id) from None
        except TooManyWaiting as error:
            raise OverloadedError(
                f"{error.limit} messages wait on the task already; send this one when it has "
                "taken some of them",
                retry_after=1,
            ) from None
        except TooManyPushes:
            raise too_many_pushes("configuration.taskPushNotificationConfig") from None
        return ticket

    async def _deliver(self, append: Append, ticket: ReplyHandle) -> None:
        try:
            ticket.received_at = await self._store.append(append)
            if append.pushes:
                self._executor.push.watch(append.task_id, append.scope)
            self._executor.deliver(ticket)
        finally:
            self._executor.expected.pop(ticket.entry, None)


async def owned(
    store: TaskStore,
    task_id: str,
    scope: Scope,
    *,
    history: int | None = 0,
    artifacts: bool = False,
) -> TaskRecord:
    """Return a task of this scope, with so many of its last messages, and its artifacts or not.

    Raises ``TaskNotFoundError`` for any other, of which nothing is read.
    """
    record = await store.load(task_id, scope=scope, history=history, artifacts=artifacts)
    if record is None:
        raise not_found(task_id)
    return record


def invalid(field: str, description: str) -> NoReturn:
    """Refuse a request because of one field, named as on the wire."""
    raise InvalidParamsError(
        f"{field}: {description}", violations=(FieldViolation(field, description),)
    )


def not_found(task_id: str) -> TaskNotFoundError:
    """Return the error for a task that is not there, or not the caller's."""
    return TaskNotFoundError(
        f"there is no task {task_id[:100]!r} here for this caller",
        metadata={"taskId": task_id[:100]},
    )


def _not_continued(task_id: str) -> TaskNotFoundError:
    """Return the error for a message to such a task: older callers choose the ids of new ones."""
    error = not_found(task_id)
    words = "the agent chooses the ids of tasks, so leave it out to begin one"
    return TaskNotFoundError(f"{error.message}; {words}", metadata=error.metadata)


def too_many_pushes(field: str) -> InvalidParamsError:
    """Return the error for a push notification configuration that a task has no room for."""
    description = (
        f"the task has {MAX_PUSHES} push notification configurations, and may not have more; "
        "delete one, or replace one by giving its id"
    )
    return InvalidParamsError(
        f"{field}: {description}", violations=(FieldViolation(field, description),)
    )


def check_history(length: int | None, field: str) -> None:
    """Refuse a history length that is none (specification §3.2.4)."""
    if length is not None and length < 0:
        invalid(field, "0 for none, a positive number for the last messages, or left out for all")


def _check(request: SendMessageRequest) -> None:
    if request.message.role is not Role.USER:
        invalid("message.role", "a message to an agent has the role ROLE_USER")
    configuration = request.configuration
    if configuration is not None:
        check_history(configuration.history_length, "configuration.historyLength")


def _digest(request: SendMessageRequest) -> bytes:
    """Return what tells a message from others of its id, over whichever binding it comes."""
    if request.configuration == SendMessageConfiguration():
        request = msgspec.structs.replace(request, configuration=None)
    return hashlib.sha256(encode(request)).digest()


def _check_digest(before: bytes, now: bytes) -> None:
    if before != now:
        invalid(
            "message.messageId",
            "this id was used for another message; a repeated message is the same in all "
            "fields, a new one has an id of its own",
        )


def _check_parts(message: Message, modes: Sequence[str]) -> None:
    if not modes:
        return
    for index, part in enumerate(message.parts):
        if part.is_file and not part.media_type:
            continue  # mediaType is optional (§4.1.6): a file of an unknown type may be of any
        if not takes(modes, part):
            media_type = media_type_of(part)
            raise ContentTypeNotSupportedError(
                f"message.parts[{index}] is {media_type}; this agent takes {', '.join(modes)}",
                metadata={"mediaType": media_type, "supported": ", ".join(modes)},
            )
