"""The active extensions of a request, applied to messages and events (specification §4.6.2).

Agents and clients share this module. Each change by an extension is checked: ids, states and other
fields of the specification must not change.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from msgspec.structs import replace

from parley.model.errors import an, author_code
from parley.model.extensions import CALL_CHAIN, IDEMPOTENT_SEND, RESUMABLE_STREAMS, Extension
from parley.model.operations import SendMessageRequest
from parley.model.parts import Artifact, Message
from parley.model.service import CallContext
from parley.model.struct import decode, encode
from parley.model.tasks import TaskArtifactUpdateEvent, TaskStatusUpdateEvent

log = logging.getLogger("parley.extensions")

E = TypeVar("E", Message, TaskStatusUpdateEvent, TaskArtifactUpdateEvent)
V = TypeVar("V", Message, Artifact)

InThread = Callable[..., Awaitable[Any]]
"""Calls a function in a thread, with the remaining arguments."""

_UNCHANGEABLE: dict[type, tuple[str, ...]] = {
    SendMessageRequest: ("tenant", "configuration"),
    Message: ("message_id", "context_id", "task_id", "role", "reference_task_ids"),
    TaskStatusUpdateEvent: ("task_id", "context_id"),
    TaskArtifactUpdateEvent: ("task_id", "context_id", "append", "last_chunk"),
}
_MAX_PROFILES = 64

# These are implemented by logs, streams and admission, and have no data in an agent's messages.
_WITHOUT_HOOKS = frozenset({RESUMABLE_STREAMS, IDEMPOTENT_SEND, CALL_CHAIN})


class Profile:
    """The combination of active extensions, in the order of their hooks.

    ``in_thread`` runs a ``receive`` hook that is not an ``async def``.
    """

    def __init__(self, extensions: Iterable[Extension], in_thread: InThread | None = None) -> None:
        self._extensions = tuple(extensions)
        self._in_thread = in_thread
        self._receivers = self._with("receive")
        self._senders = self._with("send")
        self._askers = self._with("ask")

    @property
    def has_receivers(self) -> bool:
        """True if any extension has a ``receive`` hook."""
        return bool(self._receivers)

    def _with(self, hook: str) -> tuple[Extension, ...]:
        plain = getattr(Extension, hook)
        return tuple(e for e in self._extensions if getattr(type(e), hook) is not plain)

    async def receive(
        self, request: SendMessageRequest, context: CallContext
    ) -> SendMessageRequest:
        """Apply ``receive`` hooks to an incoming message. Raises ``A2AError``."""
        for extension in self._receivers:
            with _contained(extension, "receive"):
                answer: Any
                if self._in_thread is None or inspect.iscoroutinefunction(extension.receive):
                    answer = extension.receive(request, context)
                else:
                    answer = await self._in_thread(extension.receive, request, context)
                made = await answer if inspect.isawaitable(answer) else answer
                request = _checked(made, request)
        return request

    def send(self, event: E) -> E:
        """Apply ``send`` hooks to an event, before it is stored. Raises ``A2AError``."""
        for extension in self._senders:
            event = self._apply(extension, "send", event)
        return self._declare(event)

    def ask(self, request: SendMessageRequest) -> SendMessageRequest:
        """Apply ``ask`` hooks to a client's message. Raises the errors of extensions."""
        for extension in self._askers:
            made = _checked(extension.ask(request), request)
            if made.message != request.message:
                made = replace(made, message=_with_uris(made.message, [extension.uri]))
            request = made
        return self._declare_in_request(request)

    def _apply(self, extension: Extension, hook: str, event: E) -> E:
        with _contained(extension, hook):
            made: E = _checked(getattr(extension, hook)(event), event)
        if made is event:
            return event
        before, after = _content(event), _content(made)
        if after is not None and after != before:
            made = _with_content(made, _with_uris(after, [extension.uri]))
        return made

    def _declare(self, event: E) -> E:
        """Return the event. Its message or artifact names every extension with data in its
        metadata."""
        content = _content(event)
        if content is None or not content.metadata:
            return event
        declared = _with_uris(content, self._with_data(content.metadata))
        return event if declared is content else _with_content(event, declared)

    def _declare_in_request(self, request: SendMessageRequest) -> SendMessageRequest:
        message = request.message
        if not message.metadata:
            return request
        declared = _with_uris(message, self._with_data(message.metadata))
        return request if declared is message else replace(request, message=declared)

    def _with_data(self, metadata: Collection[str]) -> list[str]:
        return [
            extension.uri
            for extension in self._extensions
            if any(key == extension.uri or key.startswith(f"{extension.uri}/") for key in metadata)
        ]


