"""What an operator can set about a server, checked when it is set."""

from __future__ import annotations

import re
from typing import Literal

import msgspec

from parley.server.hosts import is_pattern

_DAY = 24 * 60 * 60
_AUTHORITY = re.compile(r"(?:(?:https?://)?[^\s/]+:\d{1,5})?")
_ORIGIN = re.compile(r"https?://[^/\s,]+")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a server.

    ``max_body_bytes``, ``max_depth`` (nesting of the JSON) and ``max_parts`` (of one message) limit
    a request. ``keep_alive`` is the silence in seconds after which a stream carries a comment.
    ``max_body_bytes_held`` bounds, in bytes, what is here of all requests that are not whole yet or
    wait for the answer before theirs, and ``address_share`` is the part of it that may come from
    one address, though never less than one request of ``max_body_bytes``; 1 where all requests
    come through a proxy. ``max_unsent_bytes`` bounds what all answers hold whose readers are slow:
    beyond it the one that nobody read for longest ends.
    ``send_buffer`` bounds, in bytes, what a stream holds for a reader that is slow; one event may
    exceed it. ``max_streams`` bounds the streams that are open at once, ``max_waiting`` the senders
    that wait for a reply; ``caller_share`` is the part of either that one known caller may have.
    ``max_connections`` bounds the HTTP connections, and those of gRPC, besides what the system lets
    a process open.
    A client has ``head_timeout`` seconds for the head of a request, from its first byte on, and
    ``body_timeout`` for the body, and more as long as it comes faster than 4 KiB a second; it may
    not stand still for that long. Over gRPC the first is for the beginning of a connection, the
    second for a whole message.
    These three are kept by the server of this package; another that runs the app has its own.
    ``cors_origins`` are the origins whose pages may call, ``"*"`` for all.
    ``missing_version`` is how methods and paths of 1.0 are answered that come without
    ``A2A-Version``: such a request is of version 0.3 (§3.6.2), so they are refused with the header
    to send; ``"1.0"`` serves them. What is of 0.3 is served either way; ``GET /tasks`` and
    ``GET /tasks/{id}``, which texts print without one, are of the version that this says.
    ``card`` is the form of agent cards for callers that name no version: ``"merged"`` can be read
    by those of every version, ``"1.0"`` is exactly what that version says.
    ``card_max_age`` is how long, in seconds, an agent card may be kept by caches.
    ``grpc_address`` is the ``host:port`` at which gRPC is reached, for cards, where it is another
    than the host that callers see and the port that is listened on.
    ``grpc_on_card`` lists gRPC on cards; without it, it is for those who know where it is. Some
    clients refuse a card with another address than that of HTTP.
    ``docs`` serves a page about the HTTP+JSON binding at ``docs`` below an agent's address, and the
    OpenAPI document that it is made of at ``openapi.json``.
    ``trust_proxy`` believes ``X-Forwarded-Host``, ``-Prefix`` and ``-Proto`` when a card is
    written: only for a server that nobody can reach but through a proxy that sets them. Without it
    no such header is believed.
    ``allowed_hosts`` are the hosts that requests may name, such as ``example.com``,
    ``*.example.com`` (those below it), ``example.com:8443`` or ``"*"`` for all, besides the
    server's own names; others are refused with 421. Without any, that holds on a loopback address
    only, where pages elsewhere must not get at the server (DNS rebinding).

    Raises ``ValueError`` for a value that makes no sense.
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
    max_waiting: int = 10_000
    caller_share: float = 0.5
    max_connections: int = 25_000
    head_timeout: float = 10.0
    body_timeout: float = 30.0
    cors_origins: tuple[str, ...] = ()
    missing_version: Literal["0.3", "1.0"] = "0.3"
    card: Literal["merged", "1.0"] = "merged"
    card_max_age: int = 60
    docs: bool = True
    grpc_address: str = ""
    grpc_on_card: bool = True
    trust_proxy: bool = False
    allowed_hosts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(
                    f"the setting {name} takes a whole number of at least {least}, not {value!r}"
                )
        for name in ("keep_alive", "head_timeout", "body_timeout"):
            seconds = getattr(self, name)
            is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
            if not is_number or not 0 < seconds <= _DAY:
                raise ValueError(
                    f"the setting {name} takes seconds above 0, up to a day, not {seconds!r}"
                )
        if self.max_body_bytes_held < self.max_body_bytes:
            raise ValueError(
                "the setting max_body_bytes_held takes at least as many as one request may have "
                f"(max_body_bytes, {self.max_body_bytes}), not {self.max_body_bytes_held}"
            )
        for name in ("caller_share", "address_share"):
            share = getattr(self, name)
            is_number = isinstance(share, int | float) and not isinstance(share, bool)
            if not is_number or not 0 < share <= 1:
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
        if self.missing_version not in ("0.3", "1.0"):
            raise ValueError(
                f"the setting missing_version takes '0.3' or '1.0', not {self.missing_version!r}"
            )
        if self.card not in ("merged", "1.0"):
            raise ValueError(f"the setting card takes 'merged' or '1.0', not {self.card!r}")
        if not isinstance(self.grpc_address, str) or not _AUTHORITY.fullmatch(self.grpc_address):
            raise ValueError(f"the setting grpc_address takes host:port, not {self.grpc_address!r}")
        for name in ("docs", "grpc_on_card", "trust_proxy"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ValueError(f"the setting {name} takes True or False, not {value!r}")


_LEAST = {
    "max_body_bytes": 1024,
    "max_body_bytes_held": 1024,
    "max_unsent_bytes": 1024,
    "max_depth": 10,
    "max_parts": 1,
    "send_buffer": 1024,
    "max_streams": 1,
    "max_waiting": 1,
    "max_connections": 1,
    "card_max_age": 0,
}
