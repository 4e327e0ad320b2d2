"""Admission of messages: check a message, then create its task, or add it to its existing task.

With ``urn:parley:idempotent-send:v1`` a repeated message is admitted once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import msgspec
from msgspec.structs import replace

from parley.engine.caller import ChainCheck, kept, record_of
from parley.engine.description import AgentDescription
from parley.engine.executor import AgentExecutor
from parley.engine.handoff import is_handed_over
from parley.engine.replies import RemoteReplies, ReplyHandle, ended
from parley.engine.routing import HiddenSkills, RoutedMessage, route, skill_elsewhere, skill_of
from parley.engine.service.checks import (
    cannot_join,
    check_history,
    check_modes,
    invalid,
    owned,
    read_inputs,
    too_many_pushes,
)
from parley.engine.skill import Skill
from parley.engine.turn.attempt import Request
from parley.engine.turn.replay import first_turn
from parley.engine.turn.task_writer import span_attributes
from parley.extensions.call_chain import Chain, with_deadline
from parley.extensions.profile import Profile
from parley.extensions.push_delivery import PushDelivery
from parley.files.objects import FilesUnavailable
from parley.files.turn_files import TurnFiles
from parley.model.errors import (
    OverloadedError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)
from parley.model.extensions import CALL_CHAIN, IDEMPOTENT_SEND, PUSH_DELIVERY
from parley.model.ids import new_id
from parley.model.operations import (
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from parley.model.parts import Message, Role
from parley.model.service import ANONYMOUS, CallContext
from parley.model.struct import decode, encode
from parley.observe import tracing
from parley.push.proofs import validated
from parley.security.authorization import Authorization, access_of
from parley.security.limits.agent_limits import AgentLimits
from parley.security.limits.counters import AgentNames, StoredNames
from parley.store.events import MessageReceived, RecordKind, Scope
from parley.store.protocols.errors import (
    DuplicateReceipt,
    TaskEnded,
    TooManyPushes,
    TooManyWaiting,
    UnknownTask,
)
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import Append, TaskRecord
from parley.store.protocols.webhooks import PushRecord
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.engine")


class IncomingMessage(msgspec.Struct, gc=False):
    """A message on its way to the executor, with the results of the admission steps.

    ``logged``: the task is stored before the function runs. ``with_task``: the reply's handle has
    the whole named task, as it was before the message. ``is_elsewhere``: the conversation was
    handed over to another agent. ``may_be_logged``: the log may already have events of the
    message's task.
    """

    request: SendMessageRequest
    context: CallContext
    scope: Scope
    logged: bool = False
    with_task: bool = False
    receipts: Sequence[Receipt] = ()
    push: PushRecord | None = None
    chain: Chain | None = None
    joined: TaskRecord | None = None
    is_elsewhere: bool = False
    skill: Skill = cast("Skill", None)  # set by a later step
    inputs: dict[str, Any] | None = None
    task_id: str = ""
    may_be_logged: bool = False


AdmissionStep = Callable[[IncomingMessage], Awaitable[None] | None]
"""A step returns an awaitable, or ``None`` if it is done. It raises ``A2AError`` to reject."""


class Admission:
    """Passes the messages to one agent on to its executor, one turn for each.

    A message passes the ``steps`` in their order, on every binding, whether it begins a task or
    continues one. ``keeps_addresses``: the address to which a message was sent becomes the turn's
    ``base_url``. ``files`` stores the files that messages name by reference. ``hidden`` are the
    hidden skills, if there are any. ``limits`` bounds the messages of callers. Maintenance windows,
    and the number of concurrent requests of a skill, apply to messages that begin tasks.
    """

    def __init__(
        self,
        agent: AgentDescription,
        executor: AgentExecutor,
        store: TaskStore,
        *,
        keeps_addresses: bool = True,
        files: TurnFiles | None = None,
        hidden: HiddenSkills | None = None,
        limits: AgentLimits | None = None,
    ) -> None:
        self._hidden = hidden
        self._limits = limits
        self._agent = agent
        self._executor = executor
        self._store = store
        self._once = AgentNames(StoredNames(store), agent.key)
        self._gates = () if agent.rules.gates is None else agent.rules.gates(store.now)
        self._keeps_addresses = keeps_addresses
        self._has_logged_unclear = False
        self._chains = ChainCheck(store, agent.key, agent.execution.max_hops)
        self._files = files
        self.steps = [*self._steps_of(agent)]

    def _steps_of(self, agent: AgentDescription) -> Iterator[AdmissionStep]:
        yield self._read_request
        if self._gates:
            yield self._pass_gates  # before the router is called
        if agent.handoffs is not None:
            yield self._find_handoff
        yield self._choose_skill
        if agent.authorization is not None:
            yield partial(self._authorize, agent.authorization)
        if self._hidden is not None:
            yield partial(_check_joined_skill, self._hidden)
        yield self._check_modes
        if self._limits is not None:
            yield partial(_count, self._limits)
        yield self._read_inputs
        if self._files is not None:
            yield self._attach_files
        if self._gates:
            yield self._pass_gates_of_skill

    def admit(self, m: IncomingMessage) -> ReplyHandle | Coroutine[Any, Any, ReplyHandle]:
        """Create the task of a message, or add the message to the task that it names.

        This is done at once, or by the returned coroutine. Raises ``A2AError`` for a rejected
        message, and ``StoreError``.
        """
        for step in self.steps:
            if (pending := step(m)) is not None:
                return self._admit_later(m, pending, step)
        return self._submit(m) if m.joined is None else self._join(m, m.joined)

    async def _admit_later(
        self, m: IncomingMessage, pending: Awaitable[None], begun: AdmissionStep
    ) -> ReplyHandle:
        with tracing.spanned("admission", parent=m.context.trace):
            await pending
            for step in self.steps[self.steps.index(begun) + 1 :]:
                if (later := step(m)) is not None:
                    await later
            if m.joined is not None:
                return await self._join(m, m.joined)
        return self._submit(m)

    # -- the steps -----------------------------------------------------------------------------

    def _read_request(self, m: IncomingMessage) -> Awaitable[None] | None:
        """Reject a message that no agent accepts; read its webhook, extensions and task."""
        check_message(m)
        configuration, extensions, profile = m.request.configuration, m.context.extensions, None
        if configuration is not None and configuration.task_push_notification_config:
            self._read_webhook(m, configuration.task_push_notification_config)
        if extensions:
            profile = self._executor.output_filters.profiles.of(extensions)
            if profile is not None and not profile.has_receivers:
                profile = None
        if profile is not None or m.request.message.task_id or CALL_CHAIN in extensions:
            return self._prepare(m, profile)
        return None

    def _read_webhook(self, m: IncomingMessage, config: TaskPushNotificationConfig) -> None:
        if not self._agent.push_notifications:
            raise PushNotificationNotSupportedError(
                "this agent sends no push notifications; leave out "
                "configuration.taskPushNotificationConfig"
            )
        at = "configuration.taskPushNotificationConfig."
        if config.task_id and m.request.message.task_id not in ("", config.task_id):
            raise invalid(f"{at}taskId", "the task of the message, or left out")
        sender = self._executor.push
        m.push = validated(
            config, sender.egress, version=m.context.version, at=at, proofs=sender.proofs
        )
        if PUSH_DELIVERY in m.context.extensions:
            options = PushDelivery.of(m.request)
            if options is not None:
                m.push = replace(m.push, options=options)

    async def _prepare(self, m: IncomingMessage, profile: Profile | None) -> None:
        """Apply active extensions to the message, check its chain of calls, and load its task."""
        context = m.context
        if profile is not None:
            m.request = await profile.receive(m.request, replace(context, once=self._once))
        if CALL_CHAIN in context.extensions:
            if context.deadline is not None:
                m.request = with_deadline(m.request, context.deadline)
            m.chain = await self._chains.admit(m.request)
        if m.request.message.task_id:
            await self._load_task(m)

    async def _load_task(self, m: IncomingMessage) -> None:
        message, configuration = m.request.message, m.request.configuration
        task_id = message.task_id
        history: int | None = 0
        if m.with_task:
            history = configuration.history_length if configuration is not None else None
        try:
            record = await owned(
                self._store, task_id, m.scope, history=history, artifacts=m.with_task
            )
        except TaskNotFoundError:
            raise cannot_join(task_id) from None
        if message.context_id and message.context_id != record.stored.context_id:
            raise invalid(
                "message.contextId",
                f"the task {task_id} belongs to another context; "
                "leave contextId out, or give the task's own",
            )
        if record.state.is_terminal:
            raise ended(task_id)
        m.joined, m.task_id = record, task_id
        m.skill = await skill_at_work(self._agent, self._store, record)

    def _pass_gates(self, m: IncomingMessage) -> None:
        if m.joined is None:
            for gate in self._gates:
                gate.check("")

    def _find_handoff(self, m: IncomingMessage) -> Awaitable[None] | None:
        begins = m.joined is None and m.request.message.context_id
        return self._ask_for_handoff(m) if begins else None

    async def _ask_for_handoff(self, m: IncomingMessage) -> None:
        context_id = m.request.message.context_id
        m.is_elsewhere = await is_handed_over(self._store, m.scope, context_id)

    def _choose_skill(self, m: IncomingMessage) -> Awaitable[None] | None:
        """Choose the skill of a message, or call the agent's router."""
        if m.joined is not None:
            return None
        skill: Skill | None
        if m.is_elsewhere:
            skill = skill_elsewhere(
                self._agent, m.request.message, m.request.metadata, self._hidden, m.context.caller
            )
        else:
            skill = skill_of(
                self._agent,
                m.request.message,
                m.request.metadata,
                self._hidden,
                m.context.caller,
                self._log_unclear,
            )
        if skill is None:
            return self._route(m)
        m.skill = skill
        return None

    async def _route(self, m: IncomingMessage) -> None:
        """Call the agent's router for a message that names no skill."""
        metadata = dict(m.request.metadata or {})
        routed = RoutedMessage(m.request.message, metadata, m.context.caller)
        m.skill = await route(self._agent, routed, self._executor.in_thread)
        if self._hidden is not None:
            self._hidden.check(m.skill, m.context.caller)

    def _authorize(self, rules: Authorization, m: IncomingMessage) -> Awaitable[None] | None:
        """Reject a message to a skill that its sender may not use, and call the policy."""
        if m.skill is not None:
            rules.check_skill(m.skill.id, m.context.caller)
        if rules.policy is None:
            return None
        access = access_of(
            "SendMessage",
            m.request,
            m.context.caller,
            agent=self._agent.key,
            tenant=m.context.tenant,
            skill="" if m.skill is None else m.skill.id,
        )
        return rules.permit(access)

    def _check_modes(self, m: IncomingMessage) -> None:
        if not m.is_elsewhere:
            check_modes(m.request, m.skill, self._agent)

    def _read_inputs(self, m: IncomingMessage) -> None:
        if m.joined is not None:
            self._executor.check_capacity()
        elif m.skill.inputs is not None and not m.is_elsewhere:
            m.inputs = read_inputs(m.request.message, m.skill)

    def _attach_files(self, m: IncomingMessage) -> Awaitable[None] | None:
        """Attach the files that a message names to its task, before the task has the message."""
        files = self._files
        assert files is not None
        for part in m.request.message.parts:
            if part.url is not None and files.is_own(part):
                m.task_id = m.task_id or new_id(self._store.now())
                return _attach(files, m)
        return None

    def _pass_gates_of_skill(self, m: IncomingMessage) -> None:
        if m.joined is None:
            for gate in self._gates:
                gate.check(m.skill.id)

    # -- the executor --------------------------------------------------------------------------

    def _submit(self, m: IncomingMessage) -> ReplyHandle:
        """Submit a message to the executor, as the first of its task."""
        request, context, skill = m.request, m.context, m.skill
        if (observed := context.observed) is not None and observed.facts is not None:
            observed.facts["skill"] = skill.id
        message, configuration = request.message, request.configuration
        handle = self._executor.submit(
            Request(
                message=message,
                skill=skill,
                caller=ANONYMOUS
                if context.caller is ANONYMOUS
                else kept(context.caller, self._agent.retention.claims),
                tenant=context.tenant,
                accepted_output_modes=configuration.accepted_output_modes if configuration else (),
                metadata=request.metadata,
                extensions=context.extensions,
                base_url=context.base_url if self._keeps_addresses else "",
                trace=context.trace,
                inputs=m.inputs,
                chain=m.chain,
            ),
            scope=m.scope,
            context_id=message.context_id or new_id(),
            logged=skill.replies == "task" or (m.logged and skill.replies is None),
            holds=not m.with_task,
            receipts=m.receipts,
            push=m.push,
            task_id=m.task_id,
        )
        handle.awaits_task = m.logged
        for gate in self._gates:
            gate.hold(skill.id, handle)
        return handle

    def _log_unclear(self) -> None:
        """Log once that a message did not name one of several skills."""
        if not self._has_logged_unclear:
            self._has_logged_unclear = True
            log.warning(
                "a message to %r names none of its skills (%s), and its input fits several: %r "
                "answers, which is the first. Callers name a skill with "
                "send(..., skill=...), authors with @agent.skill(default=True) or @agent.router",
                self._agent.name,
                ", ".join(self._agent.skills),
                self._agent.default_skill.id,
            )

    async def authorize_repeat(self, m: IncomingMessage, task_id: str) -> None:
        """Reject a repeated message if its sender may not send it now.

        ``task_id`` names its task, if it has one. Raises ``A2AError`` and ``StoreError``.
        """
        authorization = self._agent.authorization
        if authorization is None:
            return
        record = None
        if task_id:
            record = await self._store.load(task_id, history=0, artifacts=False)
        if record is not None:
            m.skill = await skill_at_work(self._agent, self._store, record)
        elif not m.request.message.task_id and (pending := self._choose_skill(m)) is not None:
            await pending  # it had a direct reply, so no log has its skill
        if (pending := self._authorize(authorization, m)) is not None:
            await pending

    async def _join(self, m: IncomingMessage, record: TaskRecord) -> ReplyHandle:
        """Append a message to the log of the task that it names (E2)."""
        request, context = m.request, m.context
        message, configuration = request.message, request.configuration
        task_id = message.task_id
        entry = new_id()
        received = MessageReceived(
            entry=entry,
            message=replace(message, context_id=record.stored.context_id),
            accepted_output_modes=configuration.accepted_output_modes if configuration else (),
            extensions=tuple(sorted(context.extensions)),
            caller=record_of(kept(context.caller, self._agent.retention.claims)),
            base_url=context.base_url if self._keeps_addresses else "",
            metadata=_metadata_of(request),
            chain=_chain_of(request, context),
            trace=context.trace or None,
        )
        append = Append(
            task_id=task_id,
            events=(received,),
            expected_seq=None,
            turn=record.turn,
            scope=m.scope,
            receipts=[replace(each, task_id=task_id) for each in m.receipts],
            pushes=(m.push,) if m.push is not None else (),
            queue_key=self._executor.queue_key(record, context.caller),
            max_waiting=self._executor.options.max_waiting_messages,
        )
        handle = self._executor.expect(task_id, entry)
        handle.found = record
        try:
            await self._executor.in_background(self._deliver(append, handle))
        except TaskEnded:
            raise ended(task_id) from None
        except UnknownTask:
            raise cannot_join(task_id) from None
        except TooManyWaiting as error:
            raise OverloadedError(
                f"{error.limit} messages are waiting on the task already; send this one when some "
                "of them have been processed",
                retry_after=1,
            ) from None
        except TooManyPushes:
            raise too_many_pushes("configuration.taskPushNotificationConfig") from None
        return handle

    async def _deliver(self, append: Append, handle: ReplyHandle) -> None:
        try:
            with tracing.spanned("append", "client", span_attributes(append)):
                handle.received_at = await self._store.append(append)
            if append.pushes:
                self._executor.push.watch(append.task_id, append.scope)
            self._executor.deliver(handle)
        finally:
            self._executor.arriving.pop(handle.entry, None)


