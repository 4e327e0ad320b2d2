"""A small local DNS server, with the records of a test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import dns.flags
import dns.message
import dns.name
import dns.rcode
import dns.rdatatype
import dns.rrset


class DnsServer(asyncio.DatagramProtocol):
    """Answers queries over UDP. ``records`` are by name and type; ``*`` matches all other names.

    ``mute`` names get no answer.
    """

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.mute: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.address = ""
        self._transport: Any = None

    def add(self, name: str, kind: str, *values: str) -> None:
        self.records[name, kind] = list(values)

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        query = dns.message.from_wire(data)
        question = query.question[0]
        name = question.name.to_text(omit_final_dot=True).lower()
        kind = dns.rdatatype.to_text(question.rdtype)
        self.asked.append((name, kind))
        if name in self.mute:
            return
        answer = dns.message.make_response(query)
        answer.flags |= dns.flags.RA
        found = self.records.get((name, kind)) or self.records.get(("*", kind), [])
        if found:
            answer.answer.append(dns.rrset.from_text_list(question.name, 60, "IN", kind, found))
        elif not any(name == known for known, _ in self.records):
            answer.set_rcode(dns.rcode.NXDOMAIN)
        self._transport.sendto(answer.to_wire(), addr)


@asynccontextmanager
async def dns_server() -> AsyncIterator[DnsServer]:
    loop = asyncio.get_running_loop()
    transport, server = await loop.create_datagram_endpoint(DnsServer, local_addr=("127.0.0.1", 0))
    server.address = "127.0.0.1:{}".format(transport.get_extra_info("sockname")[1])
    try:
        yield server
    finally:
        transport.close()