class Profiles:
    """The profiles of one agent, by the set of active extensions."""

    def __init__(self, extensions: Iterable[Extension], in_thread: InThread | None = None) -> None:
        self._extensions = tuple(extensions)
        self._in_thread = in_thread
        self._made: dict[frozenset[str], Profile | None] = {}

    def of(self, uris: frozenset[str]) -> Profile | None:
        """Return the profile for active extensions, ``None`` if no extension has a hook."""
        if uris not in self._made:
            if len(self._made) >= _MAX_PROFILES:  # callers choose the combinations
                self._made.clear()
            chosen = [e for e in self._extensions if e.uri in uris and e.uri not in _WITHOUT_HOOKS]
            self._made[uris] = Profile(chosen, self._in_thread) if chosen else None
        return self._made[uris]


def active_uris(extensions: Iterable[Extension], asked: Collection[str]) -> list[str]:
    """Return the URIs of requested extensions whose dependencies are requested too."""
    active = {e.uri: e.depends_on for e in extensions if e.uri in asked}
    while incomplete := [uri for uri, needs in active.items() if not active.keys() >= set(needs)]:
        for uri in incomplete:
            del active[uri]
    return list(active)


def with_dependencies(uris: Iterable[str], extensions: Iterable[Extension]) -> list[str]:
    """Return URIs and their dependencies, as far as ``extensions`` declare them."""
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
    """Return a value after an extension's hook. Raises if the hook changed a fixed field."""
    if made is before:
        return before
    kind = type(before)
    if type(made) is not kind:
        raise TypeError(f"expected {an(kind.__name__)}, got {an(type(made).__name__)}")
    _check_same(made, before, _UNCHANGEABLE[kind])
    if kind is SendMessageRequest:
        _check_same(made.message, before.message, _UNCHANGEABLE[Message])
    elif kind is TaskStatusUpdateEvent:
        _check_same(made.status, before.status, ("state", "timestamp"))
        old, new = before.status.message, made.status.message
        if (old is None) != (new is None):
            raise ValueError("an extension must not add a status message, or remove it")
        if old is not None:
            _check_same(new, old, _UNCHANGEABLE[Message])
    elif kind is TaskArtifactUpdateEvent:
        _check_same(made.artifact, before.artifact, ("artifact_id",))
    # Constructing a struct does not check field types, but the log must be readable later.
    return decode(encode(made), kind)


def _check_same(made: Any, before: Any, fields: Sequence[str]) -> None:
    for field in fields:
        if getattr(made, field) != getattr(before, field):
            raise ValueError(f"{field} of {an(type(before).__name__)} cannot be changed")


def _contained(extension: Extension, hook: str) -> AbstractContextManager[None]:
    words = f"the extension {extension.uri} failed on the server; its log says why under"
    return author_code(log, f"{extension}.{hook}", words)


def _content(event: Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent) -> Any:
    """Return the message or the artifact of an event, ``None`` for a status without a message."""
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
    """Return a message or an artifact that names these extensions."""
    new = tuple(uri for uri in uris if uri not in content.extensions)
    return replace(content, extensions=content.extensions + new) if new else content
