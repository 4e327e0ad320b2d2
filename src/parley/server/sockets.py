"""Listening sockets, their address, and how many connections the system allows."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterable
from typing import Any

_BACKLOG = 2048
# File descriptors that are reserved for the store, the bus and agents.
_OTHER_FILES = 100
# This part (a fourth) of the files that may be open is for calls to webhooks.
_WEBHOOKS_SHARE = 4

_NOT_HERE = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(Exception):
    """The server cannot listen at the given address; the message says why, in one line."""


def listen(
    host: str, port: int, *, reserves: bool = False, shares: bool = False
) -> list[socket.socket]:
    """Return sockets that listen on all addresses of ``host``. ``port`` 0 picks a free one.

    With ``reserves`` they are bound only, so that ``share`` can let sockets of other processes
    listen, which are made with ``shares``. Raises ``ListenError``.
    """
    if not 0 <= port <= 65535:
        raise ListenError(f"{port} is no port: they go from 1 to 65535, and 0 takes a free one")
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except (OSError, UnicodeError):
        raise ListenError(f"{host!r} is not a name or an address of this machine") from None
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in found:
            # All addresses of a name share the port of the first.
            taken = sockets[0].getsockname()[1] if sockets else port
            try:
                sockets.append(_bind(family, (address[0], taken, *address[2:]), reserves, shares))
            except OSError as error:
                # One address family may be disabled on this machine, if another works.
                if error.errno not in _NOT_HERE or (address == found[-1][4] and not sockets):
                    raise
    except OSError as error:
        for sock in sockets:
            sock.close()
        raise ListenError(_reason(host, port, error)) from None
    return sockets


def share(sockets: Iterable[socket.socket]) -> None:
    """Let other processes of this user listen on the ports of sockets too.

    A socket that is bound before this call took a port that no other program listens on.
    """
    for sock in sockets:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)


def most_connections(kinds: int = 1) -> int:
    """Return the number of connections that the system allows this process, besides its other
    files.

    Several ``kinds`` of connections, which are counted separately, get equal parts.
    """
    return max(1, (_most_files() - most_webhook_calls() - _OTHER_FILES) // kinds)


def most_webhook_calls() -> int:
    """Return the number of connections to webhooks that the system allows this process."""
    return _most_files() // _WEBHOOKS_SHARE


def _most_files() -> int:
    """Return the number of files that the system allows this process, including connections."""
    try:
        import resource
    except ImportError:  # there is no such limit
        return sys.maxsize
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if most == resource.RLIM_INFINITY else most


def address_of(host: str, sockets: list[socket.socket], scheme: str = "http") -> str:
    """Return the URL of listening sockets from this machine."""
    name = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    port = sockets[0].getsockname()[1]
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def _bind(family: int, address: Any, reserves: bool, shares: bool) -> socket.socket:
    # The protocol is explicit: asyncio otherwise leaves Nagle's algorithm on, and a response in
    # two pieces takes 40 ms.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        if os.name == "posix":  # on Windows this option would let two servers share a port
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if shares:
            share([sock])
        sock.bind(address)
        if not reserves:
            sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def _reason(host: str, port: int, error: OSError) -> str:
    """Return the reason why listening at an address fails, and a remedy."""
    if error.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is in use: end what listens there, or choose another port "
            "(0 takes a free one)"
        )
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be listened on by this user: choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"{host} is not an address of this machine"
    return f"cannot listen on port {port} of {host}: {os.strerror(error.errno or 0)}"
