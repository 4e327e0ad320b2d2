"""Questions of a task as data: questions with a JSON Schema, and requests for credentials.

See ``docs/reference/extensions/typed-questions.md`` and
``docs/reference/extensions/in-task-authorization.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from parley.model.cards import SecurityScheme
from parley.model.errors import FieldViolation
from parley.model.extensions import Extension
from parley.model.parts import Message, Part, text_of
from parley.model.struct import A2AStruct, Timestamp, encode, from_wire
from parley.model.tasks import Replied, Task, TaskState, TaskStatusUpdateEvent, reply_of

TYPED_QUESTIONS = "urn:parley:typed-questions:v1"

SCHEMA_MEDIA_TYPE = "application/schema+json"
"""The media type of the part with the schema of an answer."""


class Question(msgspec.Struct, frozen=True):
    """A question whose answer has a JSON Schema.

    ``problems`` are the faults of an earlier answer. A ``field`` in it is a path such as
    ``stops[0].city``, or ``$`` for the whole answer.
    """

    text: str
    schema: dict[str, Any]
    problems: tuple[FieldViolation, ...] = ()


def schema_part(schema: Mapping[str, Any], problems: Iterable[FieldViolation] = ()) -> Part:
    """Return the part of a question with the schema of its answer."""
    data: dict[str, Any] = {"schema": dict(schema)}
    if found := [{"field": each.field, "description": each.description} for each in problems]:
        data["problems"] = found
    return Part(data=data, media_type=SCHEMA_MEDIA_TYPE)


def question(asked: Task | Message | Replied) -> Question | None:
    """Return the question in a task or a message, if the question has a schema.

    Answer it with data that fits the schema: ``await remote.send(data=answer, task=task)``.
    """
    asked = reply_of(asked)
    if isinstance(asked, Task):
        message = asked.status.message if asked.state.is_interrupted else None
        if message is None:
            return None
        asked = message
    for part in reversed(asked.parts):
        if part.media_type == SCHEMA_MEDIA_TYPE or _is_schema(part.data):
            data = part.data
            if isinstance(data, dict) and isinstance(schema := data.get("schema"), dict):
                others = tuple(other for other in asked.parts if other is not part)
                return Question(text_of(others), schema, _problems(data.get("problems")))
    return None


def _is_schema(data: Any) -> bool:
    """Return whether data has the members of a question; 0.3 has no media types for data."""
    return isinstance(data, dict) and "schema" in data and data.keys() <= {"schema", "problems"}


def _problems(given: Any) -> tuple[FieldViolation, ...]:
    return tuple(
        FieldViolation(str(each.get("field", "$")), str(each.get("description", "")))
        for each in (given if isinstance(given, list) else ())
        if isinstance(each, dict)
    )


class TypedQuestions(Extension):
    """Questions of an agent may carry the JSON Schema of their answer.

    The schema is always sent. If the extension is active, the message of the question names it.
    """

    uri = TYPED_QUESTIONS
    description = "A question may have the JSON Schema of its answer, as a data part."

    def send(self, event: Any) -> Any:
        """Name the extension in the message of a question that has a schema."""
        return named_in_status(event, self.uri, SCHEMA_MEDIA_TYPE)


IN_TASK_AUTHORIZATION = "urn:parley:in-task-authorization:v1"

AUTH_MEDIA_TYPE = "application/vnd.parley.authorization-request+json"
"""The media type of the part that describes the needed credential."""

_MEMBER = "authorizationRequest"


class AuthRequest(A2AStruct, frozen=True, kw_only=True):
    """The credential that a task needs in order to continue, and the address to send it to.

    ``text`` is for people. ``scheme`` has the form of cards. A person opens ``authorization_url``
    and logs in; if it is empty, the credential is posted to ``callback`` before ``expires_at``
    (``RemoteAgent.authorize``). ``id`` identifies the operation within its task.
    """

    id: str
    scheme: SecurityScheme | None = None
    scopes: tuple[str, ...] = ()
    callback: str = ""
    authorization_url: str = ""
    expires_at: Timestamp | None = None
    text: str = ""

    def __repr__(self) -> str:
        return f"AuthRequest(id={self.id!r}, scopes={self.scopes!r})"


def request_part(request: AuthRequest) -> Part:
    """Return the message part with this request."""
    data = msgspec.json.decode(encode(replace(request, text="")))
    return Part(data={_MEMBER: data}, media_type=AUTH_MEDIA_TYPE)


def auth_request(asked: Task | Message | Replied) -> AuthRequest | None:
    """Return the structured request for a credential in an AUTH_REQUIRED task or a message, if any.

    Answer it with ``await remote.authorize(task, credential)``, or open its ``authorization_url``.
    """
    asked = reply_of(asked)
    if isinstance(asked, Task):
        message = asked.status.message if asked.state is TaskState.AUTH_REQUIRED else None
        if message is None:
            return None
        asked = message
    for part in reversed(asked.parts):
        data = part.data
        if isinstance(data, dict) and data.keys() == {_MEMBER}:
            others = tuple(other for other in asked.parts if other is not part)
            found = _read(data[_MEMBER])
            return None if found is None else replace(found, text=text_of(others))
    return None


def _read(given: Any) -> AuthRequest | None:
    if not isinstance(given, dict):
        return None
    try:
        return msgspec.convert(given, AuthRequest, dec_hook=from_wire)
    except (msgspec.ValidationError, ValueError):
        scheme = given.get("scheme")  # of an unknown kind
        if scheme is None:
            return None
        return _read({name: value for name, value in given.items() if name != "scheme"})


class InTaskAuthorization(Extension):
    """An AUTH_REQUIRED task may describe as data the needed credential and where to send it.

    The data is always sent. If the extension is active, the message names it.
    """

    uri = IN_TASK_AUTHORIZATION
    description = "A task names the credential that it needs, and accepts it at a callback address."

    def send(self, event: Any) -> Any:
        """Name the extension in a message that asks for a credential."""
        return named_in_status(event, self.uri, AUTH_MEDIA_TYPE)


def named_in_status(event: Any, uri: str, media_type: str) -> Any:
    """Return an event whose message names an extension if it has a part of a media type.

    Other events, and events whose message already names it, are returned unchanged.
    """
    if not isinstance(event, TaskStatusUpdateEvent):
        return event
    message = event.status.message
    if message is None or uri in message.extensions:
        return event
    if not any(part.media_type == media_type for part in message.parts):
        return event
    named = replace(message, extensions=(*message.extensions, uri))
    return replace(event, status=replace(event.status, message=named))
