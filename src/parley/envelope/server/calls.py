"""From a REQUEST to the call of an agent: the operation, its parameters, its context.

A REQUEST goes the way of a request of any binding, through the ``Dispatcher``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any

import msgspec
from starlette.types import Scope

from parley.envelope.answers import operation_of, read_operation
from parley.envelope.errors import DeadlineExceeded, MessageIdReused, UnknownAction
from parley.envelope.messages import OPERATION_PREFIX, Envelope, RequestPayload, SubType
from parley.envelope.server.directory import MessageContext
from parley.extensions.declared import schemas_on
from parley.model.cards import AgentCard
from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
    VersionNotSupportedError,
)
from parley.model.extensions import CALL_CHAIN, IDEMPOTENT_SEND
from parley.model.operations import BY_NAME, SKILL_KEY, Operation, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.model.service import NO_TRACE, TraceContext
from parley.model.struct import Timestamp
from parley.server.added_bindings import SeenFromScope
from parley.server.dispatch import Parameters, ServiceCall
from parley.server.endpoint import Endpoint, Interfaces
from parley.server.http.exchange import ServedEndpoint
from parley.server.request_fields import read_trace
from parley.wire import versions

_SEND = BY_NAME["SendMessage"]
_STREAM = BY_NAME["SendStreamingMessage"]
_ALWAYS = (CALL_CHAIN,)
_OF_SKILLS = (IDEMPOTENT_SEND, *_ALWAYS)
_CLOCKS_DIFFER = 0.005
_LONGEST = timedelta(days=366)
_OF_MESSAGES = ("message.", "metadata.", "configuration.", "payload.")


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """A REQUEST that is answered by a call.

    ``is_skill``: its action is a skill, not an operation. ``began`` and ``ends`` are times of the
    event loop; ``ends`` is ``None`` without a timeout.
    """

    request: Envelope
    call: ServiceCall
    is_skill: bool
    began: float
    ends: float | None = None

    @property
    def payload(self) -> RequestPayload:
        """What is asked for."""
        return payload_of(self.request)

    @property
    def is_command(self) -> bool:
        """Whether a RESPONSE ``accepted`` comes first, and the end is an EVENT."""
        return self.request.message.sub_type == SubType.COMMAND

    @property
    def is_late(self) -> bool:
        """Whether the timeout is over, also by the clock of the turn, which has whole ms."""
        now = asyncio.get_running_loop().time()
        return self.ends is not None and now >= self.ends - _CLOCKS_DIFFER


class Calls:
    """Makes calls of one agent, or of one tenant of an endpoint, out of REQUESTs.

    ``agent`` is that one, whose guard admits the messages: other agents behind the same address
    have bindings of their own. Its public card is read at the first message.
    """

    def __init__(self, served: ServedEndpoint, agent: Endpoint, tenant: str = "") -> None:
        self._served = served
        self.agent = agent
        self._tenant = tenant
        self._card: Callable[[Interfaces], AgentCard] | None = agent.card

    @cached_property
    def skills(self) -> frozenset[str]:
        """The skills on the public card."""
        skills = () if self._card is None else self._card(()).skills
        return frozenset(skill.id for skill in skills)

    @cached_property
    def _of_text(self) -> frozenset[str]:
        """The skills that take messages as they are, without a schema."""
        schemas = {} if self._card is None else schemas_on(self._card(()))
        typed = {id for id, schema in schemas.items() if schema.input is not None}
        return self.skills - typed

    def operation_of(self, request: Envelope) -> tuple[Operation, bool]:
        """Return the operation that a REQUEST is for, and whether its action is a skill.

        Raises ``UnknownAction`` for an operation that neither A2A nor an extension has.
        """
        payload = payload_of(request)
        action = payload.action
        if not action.startswith(OPERATION_PREFIX):
            # A command is answered while the turn goes on, so it needs the events.
            streams = payload.metadata.stream or request.message.sub_type == SubType.COMMAND
            is_silent = request.message.sub_type == SubType.NOTIFICATION
            return (_STREAM if streams and not is_silent else _SEND), True
        name = action.removeprefix(OPERATION_PREFIX)
        known = self._served.dispatcher.extension_method(name, self._tenant)
        operation = known or operation_of(action)
        assert operation is not None
        if operation is _SEND and request.message.sub_type == SubType.COMMAND:
            operation = _STREAM
        if operation is _STREAM and request.message.sub_type == SubType.NOTIFICATION:
            operation = _SEND
        return operation, False

    async def count(self, context: MessageContext) -> None:
        """Count a message that is no call of the agent against the rates of its caller.

        It counts as SendMessage does. Raises ``LimitExceeded``.
        """
        limits = self.agent.limits
        if limits is None:
            return
        caller, rights = context.caller, self.agent.authorization
        if rights is not None:
            caller = rights.own_caller(caller)
        addresses = SeenFromScope(self._served, context.scope)
        grant = limits.begin(_SEND.name, caller, addresses)
        grant.of_tenant(self._tenant)
        if not grant.is_settled:
            await grant.settle()

    def begin(self, request: Envelope, context: MessageContext) -> Exchanged:
        """Return the call that a REQUEST asks for. Raises ``A2AError``."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        payload = payload_of(request)
        metadata = payload.metadata
        operation, is_skill = self.operation_of(request)
        if metadata.stream and not operation.streaming:
            self._refuse_stream(request, operation)
        if metadata.after is not None and not operation.streaming:
            raise _invalid(
                "payload.metadata.after",
                "goes on with EVENTs: ask for them with metadata.stream or the subType command, or "
                f"with the action {OPERATION_PREFIX}SubscribeToTask",
            )
        ends, deadline = _ends(metadata.timeout, began, context.deadline)
        given = {name.lower(): value for name, value in metadata.service_parameters.items()}
        _check_version(given)
        is_silent = request.message.sub_type == SubType.NOTIFICATION
        reply_timeout = 0.0 if is_silent else None if ends is None else max(0.0, ends - began)
        parameters = Parameters(
            version=versions.LATEST,
            caller=context.caller,
            extensions=self._extensions(given, context, is_skill=is_skill),
            tenant=self._tenant,
            last_event_id=None if metadata.after is None else str(metadata.after),
            trace=_trace(given) or context.trace,
            reply_timeout=reply_timeout,
            deadline=deadline,
            sender=request.source.agent_id,
            is_signed=context.is_signed,
            addresses=SeenFromScope(self._served, context.scope),
        )
        if is_skill:
            takes_text = payload.action in self._of_text
            call = self._served.dispatcher.call(
                operation, parameters, lambda: _message(request, takes_text=takes_text)
            )
        else:
            call = self._served.dispatcher.call(
                operation, parameters, lambda: self._read(operation, payload)
            )
        return Exchanged(request=request, call=call, is_skill=is_skill, began=began, ends=ends)

    def _read(self, operation: Operation, payload: RequestPayload) -> Any:
        """Return the request of an operation. Raises ``A2AError``."""
        request = read_operation(operation, payload.parameters)
        tenant = getattr(request, "tenant", "")  # methods of extensions may do without one
        if tenant and self._served.dispatcher.endpoint(tenant).key != self.agent.key:
            raise _invalid("tenant", f"there is no tenant {tenant[:100]!r} here")
        return request

    def _refuse_stream(self, request: Envelope, operation: Operation) -> None:
        if request.message.sub_type == SubType.NOTIFICATION:
            raise _invalid("payload.metadata.stream", "a notification gets no EVENTs: leave it out")
        raise _invalid(
            "payload.metadata.stream",
            f"{OPERATION_PREFIX}{operation.name} has one answer, and no EVENTs: leave it out",
        )

    def _extensions(
        self, given: Mapping[str, str], context: MessageContext, *, is_skill: bool
    ) -> tuple[str, ...]:
        names = [item.strip() for item in given.get("a2a-extensions", "").split(",")]
        asked = header_values(context.scope, b"a2a-extensions")
        # The id of an operation's message is A2A's: it is asked for as over other bindings.
        ours = _OF_SKILLS if is_skill else _ALWAYS
        return tuple(dict.fromkeys([*ours, *asked, *[name for name in names if name]]))