def check_message(m: IncomingMessage) -> None:
    """Reject a message that no agent accepts. Raises ``InvalidParamsError``."""
    if m.request.message.role is not Role.USER:
        raise invalid("message.role", "a message to an agent has the role ROLE_USER")
    if m.request.configuration is not None:
        check_history(m.request.configuration.history_length, "configuration.historyLength")


def _check_joined_skill(hidden: HiddenSkills, m: IncomingMessage) -> None:
    if m.joined is not None:
        hidden.check_joined(m.skill, m.context.caller)


def _count(limits: AgentLimits, m: IncomingMessage) -> Awaitable[None] | None:
    return limits.admit(m.request, m.context, m.skill.id, begins=m.joined is None)


async def _attach(files: TurnFiles, m: IncomingMessage) -> None:
    try:
        await files.attach(
            m.request.message.parts, tenant=m.scope.tenant, owner=m.scope.owner, task_id=m.task_id
        )
    except FilesUnavailable as error:
        raise OverloadedError(str(error), retry_after=1) from error


async def skill_at_work(agent: AgentDescription, store: TaskStore, record: TaskRecord) -> Skill:
    """Return the skill that works on a task. Raises ``StoreError``."""
    if len(agent.skills) == 1:
        return agent.default_skill
    first = await store.private_records(record.stored.task_id, [RecordKind.TURN], limit=1)
    return agent.skills.get(first_turn(first).skill, agent.default_skill)


