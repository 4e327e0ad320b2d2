"""HAProxy with the configuration of ``deploy/``, in front of replicas on this machine.

A name server of the tests replaces the container network: it gives the replicas' addresses
127.0.0.1, 127.0.0.2, ... All listen on one port, as containers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from tests.kit.processes import free_port
from tests.kit.waiting import block_thread

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "deploy/haproxy/haproxy.cfg"
HAPROXY = shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


class Names(asyncio.DatagramProtocol):
    """A name server that knows one name; ``addresses`` answer every question."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = list(addresses)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, address: object) -> None:
        number, _, questions = struct.unpack("!HHH", data[:6])
        at = 12
        while data[at]:
            at += data[at] + 1
        question = data[12 : at + 5]
        (kind,) = struct.unpack("!H", data[at + 1 : at + 3])
        found = self.addresses if kind == 1 else []  # only A records exist
        answers = b"".join(
            # The name of the question, A, IN, a TTL of one second, four bytes.
            struct.pack("!HHHIH", 0xC00C, 1, 1, 1, 4) + socket.inet_aton(each)
            for each in found
        )
        head = struct.pack("!HHHHHH", number, 0x8180, questions, len(found), 0, 0)
        self._transport.sendto(head + question + answers, address)  # type: ignore[attr-defined]


@contextlib.asynccontextmanager
async def names(addresses: Sequence[str]) -> AsyncIterator[tuple[Names, int]]:
    """Answer all address queries with ``addresses``; yield the port too."""
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: Names(addresses), local_addr=("127.0.0.1", 0)
    )
    try:
        yield protocol, transport.get_extra_info("sockname")[1]
    finally:
        transport.close()


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


@contextlib.contextmanager
def haproxy(folder: Path, replicas_port: int, dns_port: int) -> Iterator[str]:
    """Run HAProxy with the file of ``deploy/`` and local ports; yield its address."""
    assert HAPROXY
    port = free_port()
    text = CONFIGURATION.read_text("utf-8")
    for there, here in (
        ("bind :8080", f"bind 127.0.0.1:{port}"),
        ("nameserver dns 127.0.0.11:53", f"nameserver dns 127.0.0.1:{dns_port}"),
        ("agent 20 agent:9999", f"agent 20 agent:{replicas_port}"),
    ):
        assert there in text, f"{CONFIGURATION.name} does not say {there!r}"
        text = text.replace(there, here)
    configuration = folder / "haproxy.cfg"
    configuration.write_text(text, "utf-8")
    with (folder / "haproxy.log").open("wb") as log:
        process = subprocess.Popen(
            [HAPROXY, "-db", "-f", str(configuration)], stdout=log, stderr=subprocess.STDOUT
        )
        try:
            while not listens(port):
                assert process.poll() is None, Path(log.name).read_text("utf-8")
                block_thread(0.02)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()