def payload_of(request: Envelope) -> RequestPayload:
    """Return the payload of a REQUEST. Raises ``InvalidRequestError`` for another one."""
    if not isinstance(request.payload, RequestPayload):
        raise InvalidRequestError("the payload of a REQUEST has an action")
    return request.payload


def in_terms_of_messages(error: A2AError, request: Envelope) -> A2AError:
    """Return the error of a skill's message in terms of its REQUEST: its action, its parameters."""
    if error.is_remote or not isinstance(error, InvalidParamsError):
        problem = error.metadata.get("problem")
        if problem == "deadline" and isinstance(error, UnsupportedOperationError):
            return DeadlineExceeded("the timeout of the request was over before it began")
        return error
    fields = {violation.field for violation in error.violations}
    if f"message.metadata.{SKILL_KEY}" in fields:
        action = payload_of(request).action[:100]
        return UnknownAction(
            f"there is no action {action!r}: {error.message}; operations of A2A begin with "
            f"{OPERATION_PREFIX!r}"
        )
    if "message.messageId" in fields and "another message" in error.message:
        return MessageIdReused(
            "this messageId was used for another message; a repeated message has the same action, "
            "parameters, contextId and taskId, a new one an id of its own",
            violations=(FieldViolation("messageId", "an id that no other message has"),),
        )
    renamed = tuple(
        FieldViolation(_renamed(violation.field), violation.description)
        for violation in error.violations
    )
    changed = type(error)(error.message, metadata=error.metadata, violations=renamed)
    changed.retry_after, changed.details = error.retry_after, error.details
    return changed