def _metadata_of(request: SendMessageRequest) -> dict[str, Any] | None:
    """Return the metadata of a request for the log, without the chain of calls."""
    return {k: v for k, v in (request.metadata or {}).items() if k != CALL_CHAIN} or None


def _chain_of(request: SendMessageRequest, context: CallContext) -> dict[str, Any] | None:
    """Return the data of the checked chain of calls, for the log."""
    return (request.metadata or {}).get(CALL_CHAIN) if CALL_CHAIN in context.extensions else None


# -- idempotency ------------------------------------------------------------------------------
#
# Admit each message once (``urn:parley:idempotent-send:v1``): receipts, digests, repeats.


class Repeated(msgspec.Struct, frozen=True):
    """The result of an earlier admission of the same message: a direct ``reply``, or a task.

    ``began`` is true if the message began the task; ``handle`` waits for the turn that received it.
    """

    reply: Message | None = None
    task_id: str = ""
    began: bool = False
    handle: ReplyHandle | None = None


class _Sent(NamedTuple):
    """A message, with the key of its receipt: its id, and its sender if there are several."""

    message_id: str
    receipt_id: str
    digest: bytes

    @classmethod
    def of(cls, request: SendMessageRequest, sender: str) -> _Sent:
        message_id = receipt_id = request.message.message_id
        if sender:
            receipt_id = hashlib.sha256(f"{sender}\0{message_id}".encode()).hexdigest()
        return cls(message_id, receipt_id, _digest(request))


