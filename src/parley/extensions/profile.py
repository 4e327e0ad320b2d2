"""The extensions in force for one request, at work on what is said (specification §4.6.2).

Agents and clients share this: what extensions make of a message is checked, so that none of them
changes what the specification leaves to nobody.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, NoReturn, TypeVar

from msgspec.structs import replace

from parley.model.encoding import decode, encode
from parley.model.errors import A2AError, InternalError
from parley.model.extensions import IDEMPOTENT_SEND, RESUMABLE_STREAMS, Extension
from parley.model.incident import log_incident
from parley.model.parts import Artifact, Message
from parley.model.requests import SendMessageRequest
from parley.model.service import CallContext
from parley.model.tasks import TaskArtifactUpdateEvent, TaskStatusUpdateEvent

log = logging.getLogger("parley.extensions")

E = TypeVar("E", Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)
V = TypeVar("V", Message, Artifact)

InThread = Callable[..., Awaitable[Any]]
"""Calls a function in a thread, with the arguments that follow it."""

_KEPT: dict[type, tuple[str, ...]] = {
    SendMessageRequest: ("tenant", "configuration"),
    Message: ("message_id", "context_id", "task_id", "role", "reference_task_ids"),
    TaskStatusUpdateEvent: ("task_id", "context_id"),
    TaskArtifactUpdateEvent: ("task_id", "context_id", "append", "last_chunk"),
}
_MOST_PROFILES = 64

# What these do is done by logs and streams; no message says anything of it.
_SILENT = frozenset({RESUMABLE_STREAMS, IDEMPOTENT_SEND})


class Profile:
    """The extensions that are in force together, in the order in which they have their say.

    ``in_thread`` calls a plain function in a thread: a ``receive`` that is no ``async def``.
    """

    def __init__(self, extensions: Iterable[Extension], in_thread: InThread | None = None) -> None:
        self._extensions = tuple(extensions)
        self._in_thread = in_thread
        self._receivers = self._with("receive")
        self._senders = self._with("send")
        self._askers = self._with("ask")

    @property
    def listens(self) -> bool:
        """Whether any of them looks at messages that come in."""
        return bool(self._receivers)

    def _with(self, hook: str) -> tuple[Extension, ...]:
        plain = getattr(Extension, hook)
        return tuple(e for e in self._extensions if getattr(type(e), hook) is not plain)

    async def receive(
        self, request: SendMessageRequest, context: CallContext
    ) -> SendMessageRequest:
        """Return a message that came in, as the agent is to see it. Raises ``A2AError``."""
        for extension in self._receivers:
            try:
                answer: Any
                if self._in_thread is None or inspect.iscoroutinefunction(extension.receive):
                    answer = extension.receive(request, context)
                else:
                    answer = await self._in_thread(extension.receive, request, context)
                made = await answer if inspect.isawaitable(answer) else answer
                request = _checked(made, request)
            except A2AError:
                raise
            except Exception:
                _failed(extension, "receive")
        return request

    def send(self, event: E) -> E:
        """Return what the agent says, as it is to be logged. Raises ``A2AError``."""
        for extension in self._senders:
            event = self._have_say(extension, "send", event)
        return self._named(event)

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Return a message that a client sends. Raises ``A2AError``, and what an extension does."""
        for extension in self._askers:
            made = _checked(extension.ask(request), request)
            if made.message is not request.message:
                made = replace(made, message=_with_uris(made.message, [extension.uri]))
            request = made
        return self._named_in_request(request)

    def _have_say(self, extension: Extension, hook: str, event: E) -> E:
        try:
            made: E = _checked(getattr(extension, hook)(event), event)
        except A2AError:
            raise
        except Exception:
            _failed(extension, hook)
        if made is event:
            return event
        before, after = _content(event), _content(made)
        if after is not None and after != before:
            made = _with_content(made, _with_uris(after, [extension.uri]))
        return made

    def _named(self, event: E) -> E:
        """Return the event with every extension named that its content has data of."""
        content = _content(event)
        if content is None or not content.metadata:
            return event
        named = _with_uris(content, self._speaking(content.metadata))
        return event if named is content else _with_content(event, named)

    def _named_in_request(self, request: SendMessageRequest) -> SendMessageRequest:
        message = request.message
        if not message.metadata:
            return request
        named = _with_uris(message, self._speaking(message.metadata))
        return request if named is message else replace(request, message=named)

    def _speaking(self, metadata: Collection[str]) -> list[str]:
        return [
            extension.uri
            for extension in self._extensions
            if any(key == extension.uri or key.startswith(f"{extension.uri}/") for key in metadata)
        ]


