"""Admit messages: check one, then begin its task, or join it to the task that it names."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.engine.caller import ChainCheck, kept, record_of
from parley.engine.description import AgentDescription
from parley.engine.executor import AgentExecutor
from parley.engine.handoff import is_handed_over
from parley.engine.replies import ReplyHandle, ended
from parley.engine.routing import HiddenSkills, RoutedMessage, route, skill_elsewhere, skill_of
from parley.engine.service.checks import (
    cannot_join,
    check_modes,
    invalid,
    owned,
    read_inputs,
    too_many_pushes,
)
from parley.engine.skill import Skill
from parley.engine.turn.attempt import Request
from parley.engine.turn.replay import first_turn
from parley.extensions.call_chain import Chain, with_deadline
from parley.extensions.push_delivery import PushDelivery
from parley.files.objects import FilesUnavailable
from parley.files.turn_files import TurnFiles
from parley.model.errors import (
    OverloadedError,
    PushNotificationNotSupportedError,
    TaskNotFoundError,
)
from parley.model.extensions import CALL_CHAIN, PUSH_DELIVERY
from parley.model.ids import new_id
from parley.model.operations import SendMessageRequest
from parley.model.parts import Message
from parley.model.service import ANONYMOUS, CallContext
from parley.push.proofs import validated
from parley.security.authorization import Authorization, access_of
from parley.security.limits.agent_limits import AgentLimits
from parley.security.limits.counters import AgentNames, StoredNames
from parley.store.events import MessageReceived, RecordKind, Scope
from parley.store.protocols.errors import TaskEnded, TooManyPushes, TooManyWaiting, UnknownTask
from parley.store.protocols.tables import Receipt
from parley.store.protocols.task_log import Append, TaskRecord
from parley.store.protocols.webhooks import PushRecord
from parley.store.task_store import TaskStore

log = logging.getLogger("parley.engine")


class Admission:
    """Hands the messages to one agent to its executor, one turn for each.

    ``keeps_addresses``: the address that a message was sent to is the turn's ``base_url``.
    ``files`` keeps what messages name by reference. ``hidden`` are the skills that not all see, if
    there are any. ``limits`` say how much callers may send. Maintenance windows, and the number of
    requests that a skill serves at once, hold for messages that begin tasks.
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

    async def begin_or_join(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        receipts: Sequence[Receipt],
        logged: bool,
        with_task: bool,
    ) -> ReplyHandle:
        """Begin the task of a message, or join the message to the task that it names.

        Raises ``A2AError`` for a message that is refused, and ``StoreError``.
        """
        agent = self._agent
        push = self._push(request, context) if request.configuration is not None else None
        chain = None
        if context.extensions:
            profile = self._executor.output_filters.profiles.of(context.extensions)
            if profile is not None and profile.has_receivers:
                request = await profile.receive(request, replace(context, once=self._once))
            if CALL_CHAIN in context.extensions:
                if context.deadline is not None:
                    request = with_deadline(request, context.deadline)
                chain = await self._chains.admit(request)
        message = request.message
        if message.task_id:
            return await self._join(request, context, scope, receipts, push, with_task)
        for gate in self._gates:
            gate.check("")  # before a router is asked
        skill: Skill | None
        elsewhere = False
        if agent.handoffs is not None and message.context_id:
            elsewhere = await is_handed_over(self._store, scope, message.context_id)
        if elsewhere:
            skill = skill_elsewhere(agent, message, request.metadata, self._hidden, context.caller)
        else:
            skill = self._skill_of(request, context)
        if skill is None:
            skill = await self._routed(request, context)
        if agent.authorization is not None:
            await self._authorize(agent.authorization, skill, request, context)
        if not elsewhere:
            check_modes(request, skill, agent)
        if self._limits is not None:
            await self._limits.admit(request, context, skill.id, begins=True)
        inputs = None if elsewhere or skill.inputs is None else read_inputs(message, skill)
        task_id = ""
        if self._has_files(message):
            task_id = new_id(self._store.now())
            await self._attach(message, scope, task_id)
        for gate in self._gates:
            gate.check(skill.id)
        handle = self._submit(
            request, context, scope, skill,
            inputs=inputs, chain=chain, receipts=receipts, push=push, logged=logged,
            holds=not with_task, task_id=task_id,
        )  # fmt: skip
        for gate in self._gates:
            gate.hold(skill.id, handle)
        return handle

    def begin_at_once(
        self, request: SendMessageRequest, context: CallContext, scope: Scope
    ) -> ReplyHandle | None:
        """Begin the task of a message, where nothing has to be waited for; else return ``None``.

        Nothing was done then. It has no check of its own: wherever ``begin_or_join`` asks more than
        which skill is meant, whether its sender has proved what that needs, whether the message
        fits it, and what is counted in this process, this returns ``None``.
        Raises ``A2AError`` for a message that is refused.
        """
        agent, message, configuration = self._agent, request.message, request.configuration
        if (
            message.task_id
            or context.extensions
            or (agent.authorization is not None and agent.authorization.policy is not None)
            or (self._limits is not None and not self._limits.admits_at_once)
            or self._gates
            or (agent.handoffs is not None and message.context_id)
            or (
                configuration is not None
                and (
                    configuration.return_immediately
                    or configuration.task_push_notification_config is not None
                )
            )
            or self._has_files(message)
        ):
            return None
        skill = self._skill_of(request, context)
        if skill is None:
            return None  # a router chooses it
        if agent.authorization is not None:
            agent.authorization.check_skill(skill.id, context.caller)
        check_modes(request, skill, agent)
        if self._limits is not None:
            self._limits.admit_at_once(request, context, skill.id)
        inputs = None if skill.inputs is None else read_inputs(message, skill)
        return self._submit(request, context, scope, skill, inputs=inputs, holds=True)

    def _submit(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        skill: Skill,
        *,
        inputs: dict[str, Any] | None,
        chain: Chain | None = None,
        receipts: Sequence[Receipt] = (),
        push: PushRecord | None = None,
        logged: bool = False,
        holds: bool = False,
        task_id: str = "",
    ) -> ReplyHandle:
        """Hand a message to the executor, as the first of its task.

        ``holds``: the caller waits for its end, and reads no stream (see ``AgentExecutor.submit``).
        """
        message, configuration = request.message, request.configuration
        return self._executor.submit(
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
                base_url=self._base_url(context),
                trace=context.trace,
                inputs=inputs,
                chain=chain,
            ),
            scope=scope,
            context_id=message.context_id or new_id(),
            logged=skill.replies == "task" or (logged and skill.replies is None),
            holds=holds,
            receipts=receipts,
            push=push,
            task_id=task_id,
        )

    def _skill_of(self, request: SendMessageRequest, context: CallContext) -> Skill | None:
        """Return the skill of a message, ``None`` if the router chooses it."""
        return skill_of(
            self._agent,
            request.message,
            request.metadata,
            self._hidden,
            context.caller,
            self._log_unclear,
        )

    def _log_unclear(self) -> None:
        """Say once in the log that a message did not say which of several skills it is for."""
        if not self._has_logged_unclear:
            self._has_logged_unclear = True
            log.warning(
                "a message to %r names none of its skills (%s), and its input does not tell which "
                "one is meant: %r answers, which is the first. Callers name a skill with "
                "send(..., skill=...), authors with @agent.skill(default=True) or @agent.router",
                self._agent.name,
                ", ".join(self._agent.skills),
                self._agent.default_skill.id,
            )

    async def _routed(self, request: SendMessageRequest, context: CallContext) -> Skill:
        """Return the skill that the agent's router chooses for a message that names none."""
        metadata = dict(request.metadata or {})
        routed = RoutedMessage(request.message, metadata, context.caller)
        skill = await route(self._agent, routed, self._executor.in_thread)
        if self._hidden is not None:
            self._hidden.check(skill, context.caller)
        return skill

    async def authorize_repeat(
        self, request: SendMessageRequest, context: CallContext, task_id: str
    ) -> None:
        """Refuse the answer of a repeated message to who may not send it now.

        ``task_id`` names its task, if it has one. Raises ``A2AError`` and ``StoreError``.
        """
        authorization = self._agent.authorization
        if authorization is None:
            return
        record = skill = None
        if task_id:
            record = await self._store.load(task_id, history=0, artifacts=False)
        if record is not None:
            skill = await skill_at_work(self._agent, self._store, record)
        elif not request.message.task_id:  # it had a direct reply: no log says the skill
            skill = self._skill_of(request, context)
            if skill is None:
                skill = await self._routed(request, context)
        await self._authorize(authorization, skill, request, context)

    async def _authorize(
        self,
        authorization: Authorization,
        skill: Skill | None,
        request: SendMessageRequest,
        context: CallContext,
    ) -> None:
        """Refuse a message to a skill that its sender may not use. Raises ``A2AError``."""
        if skill is not None:
            authorization.check_skill(skill.id, context.caller)
        access = access_of(
            "SendMessage",
            request,
            context.caller,
            agent=self._agent.key,
            tenant=context.tenant,
            skill="" if skill is None else skill.id,
        )
        await authorization.permit(access)

    def _base_url(self, context: CallContext) -> str:
        return context.base_url if self._keeps_addresses else ""

    def _has_files(self, message: Message) -> bool:
        """Return whether a message may name files of this server."""
        files = self._files
        if files is not None:
            for part in message.parts:
                if part.url is not None and files.is_own(part):
                    return True
        return False

    async def _attach(self, message: Message, scope: Scope, task_id: str) -> None:
        """Keep the files that a message names with its task, before the task has the message."""
        assert self._files is not None
        try:
            await self._files.attach(
                message.parts, tenant=scope.tenant, owner=scope.owner, task_id=task_id
            )
        except FilesUnavailable as error:
            raise OverloadedError(str(error), retry_after=1) from error

    def _push(self, request: SendMessageRequest, context: CallContext) -> PushRecord | None:
        """Return the webhook that comes with a message, checked first of all."""
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
            raise invalid(f"{at}taskId", "the task of the message, or left out")
        sender = self._executor.push
        push = validated(
            config, sender.egress, version=context.version, at=at, proofs=sender.proofs
        )
        if PUSH_DELIVERY not in context.extensions:
            return push
        options = PushDelivery.of(request)
        return push if options is None else replace(push, options=options)

    async def _join(
        self,
        request: SendMessageRequest,
        context: CallContext,
        scope: Scope,
        receipts: Sequence[Receipt],
        push: PushRecord | None,
        with_task: bool,
    ) -> ReplyHandle:
        """Log a message for the task that it names (E2)."""
        message, configuration = request.message, request.configuration
        task_id = message.task_id
        history: int | None = 0
        if with_task:
            history = configuration.history_length if configuration is not None else None
        try:
            record = await owned(self._store, task_id, scope, history=history, artifacts=with_task)
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
        skill = await skill_at_work(self._agent, self._store, record)
        if self._agent.authorization is not None:
            await self._authorize(self._agent.authorization, skill, request, context)
        if self._hidden is not None:
            self._hidden.check_joined(skill, context.caller)
        check_modes(request, skill, self._agent)
        if self._limits is not None:
            await self._limits.admit(request, context, skill.id, begins=False)
        self._executor.check_capacity()
        if self._has_files(message):
            await self._attach(message, scope, task_id)
        entry = new_id()
        received = MessageReceived(
            entry=entry,
            message=msgspec.structs.replace(message, context_id=record.stored.context_id),
            accepted_output_modes=configuration.accepted_output_modes if configuration else (),
            extensions=tuple(sorted(context.extensions)),
            caller=record_of(kept(context.caller, self._agent.retention.claims)),
            base_url=self._base_url(context),
            metadata=_metadata_of(request),
            chain=_chain_of(request, context),
            trace=context.trace or None,
        )
        append = Append(
            task_id=task_id,
            events=(received,),
            expected_seq=None,
            turn=record.turn,
            scope=scope,
            receipts=[msgspec.structs.replace(r, task_id=task_id) for r in receipts],
            pushes=(push,) if push is not None else (),
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
                f"{error.limit} messages wait on the task already; send this one when it has "
                "taken some of them",
                retry_after=1,
            ) from None
        except TooManyPushes:
            raise too_many_pushes("configuration.taskPushNotificationConfig") from None
        return handle

    async def _deliver(self, append: Append, handle: ReplyHandle) -> None:
        try:
            handle.received_at = await self._store.append(append)
            if append.pushes:
                self._executor.push.watch(append.task_id, append.scope)
            self._executor.deliver(handle)
        finally:
            self._executor.arriving.pop(handle.entry, None)


async def skill_at_work(agent: AgentDescription, store: TaskStore, record: TaskRecord) -> Skill:
    """Return the skill that works on a task. Raises ``StoreError``."""
    if len(agent.skills) == 1:
        return agent.default_skill
    first = await store.private_records(record.stored.task_id, [RecordKind.TURN], limit=1)
    return agent.skills.get(first_turn(first).skill, agent.default_skill)


def _metadata_of(request: SendMessageRequest) -> dict[str, Any] | None:
    """Return the metadata of a request, for the log, without the chain of calls."""
    return {k: v for k, v in (request.metadata or {}).items() if k != CALL_CHAIN} or None


def _chain_of(request: SendMessageRequest, context: CallContext) -> dict[str, Any] | None:
    """Return the data of the chain of calls, which was checked, for the log."""
    return (request.metadata or {}).get(CALL_CHAIN) if CALL_CHAIN in context.extensions else None
