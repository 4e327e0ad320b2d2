"""Registration over a socket: ``registry.register``, ``registry.deregister``,
``registry.heartbeat``.

An agent registers only under its authenticated id. It receives requests over its open socket, if it
declares so; if there is a registry, it is published there too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from parley.client.errors import ClientError
from parley.envelope.answers import success
from parley.envelope.cards import (
    EnvelopeCard,
    agent_card_of,
    envelope_card_of,
    read_card,
    windows_of,
)
from parley.envelope.declared import CLASSIFICATIONS
from parley.envelope.messages import AgentUnavailable, Envelope, ResponsePayload
from parley.envelope.routing import (
    SHARING_SCOPE,
    UNPROVED,
    ConnectedAgent,
    ConnectedAgents,
    ConnectedCard,
)
from parley.envelope.server.answering import payload_of
from parley.envelope.server.guard import ids_of
from parley.envelope.server.services import EnvelopeHandler, MessageContext, SocketPeer
from parley.model.cards import AgentCard
from parley.model.concurrency import end
from parley.model.errors import (
    A2AError,
    FieldViolation,
    InvalidParamsError,
    PermissionDeniedError,
    TooManyRequestsError,
    UnauthenticatedError,
)
from parley.model.service import Caller
from parley.model.struct import to_wire
from parley.registry.catalog.entries import A2A_CARD, CatalogEntry
from parley.registry.catalog.reading import write_entry
from parley.registry.client.places import RegistryRefused
from parley.registry.served.registration import AgentRegistrar
from parley.store.protocols.errors import StoreUnavailable
from parley.wire.json.protojson import read_answer

log = logging.getLogger("parley.envelope")

REGISTER, DEREGISTER, HEARTBEAT = "registry.register", "registry.deregister", "registry.heartbeat"

MAX_CARD_BYTES = 256 * 1024
MAX_PER_SOCKET = 16
BEAT_SECONDS = 30.0
BEAT_CONCURRENCY = 64
_OPTIONS = frozenset({"card", "identifier", "acceptsRequests", "audience"})


class RegistrationSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The permissions to register over a socket.

    All authenticated callers may register, or with ``scopes`` only callers with all of them.
    ``anonymous``: other callers may too, under separate ids. ``enabled=False``: no caller may.
    Raises ``ValueError`` for a value of another type.
    """

    enabled: bool = True
    anonymous: bool = False
    scopes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("enabled", "anonymous"):
            if not isinstance(getattr(self, name), bool):  # "false" would let everybody in
                raise ValueError(
                    f"{name} of registration is True or False, not {getattr(self, name)!r:.100}"
                )
        if isinstance(self.scopes, str) or not all(isinstance(each, str) for each in self.scopes):
            raise ValueError(f"scopes is a list of scopes, not {self.scopes!r:.100}")
        if self.anonymous and self.scopes:
            raise ValueError("anonymous callers have no scopes: give scopes, or anonymous=True")

    def check(self, caller: Caller) -> None:
        """Raise ``A2AError`` for a caller who may not register."""
        if not self.enabled:
            raise PermissionDeniedError("agents do not register over sockets here")
        if caller.authenticated:
            if lacking := [each for each in self.scopes if each not in caller.scopes]:
                raise PermissionDeniedError(f"to register needs the scope {' '.join(lacking)}")
        elif not self.anonymous:
            raise UnauthenticatedError(
                "only authenticated agents register here: connect with credentials, or sign"
            )


@contextmanager
def _registry_errors() -> Iterator[None]:
    """Raise the errors of a registrar as ``A2AError``, with the time of a retry."""
    try:
        yield
    except TooManyRequestsError as error:
        error.retry_after = error.retry_after or 5
        raise
    except StoreUnavailable as error:
        raise AgentUnavailable("the registry cannot keep anything now", retry_after=5) from error
    except RegistryRefused as error:
        raise _refusal(error) from error
    except (ClientError, ValueError) as error:
        raise AgentUnavailable(
            "the registry cannot be reached now; register again later", retry_after=30
        ) from error


def _refusal(error: RegistryRefused) -> A2AError:
    words = "".join(char if char.isprintable() else " " for char in str(error))[:500]
    if error.status == 429:
        return TooManyRequestsError(words, retry_after=error.retry_after or 30)
    if error.status in (401, 403):
        return PermissionDeniedError(words)
    if error.status >= 500:
        return AgentUnavailable(words, retry_after=error.retry_after or 30)
    return InvalidParamsError(words)