class Profiles:
    """The extensions of one agent, by what is in force for a request."""

    def __init__(self, extensions: Iterable[Extension], in_thread: InThread | None = None) -> None:
        self._extensions = tuple(extensions)
        self._in_thread = in_thread
        self._made: dict[frozenset[str], Profile | None] = {}

    def of(self, uris: frozenset[str]) -> Profile | None:
        """Return the profile of a request, ``None`` where no extension has anything to say."""
        if uris not in self._made:
            if len(self._made) >= _MOST_PROFILES:  # callers choose the sets
                self._made.clear()
            chosen = [e for e in self._extensions if e.uri in uris and e.uri not in _SILENT]
            self._made[uris] = Profile(chosen, self._in_thread) if chosen else None
        return self._made[uris]


def in_force(extensions: Iterable[Extension], asked: Collection[str]) -> list[str]:
    """Return the URIs of those asked for whose dependencies are in force too."""
    active = {e.uri: e.depends_on for e in extensions if e.uri in asked}
    while lacking := [uri for uri, needs in active.items() if not active.keys() >= set(needs)]:
        for uri in lacking:
            del active[uri]
    return list(active)


def with_dependencies(uris: Iterable[str], extensions: Iterable[Extension]) -> list[str]:
    """Return URIs, each before what it depends on, as far as ``extensions`` tell."""
    needs = {extension.uri: extension.depends_on for extension in extensions}
    found: dict[str, None] = {}
    pending = [*uris]
    while pending:
        uri = pending.pop(0)
        if uri not in found:
            found[uri] = None
            pending.extend(needs.get(uri, ()))
    return list(found)


def _checked(made: Any, before: Any) -> Any:
    """Return what an extension made of a value, after a look at what it must not change."""
    if made is before:
        return before
    kind = type(before)
    if type(made) is not kind:
        raise TypeError(f"expected a {kind.__name__}, got a {type(made).__name__}")
    _same(made, before, _KEPT[kind])
    if kind is SendMessageRequest:
        _same(made.message, before.message, _KEPT[Message])
    elif kind is TaskStatusUpdateEvent:
        _same(made.status, before.status, ("state", "timestamp"))
        said, saying = before.status.message, made.status.message
        if (said is None) != (saying is None):
            raise ValueError("a status has a message, or none, whatever an extension says")
        if said is not None:
            _same(saying, said, _KEPT[Message])
    elif kind is TaskArtifactUpdateEvent:
        _same(made.artifact, before.artifact, ("artifact_id",))
    # Struct fields are not checked when a value is made, and a log has to be read back.
    return decode(encode(made), kind)


def _same(made: Any, before: Any, fields: Sequence[str]) -> None:
    for field in fields:
        if getattr(made, field) != getattr(before, field):
            raise ValueError(f"{field} of a {type(before).__name__} cannot be changed")


def _failed(extension: Extension, hook: str) -> NoReturn:
    reference = log_incident(log, f"{extension}.{hook}")
    raise InternalError(
        f"the extension {extension.uri} failed on the server; its log says why under {reference}"
    ) from None


def _content(event: Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> Any:
    """Return the message or the artifact of an event, ``None`` for a bare status."""
    if isinstance(event, TaskArtifactUpdateEvent):
        return event.artifact
    return event.status.message if isinstance(event, TaskStatusUpdateEvent) else event


def _with_content(event: Any, content: Message | Artifact) -> Any:
    if isinstance(event, TaskArtifactUpdateEvent):
        return replace(event, artifact=content)
    if isinstance(event, TaskStatusUpdateEvent):
        return replace(event, status=replace(event.status, message=content))
    return content


def _with_uris(content: V, uris: Sequence[str]) -> V:
    """Return a message or an artifact that names the extensions which contributed to it."""
    new = tuple(uri for uri in uris if uri not in content.extensions)
    return replace(content, extensions=content.extensions + new) if new else content
