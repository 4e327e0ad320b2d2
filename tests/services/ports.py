"""Ports that a server of a test is given, and keeps while it is down."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from contextlib import ExitStack

# Below those that a system gives to whoever asks for any, or calls somebody: one of these would
# be taken by chance between now and when the server is there, or while it is away.
_PORTS = range(10_000, 22_000)
_chance = random.SystemRandom()


def free_port(addresses: Sequence[str] = ("127.0.0.1",), *, besides: int = 0) -> int:
    """Return a port that nobody listens on, at any of the addresses.

    Nor does anybody on the one that is ``besides`` above it.
    """
    for _ in range(1000):
        port = _chance.choice(_PORTS)
        with ExitStack() as stack:
            try:
                for address in addresses:
                    for each in {port, port + besides}:
                        stack.enter_context(socket.socket()).bind((address, each))
            except OSError:
                continue
            return port
    raise AssertionError("there is no free port")