class _Registered(msgspec.Struct):
    """A registration on one socket. ``identifier`` is empty if it is in no registry."""

    agent_id: str
    identifier: str
    caller: Caller
    beaten_at: float = 0.0
    interval: float = BEAT_SECONDS


class SocketRegistrations:
    """The registrations of all sockets of a process. ``own_ids`` are the ids of its own agents."""

    def __init__(
        self,
        connected: ConnectedAgents,
        registrar: AgentRegistrar | None = None,
        settings: RegistrationSettings | None = None,
        *,
        own_ids: Sequence[str] = (),
    ) -> None:
        self._connected = connected
        self._registrar = registrar
        self._settings = settings or RegistrationSettings()
        self._own_ids = frozenset(own_ids)
        self._registered: dict[SocketPeer, dict[str, _Registered]] = {}
        self._beats: set[asyncio.Task[None]] = set()

    @property
    def handlers(self) -> dict[str, EnvelopeHandler]:
        """The handlers of the actions."""
        return {REGISTER: self.register, DEREGISTER: self.deregister, HEARTBEAT: self.heartbeat}

    def _of(self, context: MessageContext) -> dict[str, _Registered]:
        """Return the registrations of the socket of a message."""
        return {} if context.peer is None else self._registered.get(context.peer, {})

    async def register(self, message: Envelope, context: MessageContext) -> ResponsePayload:
        """Register an agent. Doing it again replaces its card. Raises ``A2AError``."""
        self._settings.check(context.caller)
        asked = _asked(message, context)
        agent_id = self._checked_id(asked.card.agent_info.id, message, context)
        peer, accepts = context.peer, asked.accepts_requests
        if accepts and peer is None:
            raise InvalidParamsError(
                "requests are taken over a WebSocket: register over one, or with "
                '"acceptsRequests": false and a card that has addresses'
            )
        known = self._of(context)
        if agent_id not in known and len(known) >= MAX_PER_SOCKET:
            raise InvalidParamsError(f"at most {MAX_PER_SOCKET} agents register over one socket")
        result: dict[str, Any] = {"agentId": agent_id, "acceptsRequests": accepts}
        identifier = ""
        if self._registrar is not None and asked.has_address:
            identifier = self._registrar.identifier_of(agent_id, asked.identifier)
            entry = _entry(asked.card, asked.a2a, identifier)
            with _registry_errors():
                result |= await self._registrar.publish(
                    entry, asked.audience, context.caller, context.address
                )
        elif asked.identifier or not accepts:
            raise InvalidParamsError(
                "there is no registry here that lists agents by their addresses: leave out "
                '"identifier", and say "acceptsRequests": true to be reached over this socket'
                if self._registrar is None
                else "the card has no address, so no registry can list it: give endpoints "
                "(an A2A card: supportedInterfaces), or leave out identifier"
            )
        if peer is not None:
            self._connect(peer, agent_id, asked, message, context)
            if peer not in self._registered:
                self._registered[peer] = {}
                peer.on_close(lambda: self._left(peer))
                peer.on_beat(lambda: self._beat(peer))
            kept = _Registered(agent_id, identifier, context.caller)
            self._registered[peer][agent_id] = kept
        return success([result])

    def _connect(
        self,
        peer: SocketPeer,
        agent_id: str,
        asked: _Asked,
        message: Envelope,
        context: MessageContext,
    ) -> None:
        """Start or stop sending an agent's requests over its socket."""
        if not peer.is_open:
            raise InvalidParamsError("the connection has ended")
        if not asked.accepts_requests:
            self._connected.remove(peer, agent_id)
            return
        found = ConnectedAgent(
            _connected_card(asked.card, agent_id),
            peer,
            _owner_of(context),
            shares=SHARING_SCOPE in context.caller.scopes,
            instance=message.source.instance_id,
        )
        self._connected.add(found)

    async def deregister(self, message: Envelope, context: MessageContext) -> ResponsePayload:
        """Take an agent of this socket out, or all of them. Raises ``A2AError``."""
        self._settings.check(context.caller)
        given = _members(message, {"agentId", "identifier"})
        known = self._of(context)
        wanted = given.get("agentId", "")
        gone = [each for each in known.values() if wanted in ("", each.agent_id)]
        identifiers = [each.identifier for each in gone if each.identifier]
        if given.get("identifier"):
            identifiers = [given["identifier"]]
        if not gone and not identifiers:
            raise InvalidParamsError(
                "nothing like that is registered over this socket",
                violations=(FieldViolation("payload.parameters.agentId", "a registered agent"),),
            )
        if self._registrar is not None:
            with _registry_errors():
                for identifier in identifiers:
                    await self._registrar.withdraw(identifier, context.caller, context.address)
        for each in gone:
            assert context.peer is not None
            self._connected.remove(context.peer, each.agent_id)
            known.pop(each.agent_id, None)
        return success([{"agentId": each.agent_id, "registered": False} for each in gone])

    async def heartbeat(self, message: Envelope, context: MessageContext) -> ResponsePayload:
        """Report that registered agents are alive. Raises ``A2AError``."""
        self._settings.check(context.caller)
        named = _members(message, {"identifiers"}).get("identifiers")
        known = self._of(context)
        if named is not None and not (
            isinstance(named, list) and all(isinstance(each, str) for each in named)
        ):
            raise InvalidParamsError("identifiers is a list of identifiers")
        identifiers = named or [each.identifier for each in known.values() if each.identifier]
        result: dict[str, Any] = {"agents": list(known)}
        if identifiers and self._registrar is not None:
            with _registry_errors():
                result |= await self._registrar.beat(identifiers, context.caller)
        elif not known:
            raise InvalidParamsError("nothing is registered over this socket: register first")
        return success([result])

    async def aclose(self) -> None:
        """Stop running work."""
        await end(self._beats)

    def _checked_id(self, id: str, message: Envelope, context: MessageContext) -> str:
        """Return the id that an agent registers under. Raises ``PermissionDeniedError``."""
        caller, problem = context.caller, ""
        own = ids_of(caller)
        if own:
            if id not in own:
                raise PermissionDeniedError(
                    f"this agent is authenticated as {' or '.join(map(repr, own))}, and registers "
                    f"under that id, not as {id[:100]!r}"
                )
            self._connected.remove_strangers(id)
            problem = (
                f"another caller of the id {id[:100]!r} is connected: register under another id"
            )
        else:
            if id != message.source.agent_id:
                raise PermissionDeniedError(
                    f"the source of the message is {message.source.agent_id[:100]!r}, and it "
                    f"registers under that id, not as {id[:100]!r}"
                )
            problem = f"the id {id[:100]!r} is another agent's: take another"
        if self._connected.owner_of(id) not in (None, _owner_of(context)):
            raise PermissionDeniedError(problem)
        if id in self._own_ids:
            raise PermissionDeniedError(f"{id[:100]!r} is the id of an agent of this server")
        return id

    def _left(self, peer: SocketPeer) -> None:
        for id in self._registered.pop(peer, {}):
            log.info("the agent %s has left: its socket closed", ascii(id[:200]))

    def _beat(self, peer: SocketPeer) -> None:
        """Forward a HEARTBEAT to the registry, at the registry's interval."""
        registrar = self._registrar
        if registrar is None or len(self._beats) >= BEAT_CONCURRENCY:
            return
        now = asyncio.get_running_loop().time()
        due = [
            each
            for each in self._registered.get(peer, {}).values()
            if each.identifier and now - each.beaten_at >= each.interval * 0.8
        ]
        if not due:
            return
        for each in due:
            each.beaten_at = now
        task = asyncio.create_task(self._pass_on(registrar, due))
        self._beats.add(task)
        task.add_done_callback(self._beats.discard)

    async def _pass_on(self, registrar: AgentRegistrar, due: list[_Registered]) -> None:
        try:
            with _registry_errors():
                answer = await registrar.beat([each.identifier for each in due], due[0].caller)
        except A2AError as error:
            log.warning("a heartbeat of %s was rejected: %s", due[0].identifier[:200], error)
            return
        interval = answer.get("interval")
        if isinstance(interval, int | float) and not isinstance(interval, bool):
            for each in due:
                each.interval = min(max(float(interval), 1.0), 3600.0)


