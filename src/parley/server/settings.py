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


_AMOUNTS = "How much"
_CALLERS = "Who may call"
_SENT = "What is sent"
_TIMES = "Times"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The limits, times (in seconds) and rules of a server (``docs/reference/settings.md``).

    Only this package's own server enforces ``max_connections``, ``head_timeout`` and
    ``body_timeout``, and the limits on messages and pings of WebSockets.

    Raises ``ValueError`` for a value out of range.
    """

    max_body_bytes: Annotated[
        int, Option("The size limit of a request.", "BYTES", _AMOUNTS, default="10 MiB")
    ] = 10 * 1024 * 1024
    max_body_bytes_held: Annotated[
        int,
        Option(
            "The limit of all requests together that are incomplete or wait for an earlier answer; "
            "more get 503.",
            "BYTES",
            _AMOUNTS,
            default="256 MiB",
        ),
    ] = 256 * 1024 * 1024
    address_share: Annotated[
        float,
        Option(
            "The part of connections and of held bytes that one address may use, and always one "
            "request of max_body_bytes and 100 connections over HTTP; behind a proxy, 1.",
            "SHARE",
            _AMOUNTS,
        ),
    ] = 0.25
    max_unsent_bytes: Annotated[
        int,
        Option(
            "The limit of all unread answers; beyond it, the answer without progress for longest "
            "is aborted.",
            "BYTES",
            _AMOUNTS,
            default="256 MiB",
        ),
    ] = 256 * 1024 * 1024
    max_depth: Annotated[int, Option("The nesting limit of JSON.", "N", _AMOUNTS)] = 100
    max_parts: Annotated[int, Option("The most parts of one message.", "N", _AMOUNTS)] = 1000
    keep_alive: Annotated[
        float, Option("The silence after which a stream sends a comment.", "TIME", _TIMES)
    ] = 15.0
    send_buffer: Annotated[
        int,
        Option(
            "The bytes of one stream that are held for a slow reader; one event may exceed it.",
            "BYTES",
            _AMOUNTS,
            default="64 KiB",
        ),
    ] = 64 * 1024
    max_streams: Annotated[int, Option("The most open streams.", "N", _AMOUNTS)] = 10_000
    max_blocking_requests: Annotated[
        int, Option("The most requests that wait for a reply.", "N", _AMOUNTS)
    ] = 10_000
    caller_share: Annotated[
        float,
        Option(
            "The part of streams, waiting requests or file transfers that one known caller may "
            "use.",
            "SHARE",
            _AMOUNTS,
        ),
    ] = 0.5
    max_file_bytes: Annotated[
        int, Option("The size limit of a file by reference.", "BYTES", _AMOUNTS, default="5 GiB")
    ] = 5 * 1024 * 1024 * 1024
    inline_file_bytes: Annotated[
        int,
        Option(
            "The size, on the card, up to which callers should send files in messages.",
            "BYTES",
            _AMOUNTS,
            default="1 MiB",
        ),
    ] = 1024 * 1024
    max_file_transfers: Annotated[
        int, Option("The most concurrent uploads and downloads.", "N", _AMOUNTS)
    ] = 1_000
    max_uploads: Annotated[
        int,
        Option(
            "The most files of one caller that belong to no task, including unfinished ones; "
            "unidentified callers share one such allowance.",
            "N",
            _AMOUNTS,
        ),
    ] = 100
    max_upload_bytes: Annotated[
        int, Option("The size limit of these files.", "BYTES", _AMOUNTS, default="20 GiB")
    ] = 20 * 1024 * 1024 * 1024
    upload_timeout: Annotated[
        float,
        Option(
            "The time after which an upload expires; a complete file without a task expires that "
            "long after its last byte.",
            "TIME",
            _TIMES,
        ),
    ] = 24 * 60 * 60.0
    file_link_timeout: Annotated[
        float, Option("The time that a signed address of a file is valid.", "TIME", _TIMES)
    ] = 24 * 60 * 60.0
    max_connections: Annotated[
        int,
        Option(
            "The most connections over HTTP, and as many over gRPC, within the limits of the "
            "system for a process.",
            "N",
            _AMOUNTS,
        ),
    ] = 25_000
    max_sockets: Annotated[
        int, Option("The most open WebSockets; 0 accepts none.", "N", _AMOUNTS)
    ] = 10_000
    max_sockets_per_address: Annotated[
        int, Option("The most from one address (of an IPv6 network, /64).", "N", _AMOUNTS)
    ] = 1_000
    max_sockets_per_caller: Annotated[
        int, Option("The most of one known caller.", "N", _AMOUNTS)
    ] = 1_000
    max_socket_message_bytes: Annotated[
        int,
        Option(
            "The size limit of a message over a WebSocket; 0 is max_body_bytes.", "BYTES", _AMOUNTS
        ),
    ] = 0
    socket_ping_interval: Annotated[
        float, Option("The interval of pings to a WebSocket.", "TIME", _TIMES)
    ] = 20.0
    socket_ping_timeout: Annotated[
        float, Option("The silence after a ping that ends a WebSocket.", "TIME", _TIMES)
    ] = 20.0
    head_timeout: Annotated[
        float,
        Option(
            "The time from the first byte of a request to the end of its headers; for gRPC, of a "
            "connection's handshake.",
            "TIME",
            _TIMES,
        ),
    ] = 10.0
    body_timeout: Annotated[
        float,
        Option(
            "The time for the body of a request, and the longest pause; each 4 KiB received "
            "extend it by a second. For gRPC, of a whole message.",
            "TIME",
            _TIMES,
        ),
    ] = 30.0
    cors_origins: Annotated[
        tuple[str, ...],
        Option(
            "An origin whose pages may call, or * for all; repeat it.",
            "ORIGIN",
            _CALLERS,
            flag="--cors-origin",
        ),
    ] = ()
    missing_version: Annotated[
        Literal["0.3", "1.0"],
        Option(
            "The version of a 1.0 request without A2A-Version: 0.3 rejects it with a hint, 1.0 "
            "serves it, and reads forms of 0.3. GET /tasks and GET /tasks/{id} without the header "
            "have this version.",
            choices=("0.3", "1.0"),
        ),
    ] = "0.3"
    card: Annotated[
        Literal["merged", "1.0"],
        Option(
            "The agent card for callers that name no version: merged, which clients of every "
            "version can read, or exactly 1.0's.",
            choices=("merged", "1.0"),
        ),
    ] = "merged"
    card_max_age: Annotated[
        int, Option("The time that caches may keep an agent card.", "TIME", _TIMES)
    ] = 60
    page: Annotated[
        bool,
        Option("Do not answer browsers with a page about the agent.", flag="--no-page", sets=False),
    ] = True
    docs: Annotated[bool, Option("Do not serve /openapi.json.", flag="--no-docs", sets=False)] = (
        True
    )
    metrics: Annotated[
        bool,
        Option(
            "Count, and answer /metrics in the text of Prometheus, to this machine and private "
            "networks but to no proxy; --restrict metrics=... names others."
        ),
    ] = False
    grpc_address: Annotated[
        str,
        Option(
            "The address of gRPC on cards, if it differs from the host that callers see and the "
            "port that gRPC listens on.",
            "HOST:PORT",
        ),
    ] = ""
    grpc_on_card: Annotated[
        bool,
        Option(
            "Leave gRPC off the cards, for clients that reject an interface with another address "
            "than HTTP (google-adk).",
            flag="--no-grpc-on-card",
            sets=False,
        ),
    ] = True
    trust_proxy: Annotated[
        bool,
        Option(
            "Trust X-Forwarded-Host, -Prefix, -Proto and -For. Only for a server that is reachable "
            "solely through a proxy that sets them.",
            panel=_CALLERS,
        ),
    ] = False
    auth_failures_per_minute: Annotated[
        int,
        Option(
            "How many credentials of an address (of an IPv6 network, /64), and of one user or key, "
            "may be rejected per minute: further requests with credentials get 429. 0 is no limit.",
            "N",
            _CALLERS,
        ),
    ] = 30
    webhook_calls_per_minute: Annotated[
        int,
        Option(
            "The most requests per minute to one webhook host, or address, from all callers and "
            "replicas together.",
            "N",
            _SENT,
        ),
    ] = 6000
    max_webhook_calls: Annotated[int, Option("The same, at once.", "N", _SENT)] = 128
    allowed_hosts: Annotated[
        tuple[str, ...],
        Option(
            "A host that requests may name besides the server's own, such as example.com, "
            "*.example.com (its subdomains), example.com:8443, or * for all; repeat it. Others get "
            "421. Without any, only connections to loopback addresses are checked.",
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
            panel=_CALLERS,
        ),
    ] = {}
    hsts_max_age: Annotated[
        int,
        Option(
            "The time for which browsers that used HTTPS use only HTTPS for the host; 0 leaves "
            "Strict-Transport-Security out.",
            "TIME",
            _CALLERS,
            default="365d",
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
            raise ValueError(
                "TLS for gRPC takes a certificate and its key: give both, grpc_cert and grpc_key"
            )
        if self.client_ca is not None and self.cert is None:
            raise ValueError(
                "certificates of callers need TLS: give a certificate and its key (grpc_cert, "
                "grpc_key) together with grpc_client_ca"
            )
        if not all(_is_installed(module) for module in ("grpc", "google.protobuf")):
            raise ValueError(NEEDED)


def grpc_options(port: int | None, **others: str | Path | None) -> GrpcOptions | None:
    """Return the options for a port, ``None`` without one.

    Raises ``ValueError`` for other options without a port.
    """
    if port is not None:
        return GrpcOptions(port=port, **others)  # type: ignore[arg-type]
    given = [f"grpc_{name}" for name, value in others.items() if value is not None]
    if given:
        raise ValueError(f"gRPC needs a port; {', '.join(given)} alone have no effect")
    return None


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its package is missing
        return False
