"""Requests for credentials in a task (``docs/extensions/in-task-authorization.md``)."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from parley.extensions.named_in_status import named_in_status
from parley.model.encoding import encode, from_wire
from parley.model.extensions import Extension
from parley.model.parts import Message, Part, text_of
from parley.model.schemes import SecurityScheme
from parley.model.struct import A2AStruct, Timestamp
from parley.model.tasks import Task, TaskState

IN_TASK_AUTHORIZATION = "urn:parley:in-task-authorization:v1"

AUTH_MEDIA_TYPE = "application/vnd.parley.authorization-request+json"
"""The media type of the part that says what is needed."""

_MEMBER = "authorizationRequest"


class AuthRequest(A2AStruct, frozen=True, kw_only=True):
    """What a task needs to go on: a credential, and where it goes.

    ``text`` is for people. ``scheme`` is as cards have it. Someone opens ``authorization_url`` and
    logs in; where it is empty, the credential is posted to ``callback``, before ``expires_at``
    (``RemoteAgent.authorize``). ``id`` names the operation within its task.
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
    """Return the part of a message that has the request."""
    data = msgspec.json.decode(encode(replace(request, text="")))
    return Part(data={_MEMBER: data}, media_type=AUTH_MEDIA_TYPE)


def auth_request(asked: Task | Message) -> AuthRequest | None:
    """Return what a task that is AUTH_REQUIRED needs, or a message asks for, if it is structured.

    Answer it with ``await remote.authorize(task, credential)``, or open its ``authorization_url``.
    """
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
        scheme = given.get("scheme")  # of a kind that is not known here
        if scheme is None:
            return None
        return _read({name: value for name, value in given.items() if name != "scheme"})


class InTaskAuthorization(Extension):
    """A task that is AUTH_REQUIRED may say as data what it needs, and where that goes.

    The data is always sent; where the extension is active, the message names it.
    """

    uri = IN_TASK_AUTHORIZATION
    description = "A task says which credential it needs, and takes it at a callback address."

    def send(self, event: Any) -> Any:
        """Name the extension in a message that asks for a credential."""
        return named_in_status(event, self.uri, AUTH_MEDIA_TYPE)
