"""The settings of a server, and its options of TLS and gRPC, validated on construction.

Imports nothing that serves, and no gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from parley.model.distribution import install_command
from parley.model.option import Option

_DAY = 24 * 60 * 60
_MONTH = 30 * _DAY
_LARGEST_FILE = 64 * 1024**3  # it comes in a bounded number of pieces
_AUTHORITY = re.compile(r"(?:(?:https?://)?[^\s/]+:\d{1,5})?")
_ORIGIN = re.compile(r"https?://[^/\s,]+")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server. Times are in seconds.

    ``max_body_bytes``, ``max_depth`` (nesting of the JSON) and ``max_parts`` (of one message) limit
    a request. ``max_body_bytes_held`` limits all requests together that are incomplete or wait for
    an earlier answer. ``address_share`` is the part of it that one address may use, and always one
    request of ``max_body_bytes``; behind a proxy, set it to 1. ``max_unsent_bytes`` limits all
    unread answers; beyond it, the answer without progress for longest is aborted. ``send_buffer``
    limits the bytes of one stream for a slow reader; one event may exceed it.

    ``max_streams`` limits open streams, ``max_blocking_requests`` requests that wait for a reply.
    ``max_file_bytes`` limits a file by reference, ``max_file_transfers`` the concurrent uploads and
    downloads. ``inline_file_bytes`` is on the card: callers should send files up to that size in
    messages. ``max_uploads`` and ``max_upload_bytes`` limit the files of one caller that belong to
    no task, including unfinished ones; unidentified callers share one such allowance. After
    ``upload_timeout`` an upload expires; a complete file without a task expires that long after its
    last byte. ``file_link_timeout`` is the time that a signed address of a file is valid.
    ``caller_share`` is the part of streams, waiting requests or transfers that one known caller may
    use.

    ``max_connections`` limits the connections of HTTP, and of gRPC, within the limits of the system
    for a process. Over HTTP one address has ``address_share`` of them, and at least 100.
    ``head_timeout`` runs from the first byte of a request to the end of its headers,
    ``body_timeout`` for its body; each 4 KiB received extend it by a second, and no pause may last
    as long. For gRPC they apply to the handshake of a connection and to a whole message. After
    ``keep_alive`` of silence a stream sends a comment. Only this package's own server enforces
    ``max_connections``, ``head_timeout`` and ``body_timeout``, and the limits on messages and pings
    of WebSockets.

    ``max_sockets`` limits open WebSockets (0: none are accepted), ``max_sockets_per_address`` the
    sockets from one address (of an IPv6 network, /64), ``max_sockets_per_caller`` the sockets of
    one known caller. ``max_socket_message_bytes`` limits a message over a socket; 0 is
    ``max_body_bytes``. A client is pinged every ``socket_ping_interval``, and disconnected if it
    sends nothing for ``socket_ping_timeout`` after that.

    ``missing_version``: What to do with a 1.0 request that lacks ``A2A-Version``: ``"0.3"`` rejects
    it with a hint (§3.6.2), ``"1.0"`` serves it. Requests of 0.3 are always served. ``GET /tasks``
    and ``GET /tasks/{id}`` without the header are served in this version.

    ``card``: The agent card for callers that name no version. ``"merged"`` is readable by clients
    of every version, ``"1.0"`` is exactly that version's. ``card_max_age``: The time that caches
    may keep an agent card. ``page``: Answer browsers at the address of an agent, and at the root of
    a server of several, with a page for people. ``docs``: Serve the OpenAPI document of HTTP+JSON
    at ``openapi.json`` below an agent's address. ``grpc_address``: The ``host:port`` of gRPC on
    cards, if it differs from the host that callers see and the port that
    gRPC listens on. ``grpc_on_card``: List gRPC on cards. Some clients reject a card that lists it.
    ``cors_origins``: Origins whose pages may call, ``"*"`` for all.

    ``trust_proxy``: Trust ``X-Forwarded-Host``, ``-Prefix``, ``-Proto`` and ``-For``. Only for a
    server that is reachable solely through a proxy that sets them. ``auth_failures_per_minute``:
    The number of credentials of an address (of an IPv6 network, /64), and of one user or key, that
    may be rejected per minute: further requests with credentials get status 429. 0 is no limit.
    With ``trust_proxy`` the address is the last one in ``X-Forwarded-For``.
    ``webhook_calls_per_minute`` and ``max_webhook_calls``: The number of requests that one webhook
    host, or address, gets per minute and concurrently, from all callers and replicas together.

    ``allowed_hosts``: Hosts that requests may name in addition to the server's own, such as
    ``example.com``, ``*.example.com`` (its subdomains), ``example.com:8443`` or ``"*"`` for all;
    others get status 421. Without any, only connections to loopback addresses are checked, against
    DNS rebinding. ``restrict``: The audience of the endpoints ``card``, ``page``, ``docs`` (the
    OpenAPI document, and reflection of gRPC), ``health``, ``agents``, ``callbacks``, ``jwks``
    (the public keys of the server) and ``metrics``: ``"authenticated"`` callers, or a list of
    networks, as in
    ``{"docs": "authenticated", "health": ["10.0.0.0/8"]}``. The address is the connection's, with
    ``trust_proxy`` the last one in ``X-Forwarded-For``. ``hsts_max_age``: The time for which
    browsers that used HTTPS use only HTTPS for the host (``Strict-Transport-Security``); 0 leaves
    the header out.

    Raises ``ValueError`` for a value out of range.
    """

    max_body_bytes: int = 10 * 1024 * 1024
    max_body_bytes_held: int = 256 * 1024 * 1024
    address_share: float = 0.25
    max_unsent_bytes: int = 256 * 1024 * 1024
    max_depth: int = 100
    max_parts: int = 1000
    keep_alive: float = 15.0
    send_buffer: int = 64 * 1024
    max_streams: int = 10_000
    max_blocking_requests: int = 10_000
    caller_share: float = 0.5
    max_file_bytes: int = 5 * 1024 * 1024 * 1024
    inline_file_bytes: int = 1024 * 1024
    max_file_transfers: int = 1_000
    max_uploads: int = 100
    max_upload_bytes: int = 20 * 1024 * 1024 * 1024
    upload_timeout: float = 24 * 60 * 60
    file_link_timeout: float = 24 * 60 * 60
    max_connections: int = 25_000
    max_sockets: int = 10_000
    max_sockets_per_address: int = 1_000
    max_sockets_per_caller: int = 1_000
    max_socket_message_bytes: int = 0
    socket_ping_interval: float = 20.0
    socket_ping_timeout: float = 20.0
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    cors_origins: tuple[str, ...] = ()
    missing_version: Annotated[
        Literal["0.3", "1.0"],
        Option(
            "The version of a request that names none: 0.3, as the specification says, or 1.0, "
            "which also reads the forms of 0.3 in introductory texts.",
            choices=("0.3", "1.0"),
        ),
    ] = "0.3"
    card: Literal["merged", "1.0"] = "merged"
    card_max_age: int = 60
    page: Annotated[
        bool,
        Option("Do not answer browsers with a page about the agent.", flag="--no-page", sets=False),
    ] = True
    docs: bool = True
    metrics: Annotated[
        bool,
        Option(
            "Count, and answer /metrics in the text of Prometheus; --restrict metrics=... names "
            "who reads it."
        ),
    ] = False
    grpc_address: str = ""
    grpc_on_card: Annotated[
        bool,
        Option(
            "Leave gRPC off the cards, for clients that reject an interface with another address "
            "than HTTP (google-adk).",
            flag="--no-grpc-on-card",
            sets=False,
        ),
    ] = True
    trust_proxy: bool = False
    auth_failures_per_minute: int = 30
    webhook_calls_per_minute: int = 6000
    max_webhook_calls: int = 128
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option(
            "A host that requests may name besides this machine's own, such as example.com, "
            "*.example.com, example.com:8443, or * for all; repeat it.",
            flag="--allowed-host",
            metavar="HOST",
        ),
    ] = ()
    restrict: Annotated[
        Mapping[str, str | Sequence[str]],
        Option(
            "The audience of an endpoint (card, page, docs, health, agents, callbacks, jwks or "
            "metrics): authenticated callers, or networks, as in docs=authenticated or "
            "health=10.0.0.0/8,127.0.0.1; repeat it.",
            metavar="ENDPOINT=WHO",
            panel="Who may call",
        ),
    ] = {}
    hsts_max_age: Annotated[
        int,
        Option(
            "Do not tell browsers to use only HTTPS for this host.",
            flag="--no-hsts",
            panel="Who may call",
            sets=0,
        ),
    ] = 365 * 24 * 60 * 60

    def __post_init__(self) -> None:
        # The command line's help is made of the options, and imports no server code.
        from parley.server.address import is_pattern
        from parley.server.restrictions import read_restrictions

        for name, minimum in _MINIMUM.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
                raise ValueError(
                    f"the setting {name} takes a whole number of at least {minimum}, not {value!r}"
                )
        for name in (
            "keep_alive",
            "head_timeout",
            "body_timeout",
            "socket_ping_interval",
            "socket_ping_timeout",
        ):
            if not _is_up_to(_DAY, seconds := getattr(self, name)):
                raise ValueError(
                    f"the setting {name} takes seconds above 0, up to a day, not {seconds!r}"
                )
        for name in ("upload_timeout", "file_link_timeout"):
            if not _is_up_to(_MONTH, seconds := getattr(self, name)):
                raise ValueError(
                    f"the setting {name} takes seconds above 0, up to 30 days, not {seconds!r}"
                )
        if self.max_file_bytes > _LARGEST_FILE:
            raise ValueError(
                f"the setting max_file_bytes takes up to {_LARGEST_FILE} (64 GiB), not "
                f"{self.max_file_bytes}"
            )
        if self.max_upload_bytes < self.max_file_bytes:
            raise ValueError(
                "the setting max_upload_bytes takes at least as many as one file may have "
                f"(max_file_bytes, {self.max_file_bytes}), not {self.max_upload_bytes}"
            )
        if self.max_body_bytes_held < self.max_body_bytes:
            raise ValueError(
                "the setting max_body_bytes_held takes at least as many as one request may have "
                f"(max_body_bytes, {self.max_body_bytes}), not {self.max_body_bytes_held}"
            )
        if self.max_socket_message_bytes > self.max_body_bytes_held:
            raise ValueError(
                "the setting max_socket_message_bytes takes at most as many as all unfinished "
                f"requests may have (max_body_bytes_held, {self.max_body_bytes_held}), not "
                f"{self.max_socket_message_bytes}"
            )
        for name in ("caller_share", "address_share"):
            if not _is_up_to(1, share := getattr(self, name)):
                raise ValueError(
                    f"the setting {name} takes a part above 0, up to 1 for all, not {share!r}"
                )
        if not isinstance(self.cors_origins, tuple):
            raise ValueError(
                f"the setting cors_origins takes a tuple of origins, not {self.cors_origins!r}"
            )
        for origin in self.cors_origins:
            if origin != "*" and not (isinstance(origin, str) and _ORIGIN.fullmatch(origin)):
                raise ValueError(
                    "the setting cors_origins takes origins such as https://example.com, or *, "
                    f"not {origin!r}"
                )
        if not isinstance(self.allowed_hosts, tuple):
            raise ValueError(
                f"the setting allowed_hosts takes a tuple of hosts, not {self.allowed_hosts!r}"
            )
        for host in self.allowed_hosts:
            if not is_pattern(host):
                raise ValueError(
                    "the setting allowed_hosts takes hosts such as example.com, *.example.com, "
                    f"example.com:8443 or [::1], or *, not {host!r}"
                )
        if "metrics" in read_restrictions(self.restrict) and not self.metrics:
            raise ValueError("the setting restrict names metrics, and they are off: set metrics")
        if self.missing_version not in ("0.3", "1.0"):
            raise ValueError(
                f"the setting missing_version takes '0.3' or '1.0', not {self.missing_version!r}"
            )
        if self.card not in ("merged", "1.0"):
            raise ValueError(f"the setting card takes 'merged' or '1.0', not {self.card!r}")
        if not isinstance(self.grpc_address, str) or not _AUTHORITY.fullmatch(self.grpc_address):
            raise ValueError(f"the setting grpc_address takes host:port, not {self.grpc_address!r}")
        for name in ("page", "docs", "metrics", "grpc_on_card", "trust_proxy"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(f"the setting {name} takes True or False, not {value!r}")


def _is_up_to(limit: int, value: object) -> bool:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 < value <= limit  # type: ignore[operator]


_MINIMUM = {
    "max_body_bytes": 1024,
    "max_body_bytes_held": 1024,
    "max_unsent_bytes": 1024,
    "max_depth": 10,
    "max_parts": 1,
    "send_buffer": 1024,
    "max_streams": 1,
    "max_blocking_requests": 1,
    "max_file_bytes": 1,
    "inline_file_bytes": 0,
    "max_file_transfers": 1,
    "max_uploads": 1,
    "max_upload_bytes": 1,
    "max_connections": 1,
    "max_sockets": 0,
    "max_sockets_per_address": 1,
    "max_sockets_per_caller": 1,
    "max_socket_message_bytes": 0,
    "card_max_age": 0,
    "auth_failures_per_minute": 0,
    "webhook_calls_per_minute": 1,
    "max_webhook_calls": 1,
    "hsts_max_age": 0,
}


# -- TLS --------------------------------------------------------------------------------------

PASSWORD_VARIABLE = "PARLEY_TLS_KEY_PASSWORD"
"""The environment variable with the passphrase of encrypted private keys."""

CallerCertificates = Literal["none", "optional", "required"]
"""The request for certificates of callers."""


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a server's TLS, all PEM.

    ``cert`` is the server's certificate with its chain, ``key`` its private key; the passphrase of
    an encrypted key is in ``PARLEY_TLS_KEY_PASSWORD``. With ``client_ca``, the authorities of
    callers' certificates, callers are asked for one. The files are read again when they change;
    ``check_interval`` is in seconds.

    Raises ``ValueError`` for a missing file name.
    """

    cert: str | Path
    key: str | Path
    client_ca: str | Path | None = None
    check_interval: float = 2.0

    def __post_init__(self) -> None:
        if not str(self.cert) or not str(self.key):
            raise ValueError("TLS takes a certificate and its key: give the files of both")
        if self.client_ca is not None and not str(self.client_ca):
            raise ValueError("the authorities of callers' certificates are in a file: name it")


def tls_options(
    cert: str | Path | None = None,
    key: str | Path | None = None,
    client_ca: str | Path | None = None,
) -> TlsOptions | None:
    """Return the options for these files, ``None`` without any.

    Raises ``ValueError`` for files that contradict each other.
    """
    if cert is None and key is None:
        if client_ca is not None:
            raise ValueError(
                "certificates of callers need TLS: give a certificate and its key (tls_cert, "
                "tls_key) together with tls_client_ca"
            )
        return None
    if cert is None or key is None:
        raise ValueError("TLS takes a certificate and its key: give both, tls_cert and tls_key")
    return TlsOptions(cert=cert, key=key, client_ca=client_ca)


# -- gRPC -------------------------------------------------------------------------------------

NEEDED = f"gRPC is not installed: {install_command('grpc')}"


class GrpcOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The port for gRPC, and its TLS.

    ``port`` 0 selects a free one. ``host`` is by default the host of HTTP. ``cert`` and ``key`` are
    PEM files of the server's certificate (with its chain) and its private key; without them there
    is no TLS. With ``client_ca``, a PEM file of authorities, only callers with a certificate of
    these are accepted. With ``shared`` other processes of this server listen on the port too.

    Raises ``ValueError`` for contradictory options.
    """

    port: int
    host: str | None = None
    cert: str | Path | None = None
    key: str | Path | None = None
    client_ca: str | Path | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("TLS for gRPC takes a certificate and its key: give both")
        if self.client_ca is not None and self.cert is None:
            raise ValueError("certificates of callers need TLS: give a certificate and its key")
        if not all(_is_installed(module) for module in ("grpc", "google.protobuf")):
            raise ValueError(NEEDED)


def grpc_options(port: int | None, **others: str | Path | None) -> GrpcOptions | None:
    """Return the options for a port, ``None`` without one.

    Raises ``ValueError`` for other options without a port.
    """
    if port is not None:
        return GrpcOptions(port=port, **others)  # type: ignore[arg-type]
    given = [name for name, value in others.items() if value is not None]
    if given:
        raise ValueError(f"gRPC needs a port; {', '.join(given)} alone have no effect")
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False