def _owner_of(context: MessageContext) -> str:
    """Return the owner of agents that a caller registers. A stranger is known by its socket."""
    caller = context.caller
    return caller.owner if caller.authenticated else f"{UNPROVED}{id(context.peer)}"


class _Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a REQUEST to register. ``a2a`` is the A2A card, if that was given."""

    card: EnvelopeCard
    a2a: Mapping[str, Any] | None
    identifier: str
    accepts_requests: bool
    audience: Any
    has_address: bool


def _asked(message: Envelope, context: MessageContext) -> _Asked:
    card: Any = _parameters(message)
    options: Mapping[str, Any] = {}
    if len(msgspec.json.encode(card)) > MAX_CARD_BYTES:
        raise InvalidParamsError(f"a card that is registered has at most {MAX_CARD_BYTES:,} bytes")
    if "card" in card:
        options, card = card, card["card"]
        if unknown := sorted(set(options) - _OPTIONS):
            raise _invalid(unknown[0], f"not known here; there are {', '.join(sorted(_OPTIONS))}")
        if not isinstance(card, dict):
            raise _invalid("card", "a card of the envelope protocol, or an A2A card")
    a2a: Mapping[str, Any] | None = None
    if "agentInfo" in card:
        windows_of(card)  # each window is enforced, or the card is rejected
        read = read_card(card, max_bytes=MAX_CARD_BYTES)
        has_address = bool(read.endpoints.primary or read.endpoints.backup)
    elif "name" in card and ("skills" in card or "supportedInterfaces" in card or "url" in card):
        a2a = card
        made = read_answer(dict(card), AgentCard)
        read = envelope_card_of(made, agent_id=context.caller.id or message.source.agent_id)
        has_address = bool(card.get("supportedInterfaces") or card.get("url"))
    else:
        raise _invalid("agentInfo", "a card has agentInfo (an A2A card: name and skills)")
    accepts = options.get("acceptsRequests", not has_address)
    identifier = options.get("identifier", "")
    if not isinstance(accepts, bool):
        raise _invalid("acceptsRequests", "true or false")
    if not isinstance(identifier, str):
        raise _invalid("identifier", "a text such as urn:air:example.com:agent:search")
    if not identifier and read.agent_info.id.startswith("urn:air:"):
        identifier = read.agent_info.id
    return _Asked(
        card=read,
        a2a=a2a,
        identifier=identifier,
        accepts_requests=accepts,
        audience=options.get("audience"),
        has_address=has_address,
    )


def _entry(card: EnvelopeCard, a2a: Mapping[str, Any] | None, identifier: str) -> Mapping[str, Any]:
    """Return the entry of an agent in a catalog, with its A2A card in it."""
    info = card.agent_info
    entry = CatalogEntry(
        identifier=identifier,
        display_name=info.name or info.id,
        type=A2A_CARD,
        data=a2a or msgspec.to_builtins(agent_card_of(card), enc_hook=to_wire),
        description=info.description[:2000],
        tags=card.metadata.tags[:64],
        capabilities=tuple(each.name for each in card.capabilities)[:64],
        version=info.version,
        metadata={"agentType": info.type} if info.type else {},
    )
    return write_entry(entry)


def _connected_card(card: EnvelopeCard, agent_id: str) -> ConnectedCard:
    declared = [each.performance for each in card.capabilities if each.performance is not None]
    most = [each.max_concurrent_requests for each in declared]
    classification = card.security.data_classification or "public"
    if classification not in CLASSIFICATIONS:
        raise _invalid(
            "security.dataClassification", "public, internal, confidential or restricted"
        )
    availability = card.constraints.availability
    return ConnectedCard(
        id=agent_id,
        type=card.agent_info.type or "agent",
        skills=frozenset(each.name for each in card.capabilities),
        permissions=frozenset(card.security.required_permissions),
        classification=classification,
        at_once=min(max(sum(filter(None, most)), 1), 64) if any(most) else 64,
        windows=availability.maintenance_windows if availability is not None else (),
    )


def _parameters(message: Envelope) -> dict[str, Any]:
    given = payload_of(message).parameters
    if not isinstance(given, dict):
        raise _invalid("", "an object")
    return given


def _members(message: Envelope, known: set[str]) -> dict[str, Any]:
    given = _parameters(message)
    for name, value in given.items():
        if name not in known:
            raise _invalid(name, f"not known here; there are {', '.join(sorted(known))}")
        if name != "identifiers" and not isinstance(value, str):
            raise _invalid(name, "a text")
    return given


def _invalid(member: str, description: str) -> InvalidParamsError:
    path = f"payload.parameters.{member}".rstrip(".")
    return InvalidParamsError(
        f"{path}: {description}", violations=(FieldViolation(path, description),)
    )
