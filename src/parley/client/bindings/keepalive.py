"""Sockets that notice a peer that is gone."""

from __future__ import annotations

import socket
from typing import Any


def keepalive_socket(address: tuple[Any, ...]) -> socket.socket:
    """Return a socket with TCP keepalive every minute.

    A call may wait for hours on a silent connection; the default interval is two hours.
    """
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # Not every system has all of these, and macOS names the first one differently.
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4)):
        option = getattr(socket, name, None)
        if option is None and name == "TCP_KEEPIDLE":
            option = getattr(socket, "TCP_KEEPALIVE", None)
        if option is not None:
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made
