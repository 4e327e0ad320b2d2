"""Functions shared by the adapters of the official SDK: callers, contexts, errors by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

from a2a.auth.user import User
from a2a.server.agent_execution import SimpleRequestContextBuilder
from a2a.server.context import ServerCallContext

from parley.model import errors
from parley.model.errors import A2AError
from parley.model.service import Caller

Take = Callable[[Any], Awaitable[None]]
"""Receives an event that an executor enqueues."""


class CallerAsUser(User):
    """The caller of a turn. ``caller`` has all of Parley's information about it."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller

    @property
    def is_authenticated(self) -> bool:
        """Return whether the caller is authenticated."""
        return self.caller.authenticated

    @property
    def user_name(self) -> str:
        """The id of the caller."""
        return self.caller.id


class OfficialSdk:
    """The common base of the adapters of the official SDK's versions."""

    knows_tenants = True

    def call_context(
        self, caller: Caller, tenant: str, extensions: frozenset[str], state: dict[str, Any]
    ) -> Any:
        """Return a ``ServerCallContext``; its state has the tenant if the SDK version has no field
        for it.
        """
        of_tenant = {"tenant": tenant}
        if not self.knows_tenants:
            state, of_tenant = {**of_tenant, **state}, {}
        user, names = CallerAsUser(caller), set(extensions)
        return ServerCallContext(state=state, user=user, requested_extensions=names, **of_tenant)

    def builder(self) -> Any:
        """Return the SDK's own ``RequestContextBuilder``."""
        return SimpleRequestContextBuilder()


def refuse_event(value: object) -> NoReturn:
    """Raise ``TypeError``: an executor enqueued an object that is not an event."""
    raise TypeError(
        "an executor must enqueue a Task, a Message, a TaskStatusUpdateEvent or a "
        f"TaskArtifactUpdateEvent, not {type(value).__name__}"
    )


def error_named(name: str, said: Any) -> A2AError:
    """Return the error with a name of the specification; an internal error for any other name.

    ``said`` is an object with the message.
    """
    kind = getattr(errors, name, None)
    if not (isinstance(kind, type) and issubclass(kind, A2AError) and kind is not A2AError):
        kind = errors.InternalError
    return kind(str(getattr(said, "message", "") or "") or name)
