"""The audit to a syslog: RFC 5424, over UDP (RFC 5426), TCP (RFC 6587) or TLS (RFC 5425).

Over TCP and TLS each message is preceded by its length (octet counting). A syslog confirms nothing:
UDP may lose messages on the way, and TCP what the machine had not sent when a connection broke.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
import ssl
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import SplitResult, parse_qs

from parley.host.audit.destinations import DestinationFailed, shown
from parley.store.audit.trail import AuditEntry, fields_of

PORTS = {"syslog": 514, "syslog+udp": 514, "syslog+tcp": 601, "syslog+tls": 6514}

FACILITY = 13
"""Log audit."""

WARNING, INFO = 4, 6

CONNECT_SECONDS = 10.0
SEND_SECONDS = 30.0

ANSWER_SECONDS = 0.05
"""How long to look whether the other side closed the connection instead of reading."""

_UNPRINTABLE = re.compile(r"[^\x21-\x7e]")


class Syslog:
    """A syslog at a host and port."""

    def __init__(
        self, name: str, host: str, port: int, kind: str, context: ssl.SSLContext | None
    ) -> None:
        self._name = name
        self._host = host
        self._port = port
        self._kind = kind
        self._context = context
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._datagrams: asyncio.DatagramTransport | None = None

    @classmethod
    def at(cls, parts: SplitResult) -> Syslog:
        """Return the syslog at a URL. Raises ``ValueError``."""
        name = shown(parts)
        if parts.path.strip("/") or parts.username or parts.password:
            raise ValueError(f"a syslog has a host and a port, and nothing more: {name!r}")
        options = parse_qs(parts.query, keep_blank_values=True)
        kind = parts.scheme.partition("+")[2] or "udp"
        if set(options) - ({"ca", "cert", "key"} if kind == "tls" else set()):
            raise ValueError(
                f"{name}: the options are ca=FILE, cert=FILE and key=FILE, and they are for "
                "syslog+tls:// only"
            )
        context = _context(options, name) if kind == "tls" else None
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        # One destination has one name, however its address is written.
        name = shown(parts._replace(scheme=f"syslog+{kind}", netloc=_netloc(host, port), path=""))
        return cls(name, host, port, kind, context)

    @property
    def name(self) -> str:
        """The address."""
        return self._name

    async def send(self, entries: Sequence[AuditEntry]) -> None:
        """Send entries, a message each. Raises ``DestinationFailed``."""
        messages = [message_of(entry) for entry in entries]
        try:
            async with asyncio.timeout(SEND_SECONDS):
                if self._kind == "udp":
                    transport = await self._socket()
                    for message in messages:
                        transport.sendto(message)
                        await asyncio.sleep(0)
                else:
                    await self._write(b"".join([b"%d %s" % (len(m), m) for m in messages]))
        except (OSError, TimeoutError, UnicodeError) as error:  # the last for a host's name
            await self.close()
            raise DestinationFailed(f"{self._name}: {error or 'no answer in time'}") from error

    async def close(self) -> None:
        """Disconnect."""
        stream, self._stream = self._stream, None
        datagrams, self._datagrams = self._datagrams, None
        if datagrams is not None:
            datagrams.close()
        if stream is not None:
            stream[1].close()
            with contextlib.suppress(OSError, TimeoutError):  # it is closed on our side
                async with asyncio.timeout(1.0):
                    await stream[1].wait_closed()

    async def _write(self, data: bytes) -> None:
        if self._stream is not None and self._stream[0].at_eof():
            await self.close()
        if self._stream is None:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._stream = await asyncio.open_connection(
                    self._host, self._port, ssl=self._context
                )
        reader, writer = self._stream
        writer.write(data)
        await writer.drain()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                while await reader.read(1024):
                    pass  # some answer, which means nothing
        except TimeoutError:
            return
        raise ConnectionResetError("the connection was closed")

    async def _socket(self) -> asyncio.DatagramTransport:
        if self._datagrams is None:
            loop = asyncio.get_running_loop()
            self._datagrams, _ = await loop.create_datagram_endpoint(
                asyncio.DatagramProtocol, remote_addr=(self._host, self._port)
            )
        return self._datagrams


def message_of(entry: AuditEntry) -> bytes:
    """Return the message of an entry: its content is JSON in ASCII."""
    is_failure = entry.kind == "auth.failed" or entry.outcome in ("failed", "denied", "refused")
    priority = FACILITY * 8 + (WARNING if is_failure else INFO)
    at = datetime.fromtimestamp(entry.at / 1000, UTC).isoformat(timespec="milliseconds")
    host = _word(socket.gethostname(), 255)
    body = json.dumps(fields_of(entry), separators=(",", ":"), sort_keys=True)
    header = f"<{priority}>1 {at.replace('+00:00', 'Z')} {host} parley - {_word(entry.kind, 32)} - "
    return (header + body).encode("ascii")


def _netloc(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _word(text: str, length: int) -> str:
    return _UNPRINTABLE.sub("_", text)[:length] or "-"


def _context(options: dict[str, list[str]], name: str) -> ssl.SSLContext:
    for option, values in options.items():
        if len(values) > 1 or not values[0]:
            raise ValueError(f"{name}: {option}= names a file, once")
    if "key" in options and "cert" not in options:
        raise ValueError(f"{name}: key= is that of cert=, which is missing")
    given: dict[str, Any] = {key: value for key, [value] in options.items()}
    try:
        context = ssl.create_default_context(cafile=given.get("ca"))
        if "cert" in given:
            context.load_cert_chain(given["cert"], given.get("key"))
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"{name}: a certificate cannot be read: {error}") from None
    return context