def _renamed(field: str) -> str:
    """Return the path of a field of a message in its REQUEST; others are parameters."""
    if field in ("message.contextId", "message.taskId"):
        return f"payload.metadata.{field.removeprefix('message.')}"
    if field == "message.messageId":
        return "messageId"
    if field == "Last-Event-ID":
        return "payload.metadata.after"
    if field == "tenant" or field.startswith(_OF_MESSAGES):
        return field
    separator = "" if not field or field.startswith("[") else "."
    return f"payload.parameters{separator}{field}"


def _message(request: Envelope, *, takes_text: bool) -> SendMessageRequest:
    """Return the message that the action of a skill is: one data part.

    A text is a text part, and so is ``{"text": ...}`` for a skill without a schema.
    """
    payload = payload_of(request)
    parameters, metadata = payload.parameters, payload.metadata
    text = parameters
    if takes_text and isinstance(parameters, dict) and parameters.keys() == {"text"}:
        text = parameters["text"]
    part = Part(text=text) if isinstance(text, str) else Part(data=parameters)
    return SendMessageRequest(
        message=Message(
            message_id=request.message_id,
            context_id=metadata.context_id,
            task_id=metadata.task_id,
            role=Role.USER,
            parts=(part,),
        ),
        metadata={SKILL_KEY: payload.action},
    )


def _ends(
    timeout: int | None, began: float, deadline: float | None
) -> tuple[float | None, Timestamp | None]:
    """Return when a request ends, as a time of the event loop and as a timestamp."""
    ends = deadline
    if timeout is not None:
        given = began + min(timeout / 1000, _LONGEST.total_seconds())
        ends = given if ends is None else min(ends, given)
    if ends is None:
        return None, None
    return ends, Timestamp.of(Timestamp.now() + timedelta(seconds=ends - began))


def _check_version(given: Mapping[str, str]) -> None:
    """Raise ``VersionNotSupportedError`` for service parameters of another version of A2A."""
    named = given.get("a2a-version", "").strip()
    if named and versions.requested(named) != versions.LATEST:
        raise VersionNotSupportedError(
            f"operations over the envelope protocol are those of A2A {versions.LATEST}",
            metadata={"requestedVersion": named[:40], "supportedVersions": versions.LATEST},
        )


def _trace(given: Mapping[str, str]) -> TraceContext:
    if "traceparent" not in given:
        return NO_TRACE
    states = [given["tracestate"]] if "tracestate" in given else []
    return read_trace([given["traceparent"]], states)


def _invalid(field: str, description: str) -> InvalidParamsError:
    return InvalidParamsError(
        f"{field}: {description}", violations=(FieldViolation(field, description),)
    )


def header_values(scope: Scope, name: bytes) -> tuple[str, ...]:
    """Return the items of headers that are lists with commas."""
    found: Iterable[bytes] = (value for key, value in scope["headers"] if key == name)
    items = [item.strip() for value in found for item in value.decode("latin-1").split(",")]
    return tuple(item for item in items if item)
