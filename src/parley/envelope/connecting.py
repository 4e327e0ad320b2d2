"""``parley.envelope.connect``: an agent, called by messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from parley.client.auth.credential import Credential
from parley.client.bindings.tls import Tls
from parley.client.card.trust import CardTrust
from parley.envelope.cards import EnvelopeCard
from parley.envelope.client.identity import EnvelopeIdentity
from parley.envelope.client.opening import EnvelopeOpening
from parley.envelope.client.settings import LinkSettings
from parley.envelope.client.sync import SyncEnvelopeClient, connect_in_thread
from parley.envelope.signatures import EnvelopeKey
from parley.host.connecting import reference_of

if TYPE_CHECKING:
    import ssl

    from parley.client.bindings.http import HttpTransport
    from parley.security.egress import Egress


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


def connect_sync(agent: Any, /, **options: Any) -> SyncEnvelopeClient:
    """Connect to an agent for blocking calls, at once: the options are those of ``connect``.

    Use the result in a ``with`` block, or close it.
    """
    return connect_in_thread(connect, agent, **options)
