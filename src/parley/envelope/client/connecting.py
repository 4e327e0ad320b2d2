"""``parley.envelope.connect``: an agent, called by messages."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from parley.client.auth.credentials import Credential
from parley.client.bindings.http import Tls
from parley.client.card.interface import choose
from parley.client.card.trust import CardTrust
from parley.client.connection import Connection
from parley.client.errors import AuthenticationRequired, CardInvalid, CardNotFound
from parley.client.origin import Origin, http_address
from parley.envelope.cards import EnvelopeCard
from parley.envelope.client.client import EnvelopeClient
from parley.envelope.client.connection import EnvelopeConnection
from parley.envelope.client.identity import EnvelopeIdentity
from parley.envelope.client.settings import LinkEndpoint, LinkSettings
from parley.envelope.messages import BINDING
from parley.envelope.signatures import EnvelopeKey
from parley.host.connecting import reference_of
from parley.model.cards import (
    AgentCapabilities,
    AgentCard,
    AgentInterface,
    HTTPAuthSecurityScheme,
    SecurityScheme,
)
from parley.model.errors import A2AError

if TYPE_CHECKING:
    import ssl

    from parley.client.bindings.http import HttpTransport
    from parley.security.egress import Egress

# -- opening ----------------------------------------------------------------------------------
#
# From a reference to an envelope connection: an address, an A2A card, or an envelope card.


logger = logging.getLogger(__name__)

MAX_CARD = 1024 * 1024
ENDPOINT = "/envelope"
"""How the address of an envelope interface ends. Other addresses of HTTP are of A2A cards."""


class EnvelopeOpening(Connection):
    """An envelope connection to be opened: ``async with`` it, or ``await`` it and close it."""

    def __init__(
        self, reference: Any, *, identity: EnvelopeIdentity, link: LinkSettings, **options: Any
    ) -> None:
        self._envelope_card = card_in(reference)
        self._is_given_card = self._envelope_card is not None
        self._direct = ""
        if self._envelope_card is not None:
            reference = _first_address(self._envelope_card)
        elif isinstance(reference, str) and is_endpoint(reference):
            reference = self._direct = http_address(reference.strip())
        super().__init__(reference, binding=BINDING, version="", **options)
        if self._direct and isinstance(self._reference, str):
            self._direct = self._reference  # without a user and a password
        self._identity = identity
        self._link = link
        self._client: EnvelopeClient | None = None

    def __await__(self) -> Generator[Any, None, EnvelopeClient]:  # type: ignore[override]
        return self._open_client().__await__()

    async def __aenter__(self) -> EnvelopeClient:  # type: ignore[override]
        self._client = await self._open_client()
        return self._client

    async def __aexit__(self, *error: object) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _open_client(self) -> EnvelopeClient:
        connection: EnvelopeConnection | None = None
        try:
            endpoints = await self._endpoints()
            await self._learn_target(endpoints[0])
            connection = EnvelopeConnection(self._http, endpoints, self._identity, self._link)
            await connection.open()
        except BaseException:
            if connection is not None:
                await connection.close()
            await self._release()
            raise
        return EnvelopeClient(connection, card=self._envelope_card, on_close=self._release)

    async def _release(self) -> None:
        await self._verifier.aclose()
        await self._auth.aclose()
        if self._owns_http:
            await self._http.close()

    async def _learn_target(self, endpoint: LinkEndpoint) -> None:
        """Learn the id of the agent where signed messages need it: from its envelope card."""
        if self._envelope_card is None and self._identity.signs:
            try:
                self._envelope_card = await self._fetched_card(f"{endpoint.url}/card")
            except (CardNotFound, CardInvalid, AuthenticationRequired) as error:
                logger.info("envelope: the id of the agent is not known: %s", error)
        if self._envelope_card is not None:
            self._identity.target_id = self._envelope_card.agent_info.id

    # -- the endpoints -------------------------------------------------------------------------

    async def _endpoints(self) -> list[LinkEndpoint]:
        if self._direct.endswith(f"{ENDPOINT}/card"):
            self._envelope_card = await self._fetched_card(self._direct)
        if self._envelope_card is not None:
            return await self._of_envelope_card(self._envelope_card)
        if self._direct:
            origin = Origin.of(self._direct)
            credentials = self._auth.credentials.for_origin(origin)
            card = _stand_in(self._direct, ())
            self._auth.for_card(credentials, lambda: card, origin)
            return [self._endpoint(self._direct, card)]
        return await self._of_a2a_card()

    async def _of_a2a_card(self) -> list[LinkEndpoint]:
        resolved = await self._resolve(self._resolver())
        self._bind(resolved)
        await self._auth.prepare()
        chosen = choose(
            resolved.card,
            BINDING,
            card_url=resolved.url,
            credentials=self._auth.credentials,
            http=self._http,
        )
        return [self._endpoint(each.interface.url, resolved.card) for each in chosen.candidates]

    async def _of_envelope_card(self, card: EnvelopeCard) -> list[LinkEndpoint]:
        stand_in = _stand_in(card.agent_info.name or card.agent_info.id, card.security.auth_methods)
        credentials = self._auth.credentials
        named = Origin.of(self._direct) if self._direct else None
        credentials = (
            credentials.for_any_origin() if self._is_given_card else credentials.for_origin(named)
        )
        primary, backup = card.endpoints.primary, card.endpoints.backup
        first = Origin.of(http_address(primary or backup))
        self._auth.for_card(credentials, lambda: stand_in, named or first)
        await self._auth.prepare()
        found = []
        for url in dict.fromkeys((primary, backup)):
            if not url:
                continue
            origin = _origin_of(url)
            if not self._auth.credentials.allows(origin):
                if url == primary and not backup:
                    raise self._auth.credentials.refusal(stand_in.name, [origin])
                continue
            found.append(self._endpoint(url, stand_in))
        if not found:
            raise self._auth.credentials.refusal(stand_in.name, [first])
        # What was encrypted is not taken up again in the clear.
        if found[0].url.startswith("https:"):
            found = [each for each in found if each.url.startswith("https:")]
        return found

    def _endpoint(self, url: str, card: AgentCard) -> LinkEndpoint:
        origin = _origin_of(url)
        parameters = self._auth.credentials.agent_parameters(origin, card)
        return LinkEndpoint(
            parameters.add_to(http_address(url)),
            headers=parameters.headers,
            auth=self._auth.at(origin),
        )

    async def _fetched_card(self, url: str) -> EnvelopeCard:
        """Return the envelope card at an address. Raises ``CardNotFound``, ``CardInvalid``."""
        from parley.client.bindings.request_auth import refusal_in
        from parley.envelope.cards import read_card

        if not self._auth.is_bound:
            self._auth.for_origin(Origin.of(url))
        credentials = self._auth.credentials
        headers = {"Accept": "application/json", **credentials.public}
        given = credentials.card_headers(url, challenged=False)
        reply = await self._http.get(
            url, {**headers, **given}, timeout=self._timeout, limit=MAX_CARD
        )
        if reply.status in (401, 403):
            found = await self._auth.card_parameters(refusal_in(reply.status, reply.headers), url)
            given = {**credentials.card_headers(url, challenged=True), **found}
            reply = await self._http.get(
                url, {**headers, **given}, timeout=self._timeout, limit=MAX_CARD
            )
        if reply.status != 200:
            raise CardNotFound(f"{url} answered {reply.status}, and no envelope card")
        try:
            return read_card(reply.body)
        except A2AError as error:
            raise CardInvalid(f"{url} is no envelope card: {error.message}") from None


def is_endpoint(reference: str) -> bool:
    """Return whether a reference is the address of an envelope interface, or of its card."""
    parts = urlsplit(reference.strip())
    if parts.scheme in ("ws", "wss"):
        return True
    path = parts.path.rstrip("/")
    return parts.scheme in ("http", "https") and path.endswith((ENDPOINT, f"{ENDPOINT}/card"))


def card_in(reference: Any) -> EnvelopeCard | None:
    """Return the envelope card that a reference is: a value, a mapping, JSON, or a file of it."""
    if isinstance(reference, str) and not reference.lstrip().startswith("{"):
        return None
    if isinstance(reference, AgentCard):
        return None
    from parley.envelope.cards import EnvelopeCard, read_card

    if isinstance(reference, EnvelopeCard):
        return reference
    if isinstance(reference, os.PathLike):
        with open(reference, "rb") as file:
            reference = file.read(MAX_CARD)
    is_card = (
        "agentInfo" in reference
        if isinstance(reference, Mapping | str)
        else isinstance(reference, bytes) and b'"agentInfo"' in reference
    )
    if not is_card:
        return None
    try:
        return read_card(reference)
    except A2AError as error:
        raise CardInvalid(f"this is no envelope card: {error.message}") from None


def _first_address(card: EnvelopeCard) -> str:
    for url in (card.endpoints.primary, card.endpoints.backup):
        if url:
            _origin_of(url)
            return http_address(url)
    raise CardInvalid(f"the envelope card of {card.agent_info.id[:100]!r} has no endpoint")


def _origin_of(url: str) -> Origin:
    try:
        return Origin.of(http_address(url))
    except ValueError as error:
        raise CardInvalid(f"the endpoint {url[:200]!r} is not {error}") from None


def _stand_in(name: str, auth_methods: tuple[str, ...]) -> AgentCard:
    """Return an A2A card that says what credentials an agent without one takes."""
    schemes = {}
    if "bearer-token" in auth_methods:
        schemes["bearer"] = SecurityScheme(
            http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer")
        )
    return AgentCard(
        name=name,
        description="",
        version="",
        supported_interfaces=(
            AgentInterface(url="-", protocol_binding=BINDING, protocol_version=""),
        ),
        capabilities=AgentCapabilities(),
        security_schemes=schemes,
        default_input_modes=(),
        default_output_modes=(),
        skills=(),
    )


# -- connecting -------------------------------------------------------------------------------


def connect(
    agent: Any,
    /,
    *,
    agent_id: str = "",
    agent_type: str = "",
    key: EnvelopeKey | None = None,
    agent_key: EnvelopeKey | None = None,
    transport: Literal["auto", "socket", "http"] = "auto",
    heartbeat: float | None = None,
    settings: LinkSettings | None = None,
    path: str = "",
    auth: Credential | Sequence[Credential] | Literal[False] | None = None,
    headers: Mapping[str, str] | None = None,
    bearer: str | None = None,
    api_key: str | None = None,
    timeout: float | None = 30.0,
    insecure: bool = False,
    trust_origins: Sequence[str] = (),
    tls: ssl.SSLContext | Tls | None = None,
    proxy: str | None = None,
    egress: Egress | None = None,
    http: HttpTransport | None = None,
    trust: CardTrust | bool | None = None,
) -> EnvelopeOpening:
    """Connect to an agent by the envelope protocol: ``async with`` it.

    ``agent`` is the address of an agent (its A2A card names the interface), an address that ends
    with ``/envelope`` or begins with ``ws://`` or ``wss://`` (the interface itself), the address of
    an envelope card (``.../envelope/card``), such a card, an A2A card, an ``Agent`` or an ASGI app
    of this process, or one that ``parley.find`` returned. Of an envelope card the primary endpoint
    is used, then the backup.

    ``agent_id`` is who this side says to be. It has to be what the credentials or the ``key`` are
    for; without it, the agent says what they are for, and a caller without any gets an id by
    chance. ``key`` signs every message; with ``agent_key`` only answers count that this key signed.

    A WebSocket is used where it can be had, else HTTP (``transport="socket"`` or ``"http"`` allows
    one only); a WebSocket is tried again later. ``heartbeat`` is the interval of HEARTBEATs in
    seconds; ``settings`` has this and more: limits, pauses, how often a request is sent again.

    ``timeout`` bounds fetching cards. The other options are those of ``parley.connect``.

    Opening raises what ``parley.connect`` raises, and ``SocketRefused`` where only a WebSocket is
    allowed and none is opened. Raises ``ValueError`` for settings that contradict each other.
    """
    given = settings or LinkSettings(transport=transport, heartbeat=heartbeat or 30.0)
    if settings is not None and (transport != "auto" or heartbeat is not None):
        raise ValueError("settings have transport and heartbeat: give them there, or alone")
    options: dict[str, Any] = {
        "auth": auth,
        "headers": headers,
        "bearer": bearer,
        "api_key": api_key,
        "timeout": timeout,
        "insecure": insecure,
        "trust_origins": trust_origins,
        "tls": tls,
        "proxy": proxy,
        "egress": egress,
        "http": http,
        "trust": trust,
    }
    identity = EnvelopeIdentity.of(agent_id, agent_type, key=key, agent_key=agent_key)
    reference = agent if isinstance(agent, EnvelopeCard) else reference_of(agent, options)
    return EnvelopeOpening(
        reference,
        identity=identity,
        link=given,
        path=path,
        stream_idle_timeout=None,
        retries=3,
        extensions=(),
        idempotent=True,
        allow_private_files=False,
        **options,
    )
