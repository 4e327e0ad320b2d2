"""``parley catalog dns``: the DNS records that lead to a catalog and its agents (DNS-AID)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from parley.cli.calls.agent_call import AgentCall
from parley.cli.output.failures import CommandFailure, UsageFailure
from parley.cli.output.streams import Output, print_line
from parley.registry.catalog.entries import A2A_CARD_TYPES, CATALOG_PATH, AirUrn, InvalidUrn, domain
from parley.registry.catalog.reading import InvalidCatalog, read_catalog
from parley.registry.commands.documents import read_document
from parley.registry.ingest.addresses import INDEX_LABELS

CAP, BAP, WELL_KNOWN = "key65400", "key65402", "key65409"
"""Parameters of DNS-AID without an assigned number: its implementations agree on these private-use
numbers, and zone files accept them (RFC 9460 §2.1).
"""

MAX_TEXT = 255
_LABEL = re.compile(r"[^a-z0-9-]+")
_PREFIX = "/.well-known/"


class DnsRecord(msgspec.Struct, frozen=True):
    """One record, as a zone file has it."""

    name: str
    ttl: int
    type: str
    value: str

    def __str__(self) -> str:
        return f"{self.name} {self.ttl} IN {self.type} {self.value}"


class DnsAgent(msgspec.Struct, frozen=True):
    """An agent to make records for."""

    identifier: AirUrn
    card: str


def records_of(
    publisher: str, catalog: str, agents: Iterable[DnsAgent], *, ttl: int, alpn: str
) -> list[DnsRecord]:
    """Return the records for a catalog and its agents. Raises ``UsageFailure``.

    SVCB records come first; TXT records repeat them for resolvers without SVCB.
    """
    path = urlsplit(catalog).path
    suffix = path.removeprefix(_PREFIX) if path.startswith(_PREFIX) else path
    parameters = [(CAP, catalog), (WELL_KNOWN, suffix)]
    found: list[DnsRecord] = []
    for label in INDEX_LABELS:
        name = f"{label}.{publisher}."
        found += _pair(name, catalog, parameters, ttl=ttl, alpn=alpn)
    labels: set[str] = set()
    for agent in agents:
        label = _label(agent.identifier, labels)
        labels.add(label)
        name = f"_{label}._a2a._agents.{publisher}."
        parameters = [(CAP, agent.card), (BAP, "a2a")]
        found += _pair(name, agent.card, parameters, ttl=ttl, alpn=alpn)
    return found


def print_records(output: Output, publisher: str, catalog: str, found: list[DnsRecord]) -> None:
    """Write the records as a zone file, or as JSON."""
    if output.is_json:
        output.json(msgspec.json.encode(found))
        return
    print_line(f"; DNS-AID records of {publisher}, for {catalog}")
    print_line(f"; {CAP} is cap, {BAP} is bap, {WELL_KNOWN} is well-known; sign the zone (DNSSEC)")
    for record in found:
        print_line(str(record))


def of_server(
    call: AgentCall, output: Output, url: str, publisher: str, *, ttl: int, alpn: str
) -> int:
    """Write the records for a running server, from the agents in its catalog."""

    async def work() -> None:
        document = await read_document(call, url)
        try:
            entries = read_catalog(document.body).catalog.entries
        except InvalidCatalog as error:
            words = f"{document.where}: {error}"
            raise CommandFailure("PARLEY_ERR_CATALOG", words) from None
        agents = []
        publishers = set()
        for entry in entries:
            try:
                identifier = AirUrn.parse(entry.identifier)
            except InvalidUrn as error:
                output.warn(str(error))
                continue
            publishers.add(identifier.publisher)
            if entry.type in A2A_CARD_TYPES and entry.url:
                agents.append(DnsAgent(identifier, entry.url))
        name = publisher or _only(publishers)
        agents = [agent for agent in agents if agent.identifier.publisher == name]
        found = records_of(name, document.where, agents, ttl=ttl, alpn=alpn)
        print_records(output, name, document.where, found)

    return call.run(work)


def of_targets(
    output: Output,
    url: str,
    publisher: str,
    namespace: str,
    targets: Sequence[str],
    *,
    ttl: int,
    alpn: str,
) -> None:
    """Write the records for agents in files that will be served at ``url``."""
    from parley.cli.loading import load
    from parley.registry.served.catalog import checked_identifiers, read_publication

    if not url or not publisher:
        raise UsageFailure(
            "records of agents in files need the public address and the domain: --url and "
            "--publisher",
            hint="parley catalog dns agent.py --url https://agents.example.com "
            "--publisher example.com",
        )
    try:
        publication = read_publication(publisher, namespace or None)
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    assert publication is not None
    agents: Mapping[str, str] = {
        path: publication.agent(path, agent.key) for path, agent in load(targets).items()
    }
    try:
        checked_identifiers((each, f"the agent at {path or '/'}") for path, each in agents.items())
    except ValueError as error:
        raise UsageFailure(str(error)) from None
    base = url.rstrip("/")
    found = records_of(
        publication.publisher,
        base + CATALOG_PATH,
        [
            DnsAgent(AirUrn.parse(each), f"{base}{path}/.well-known/agent-card.json")
            for path, each in agents.items()
        ],
        ttl=ttl,
        alpn=alpn,
    )
    print_records(output, publication.publisher, base + CATALOG_PATH, found)


def read_publisher(text: str) -> str:
    """Return the domain of ``--publisher``. Raises ``UsageFailure``."""
    try:
        return domain(text) if text else ""
    except InvalidUrn as error:
        raise UsageFailure(f"--publisher: {error}") from None


def _only(publishers: set[str]) -> str:
    if len(publishers) == 1:
        return publishers.pop()
    names = ", ".join(sorted(publishers)) or "nobody"
    raise UsageFailure(
        f"the catalog has the agents of {names}: choose a publisher with --publisher"
    )


def _pair(
    name: str, url: str, parameters: list[tuple[str, str]], *, ttl: int, alpn: str
) -> list[DnsRecord]:
    """Return the SVCB record of an address, and the TXT record with the same content."""
    host, port = _target(url)
    of_service = [("mandatory", "alpn,port"), ("alpn", alpn), ("port", str(port)), *parameters]
    service = " ".join(f"{key}={_quoted(value)}" for key, value in of_service)
    names = {CAP: "cap", BAP: "bap", WELL_KNOWN: "well-known"}
    words = ["v=1", f"target={host}", f"port={port}", f"alpn={alpn}"]
    words += [f"{names[key]}={value}" for key, value in parameters]
    if parameters[-1][0] == WELL_KNOWN:
        words.append(f"ai-catalog={url}")
    return [
        DnsRecord(name, ttl, "SVCB", f"1 {host}. {service}"),
        DnsRecord(name, ttl, "TXT", " ".join(_quoted(part) for part in _strings(words))),
    ]


def _target(url: str) -> tuple[str, int]:
    """Return the host and the port of an address. Raises ``UsageFailure`` without a host name."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        host, port = "", None
    if parts.scheme not in ("http", "https") or not host:
        raise UsageFailure(
            f"{url[:200]!r} is not an address", hint="--url https://agents.example.com"
        )
    if _is_ip(host):
        raise UsageFailure(
            f"records need a host name, but {host} is an IP address",
            hint="name the public address: parley catalog dns agent.py "
            "--url https://agents.example.com --publisher example.com",
        )
    return host, port or (443 if parts.scheme == "https" else 80)


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _label(identifier: AirUrn, taken: set[str]) -> str:
    """Return a unique label for an agent: its name, if necessary with its namespace or a number."""

    def cut(text: str) -> str:
        return _LABEL.sub("-", text.lower())[:58].strip("-") or "agent"

    plain, whole = cut(identifier.name), cut("-".join((*identifier.namespace, identifier.name)))
    found = whole if plain in taken else plain
    number = 2
    while found in taken:
        found, number = f"{whole}-{number}", number + 1
    return found


def _strings(words: list[str]) -> list[str]:
    """Return words as strings of at most 255 bytes; longer words are split."""
    text = " ".join(words)
    return [text[i : i + MAX_TEXT] for i in range(0, len(text), MAX_TEXT)]


def _quoted(text: str) -> str:
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return (
        '"'
        + re.sub(
            r"[^\x20-\x7e]",
            lambda m: "".join(f"\\{byte:03d}" for byte in m[0].encode("utf-8", "replace")),
            escaped,
        )
        + '"'
    )
