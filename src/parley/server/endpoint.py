"""A server's view of an agent: its service, its card and its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import quote

import msgspec
from msgspec.structs import replace
from starlette.types import ASGIApp

from parley.extensions.declared import FILE_TRANSFER, FileTransfer
from parley.files.file_store import FileStore
from parley.files.layout import FileScope
from parley.model.cards import AgentCard, AgentInterface
from parley.model.errors import A2AError
from parley.model.extensions import Extension
from parley.model.service import A2AService, Caller
from parley.security.authorization import Authorization
from parley.security.disclosure import InterfaceListings
from parley.security.limits.agent_limits import AgentLimits
from parley.security.owner import PER_CALLER, OwnerPolicy

Interfaces = tuple[AgentInterface, ...]


class CallbackReceiver(Protocol):
    """Completes the events of one agent for callbacks."""

    async def event_of(self, token: str, tenant: str) -> str:
        """Return the key of the event that a token may complete.

        ``tenant`` is named by the address. Raises ``TokenInvalid``, ``TokenExpired``.
        """
        ...

    async def complete(self, key: str, value: bytes) -> None:
        """Complete an event with a value (see ``event_value``); the same again changes nothing.

        Raises ``EventCompleted`` for another value, and ``StoreError``.
        """
        ...


class CredentialReceiver(Protocol):
    """Receives the credentials that the tasks of one agent ask for (specification §7.6)."""

    async def claim_of(self, token: str, tenant: str, *, redirected: bool = False) -> Any:
        """Return the claim in a callback address, or in the state of a redirect.

        Its ``caller`` is the ``Caller.owner`` of the permitted sender, empty if anyone may send.
        Raises ``TokenInvalid``, ``TokenExpired``.
        """
        ...

    async def receive(self, claim: Any, given: object, *, redirected: bool = False) -> None:
        """Keep a credential, and wake its task.

        Raises ``CredentialRefused``, ``EventCompleted``, ``NoLongerNeeded``, and ``StoreError``.
        """
        ...


class SignsCards(Protocol):
    """Signs the cards that a server writes."""

    @property
    def revision(self) -> int:
        """A number that changes with the keys."""
        ...

    def sign(self, card: bytes) -> bytes:
        """Return a written card with signatures."""
        ...

    def extended(self, card: AgentCard) -> AgentCard:
        """Return an extended card with signatures."""
        ...


class AgentBinding(Protocol):
    """An added binding of one agent, for each ``BindingPlace`` of the agent on a server.

    ``protocol`` is its name on cards (§4.4.6), ``path`` its path below the agent's address, such as
    ``/envelope``.
    """

    @property
    def protocol(self) -> str:
        """The name on cards."""
        ...

    @property
    def path(self) -> str:
        """The path below the agent's address."""
        ...

    def handler(self, place: Any) -> ASGIApp:
        """Return the handler at the path. With ``takes_sockets`` it gets WebSockets too."""
        ...

    def pages(self, place: Any) -> Mapping[str, ASGIApp]:
        """Return the handlers below the path, such as ``{"/card": page}``."""
        ...

    @property
    def refuses_unsigned(self) -> bool:
        """True if requests over other bindings are rejected, because they have no signature."""
        ...

    def refuse(self) -> A2AError:
        """Return a new error for such a request."""
        ...


class Endpoint(msgspec.Struct, frozen=True):
    """One agent on a server, or several behind one address.

    ``card`` returns the agent's card for the interfaces that a server advertises. Capabilities and
    extensions must not depend on these, except for an address in the parameters of an extension.
    ``extensions`` are the agent's extensions with dependencies or methods. ``tenants`` are agents
    behind the same address, by the tenant that requests name; any other tenant is passed to
    ``service``. Without ``service`` and ``card`` there are only tenants. ``key`` is an id of the
    agent for paths. ``callbacks`` receives posts to the agent's callback addresses, below
    ``CALLBACKS``, and ``credentials`` the credentials for its tasks, below ``AUTHORIZE``. ``files``
    are the agent's, if the server stores files. ``identify`` identifies callers by the schemes of
    the agent and its tenants, replacing the server's; ``authorization`` decides about operations,
    and ``limits`` about amounts. ``interfaces`` limits who sees an interface; ``card`` has the
    public ones. ``signer`` signs the cards, if the server has keys and a public address.
    ``bindings`` are the added bindings. ``agent_type`` is the type of the agent in catalogs, if it
    declares one.
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
    interfaces: InterfaceListings | None = None
    signer: SignsCards | None = None
    limits: AgentLimits | None = None
    bindings: tuple[AgentBinding, ...] = ()
    agent_type: str = ""


# -- files ------------------------------------------------------------------------------------

FILES = "files"
"""The segment of files below an agent's address."""


class FileService(msgspec.Struct, frozen=True):
    """The file storage of an agent.

    ``inline_bytes`` is a recommendation for callers: files up to that size should be sent in
    messages. ``guests`` are agents without an address, whose files are served at this agent's
    address too.
    """

    store: FileStore
    agent: str
    inline_bytes: int
    owner: OwnerPolicy = PER_CALLER
    guests: tuple[str, ...] = ()

    def scope(self, tenant: str, caller: Caller) -> FileScope:
        """Return the scope of a caller's files. Raises ``A2AError`` for a caller without a
        scope."""
        return FileScope(self.agent, tenant, self.owner.key_of(caller))

    def declared(self, card: AgentCard, interfaces: tuple[AgentInterface, ...]) -> AgentCard:
        """Return a card that declares the extension, with the address for uploads."""
        extension = FileTransfer(
            upload_url=_upload_url(interfaces),
            max_bytes=self.store.limits.file_bytes,
            inline_bytes=self.inline_bytes,
        )
        others = (each for each in card.capabilities.extensions if each.uri != FILE_TRANSFER)
        capabilities = replace(card.capabilities, extensions=(*others, extension.declared()))
        return replace(card, capabilities=capabilities)


def _upload_url(interfaces: tuple[AgentInterface, ...]) -> str:
    """Return the address for uploads next to these interfaces, empty if there is none."""
    for interface in interfaces:
        if interface.protocol_binding == "HTTP+JSON":
            segments = (interface.url.rstrip("/"), quote(interface.tenant, safe=""), FILES)
            return "/".join(segment for segment in segments if segment)
    return ""
