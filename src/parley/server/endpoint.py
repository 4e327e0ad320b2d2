"""An agent as the server sees it: a service and its card."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import msgspec

from parley.model.cards import AgentCard, AgentInterface
from parley.model.extensions import Extension
from parley.model.service import A2AService
from parley.security.authorization import Authorization
from parley.server.file_service import FileService

CALLBACKS = "/callbacks"
"""Where callbacks arrive, below the address of an agent."""

AUTHORIZE = f"{CALLBACKS}/authorize"
"""Where credentials for tasks are posted, below the address of an agent."""

REDIRECT = f"{CALLBACKS}/oauth"
"""Where authorization servers send browsers back to."""

Interfaces = tuple[AgentInterface, ...]


class CallbackReceiver(Protocol):
    """Completes the events of one agent that callbacks name."""

    async def event_of(self, token: str, tenant: str) -> str:
        """Return the key of the event that a token may complete.

        ``tenant`` is that of the address. Raises ``TokenInvalid``, ``TokenExpired``.
        """
        ...

    async def complete(self, key: str, value: bytes) -> None:
        """Complete an event with a value (see ``event_value``); the same again changes nothing.

        Raises ``EventCompleted`` for another value, and ``StoreError``.
        """
        ...


class CredentialRefused(ValueError):
    """What was posted is no credential. The message says what one is, and quotes nothing."""


class NoLongerNeeded(Exception):
    """The task has ended, and takes no credential."""


class CredentialReceiver(Protocol):
    """Takes the credentials that the tasks of one agent ask for (specification §7.6)."""

    async def claim_of(self, token: str, tenant: str, *, redirected: bool = False) -> Any:
        """Return what a callback address, or the state of a redirect, is good for.

        Its ``caller`` is the ``Caller.owner`` of who may use it, empty for anybody who has it.
        Raises ``TokenInvalid``, ``TokenExpired``.
        """
        ...

    async def receive(self, claim: Any, given: object, *, redirected: bool = False) -> None:
        """Keep a credential, and wake its task.

        Raises ``CredentialRefused``, ``EventCompleted``, ``NoLongerNeeded``, and ``StoreError``.
        """
        ...


class Endpoint(msgspec.Struct, frozen=True):
    """One agent on a server, or several behind one address.

    ``card`` returns the agent's card for the interfaces that a server advertises. Capabilities and
    extensions must not depend on them, but for an address in the parameters of one. ``extensions``
    are those of the agent with dependencies or methods for the server to handle. ``tenants`` are
    agents behind the same address, by the tenant that requests name; any other tenant is passed to
    ``service``. Without ``service`` and ``card`` there are only tenants. ``key`` is an id of the
    agent for paths. ``callbacks`` receives what is posted to the agent's callback addresses, below
    ``CALLBACKS``, and ``credentials`` what its tasks ask for, below ``AUTHORIZE``. ``files`` are
    those of the agent, if the server keeps any. ``identify`` finds the caller by the schemes of the
    agent and its tenants, in place of the server's; ``authorization`` decides what a caller may do.
    """

    service: A2AService | None = None
    card: Callable[[Interfaces], AgentCard] | None = None
    extensions: tuple[Extension, ...] = ()
    tenants: Mapping[str, Endpoint] = {}
    key: str = ""
    callbacks: CallbackReceiver | None = None
    credentials: CredentialReceiver | None = None
    files: FileService | None = None
    identify: Callable[[Any], Any] | None = None
    authorization: Authorization | None = None