class _PendingSend(msgspec.Struct):
    """A message in progress that its caller may repeat before it has a reply."""

    digest: bytes
    admitted: asyncio.Event
    handle: ReplyHandle | None = None


class IdempotentAdmission:
    """Admits the messages to one agent; with the extension, each message id once.

    Repeats may be concurrent, and may reach other replicas. Without the extension, a repeated id is
    a new message.
    """

    def __init__(self, admission: Admission, store: TaskStore, replies: RemoteReplies) -> None:
        self._admission = admission
        self._store = store
        self._replies = replies
        self._pending: dict[tuple[Scope, str], _PendingSend] = {}

    def admit(
        self, m: IncomingMessage
    ) -> ReplyHandle | Coroutine[Any, Any, ReplyHandle | Repeated]:
        """Admit a message, or return the result of its earlier admission, at once or as a
        coroutine.

        Raises ``A2AError`` for a rejected message, and ``StoreError``.
        """
        if IDEMPOTENT_SEND not in m.context.extensions:
            return self._admission.admit(m)
        # With other replicas, the receipt is durable before the function runs.
        m.logged = m.logged or self._store.is_shared
        return self._admit_once(m, _Sent.of(m.request, m.context.sender))

    async def _admit_once(self, m: IncomingMessage, sent: _Sent) -> ReplyHandle | Repeated:
        check_message(m)
        key, digest = (m.scope, sent.receipt_id), sent.digest
        while (pending := self._pending.get(key)) is not None:
            _check_digest(pending.digest, digest)
            await pending.admitted.wait()
            if pending.handle is not None:
                first, m.may_be_logged = pending.handle, True
                await self._admission.authorize_repeat(m, first.task_id)
                return first
        pending = self._pending[key] = _PendingSend(digest, asyncio.Event())
        try:
            repeated = await self._repeated(m.scope, sent)
            if repeated is not None:
                await self._admission.authorize_repeat(m, repeated.task_id)
                return repeated
            handle = await self._admit_with_receipt(m, sent)
            if handle is None:
                repeated = await self._repeated(m.scope, sent)
                if repeated is not None:
                    return repeated
                raise OverloadedError("the message is being processed elsewhere", retry_after=1)
            if not handle.is_settled:
                pending.handle = handle
                handle.on_settled(lambda: self._pending.pop(key, None))
            m.may_be_logged = handle.is_logged
            return handle
        finally:
            if pending.handle is None:
                self._pending.pop(key, None)
            pending.admitted.set()

    async def _admit_with_receipt(self, m: IncomingMessage, sent: _Sent) -> ReplyHandle | None:
        """Admit a message; return ``None`` if another replica was faster."""
        m.receipts = (Receipt(message_id=sent.receipt_id, digest=sent.digest),)
        try:
            admitted = self._admission.admit(m)
            handle = admitted if isinstance(admitted, ReplyHandle) else await admitted
        except DuplicateReceipt:
            return None
        if self._store.is_shared:
            await handle.logged()
        return None if handle.is_repeat else handle

    async def _repeated(self, scope: Scope, sent: _Sent) -> Repeated | None:
        """Return the result of an earlier admission of the message."""
        receipt = await self._store.receipt(scope, sent.receipt_id)
        if receipt is None:
            return None
        _check_digest(receipt.digest, sent.digest)
        if receipt.reply:
            return Repeated(reply=decode(receipt.reply, Message))
        began = receipt.turn == 1
        handle = await self._replies.handle_for(receipt.task_id, "" if began else sent.message_id)
        return Repeated(task_id=receipt.task_id, began=began, handle=handle)


def _digest(request: SendMessageRequest) -> bytes:
    """Return a digest of the request, equal for all bindings."""
    if request.configuration == SendMessageConfiguration():
        request = msgspec.structs.replace(request, configuration=None)
    return hashlib.sha256(encode(request)).digest()


def _check_digest(before: bytes, now: bytes) -> None:
    if before != now:
        raise invalid(
            "message.messageId",
            "this id was used for another message; a repeated message must be equal in all "
            "fields, a new one has an id of its own",
        )
