"""Connections to addresses that other parties name."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import threading
from typing import Any

import aiohttp
import pytest

from parley.security.egress import (
    MAX_LOOKUPS,
    Egress,
    ForbiddenAddress,
    ThreadedLookup,
    find_forbidden,
    lookup_caller,
    origin_of,
)
from tests.kit.waiting import until
from tests.kit.webhooks import webhook

pytestmark = pytest.mark.anyio

PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "172.15.255.255",
    "172.32.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "2606:4700:4700::1111",
    "2a00:1450::1",
    "64:ff9b::808:808",
    "2002:808:808::1",
    "::ffff:8.8.8.8",
]
FORBIDDEN = {
    "127.0.0.1": "loopback",
    "127.255.255.254": "loopback",
    "::1": "loopback",
    "10.0.0.1": "private",
    "172.16.0.1": "private",
    "172.31.255.255": "private",
    "192.168.1.1": "private",
    "fd00:ec2::254": "private",
    "fec0::1": "private",
    "100.64.0.1": "shared",
    "100.127.255.255": "shared",
    "169.254.169.254": "link-local",
    "fe80::1": "link-local",
    "fe80::1%1": "link-local",
    "0.0.0.0": "unspecified",
    "::": "unspecified",
    "224.0.0.1": "multicast",
    "ff02::1": "multicast",
    "255.255.255.255": "reserved",
    "240.0.0.1": "reserved",
    "192.0.0.8": "reserved",
    "192.0.2.1": "reserved",
    "198.18.0.1": "reserved",
    "2001:db8::1": "reserved",
    "100::1": "reserved",
    "4000::1": "reserved",
    "64:ff9b:1::1": "translated",
    # IPv4 addresses inside IPv6 ones: mapped, compatible, NAT64, 6to4, Teredo, ISATAP
    "::ffff:127.0.0.1": "loopback",
    "::ffff:a9fe:a9fe": "link-local",
    "::7f00:1": "reserved",
    "64:ff9b::7f00:1": "loopback",
    "64:ff9b::a00:1": "private",
    "2002:7f00:1::": "loopback",
    "2002:c0a8:101::1": "private",
    "2001:0:7f00:1::f7f7:f7f7": "loopback",
    "2001:0:808:808::80ff:fffe": "loopback",
    "2606:4700::5efe:7f00:1": "loopback",
    "2606:4700::200:5efe:a00:1": "private",
}


@pytest.mark.parametrize("address", PUBLIC)
def test_addresses_of_the_public_internet_are_allowed(address: str) -> None:
    Egress().check_address(address)


@pytest.mark.parametrize(("address", "kind"), FORBIDDEN.items())
def test_all_other_addresses_are_refused_with_their_kind(address: str, kind: str) -> None:
    with pytest.raises(ForbiddenAddress, match=kind) as refused:
        Egress().check_address(address)
    assert refused.value.kind == kind


def test_every_address_that_python_calls_private_is_refused() -> None:
    """Python's list is different, and changes: none of its addresses may be allowed here."""
    listed = [
        network
        for kind in (ipaddress._IPv4Constants, ipaddress._IPv6Constants)  # type: ignore[attr-defined]
        for network in kind._private_networks
    ]
    for network in listed:
        for address in (network[0], network[-1]):
            if address.version == 6 and ipaddress.IPv6Address(address) in ipaddress.ip_network(
                "2002::/16"
            ):
                continue  # judged by the wrapped address
            if address.version == 6 and address.ipv4_mapped is not None:
                continue
            with pytest.raises(ForbiddenAddress):
                Egress().check_address(str(address))


@pytest.mark.parametrize("address", ["127.0.0.1", "10.1.2.3", "::1", "fd00::1", "100.64.0.1"])
def test_private_networks_can_be_allowed(address: str) -> None:
    Egress.allowing(True).check_address(address)


@pytest.mark.parametrize("address", ["169.254.169.254", "::ffff:a9fe:a9fe", "224.0.0.1", "0.0.0.0"])
def test_what_is_no_private_network_is_not_allowed_with_them(address: str) -> None:
    with pytest.raises(ForbiddenAddress):
        Egress.allowing(True).check_address(address)


def test_a_list_allows_what_is_on_it_and_nothing_else() -> None:
    egress = Egress.allowing(["10.1.0.0/16", "169.254.1.1", "fd00::/8", "Hooks.Internal"])
    for address in ("10.1.2.3", "169.254.1.1", "fd12::1", "::ffff:10.1.2.3", "8.8.8.8"):
        egress.check_address(address)
    for address in ("10.2.0.1", "127.0.0.1", "169.254.1.2"):
        with pytest.raises(ForbiddenAddress):
            egress.check_address(address)
    assert egress.trusts("hooks.internal.")
    egress.check_host("HOOKS.internal")
    assert not egress.trusts("other.internal")


@pytest.mark.parametrize("wrong", ["10.1.2.3/16", "a b", "", "http://host", "300.1.1.1"])
def test_what_is_no_host_and_no_network_cannot_be_allowed(wrong: str) -> None:
    with pytest.raises(ValueError, match="no host"):
        Egress.allowing([wrong])


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "[::1]", "::1", "127.1", "2130706433", "0x7f000001", "0177.0.0.1", "0x7f.1",
        "127.0.0.1.", "localhost", "LOCALHOST.", "a.localhost", "db", "printer.local", "x.internal",
        "router.home.arpa", "1.2.3.4.5", "999.1.1.1", "[fe80::1]",
    ],
)  # fmt: skip
def test_what_a_url_shows_to_be_local_is_refused_before_anything_is_resolved(host: str) -> None:
    with pytest.raises(ForbiddenAddress):
        Egress().check_host(host)


@pytest.mark.parametrize("host", ["example.com", "8.8.8.8", "[2606:4700::1]", "localhost.example"])
def test_other_hosts_pass(host: str) -> None:
    Egress().check_host(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "db"])
def test_local_hosts_pass_where_private_networks_are_allowed(host: str) -> None:
    Egress.allowing(True).check_host(host)


class Names:
    """A resolver with scripted answers, one for each lookup."""

    def __init__(self, *answers: list[str]) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[dict[str, Any]]:
        self.asked += 1
        addresses = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
            for address in addresses
        ]


async def dial(egress: Egress, url: str, names: Names | None = None, **options: Any) -> int:
    """Return the response status of ``url``, dialled through the guard."""
    connector = egress.connector(resolver=names, **options)  # type: ignore[arg-type]
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.post(url, data=b"x", timeout=aiohttp.ClientTimeout(total=5)) as response,
    ):
        return response.status


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "0.0.0.0"]
)
async def test_a_literal_address_is_refused_when_it_is_dialled(host: str) -> None:
    async with webhook() as hook:
        port = hook.url.rsplit(":", 1)[1]
        with pytest.raises((aiohttp.ClientError, OSError)) as failure:
            await dial(Egress(), f"http://{host}:{port}")
        assert find_forbidden(failure.value) is not None
        assert hook.told == []


async def test_a_name_with_one_private_address_among_others_is_refused() -> None:
    names = Names(["93.184.215.14", "127.0.0.1"])
    with pytest.raises(aiohttp.ClientError) as failure:
        await dial(Egress(), "http://example.com:9", names)
    assert find_forbidden(failure.value) is not None


async def test_a_name_that_changes_its_address_is_dialled_where_it_was_checked() -> None:
    """DNS rebinding: the first lookup passes and its address is dialled; the second one fails."""
    egress = Egress.allowing(["127.0.0.1"])
    async with webhook() as hook:
        port = hook.url.rsplit(":", 1)[1].split("/")[0]
        names = Names(["127.0.0.1"], ["127.0.0.2"])
        url = f"http://rebinding.example:{port}/hook"
        assert await dial(egress, url, names) == 200
        assert names.asked == 1
        assert hook.told[0].headers["host"] == f"rebinding.example:{port}"
        with pytest.raises(aiohttp.ClientError) as failure:
            await dial(egress, url, names)
        assert find_forbidden(failure.value) is not None
        assert names.asked == 2
        assert len(hook.told) == 1


@pytest.mark.parametrize(
    ("allowed", "host", "kind"),
    [
        ([], "", "port"),
        (["8.8.0.0/16"], "", "port"),
        (["8.8.0.0/16:6379"], "", ""),
        (["a.example", "b.example:6379"], "a.example", "port"),
        (["a.example", "b.example:6379"], "b.example", ""),
    ],
)
def test_a_port_of_another_protocol_is_open_only_where_it_is_named(
    allowed: list[str], host: str, kind: str
) -> None:
    found = ""
    try:
        Egress.allowing(allowed).check_address("8.8.8.8", 6379, host=host)
    except ForbiddenAddress as refused:
        found = refused.kind
    assert found == kind


async def test_a_connector_of_trusted_hosts_dials_no_denied_address() -> None:
    egress = Egress().denying(["127.0.0.0/8"]).within(Egress.allowing(["hooks.internal"]))
    assert egress.trusts("hooks.internal")
    with pytest.raises((aiohttp.ClientError, OSError)) as failure:
        await dial(egress, "http://127.0.0.1:9", trusted=True)
    forbidden = find_forbidden(failure.value)
    assert forbidden is not None
    assert forbidden.kind == "denied"


def test_a_name_is_denied_in_every_spelling() -> None:
    egress = Egress.of(deny=["b\u00fccher.example"])
    for host in ("B\u00dcCHER.example", "xn--bcher-kva.example."):
        with pytest.raises(ForbiddenAddress, match="denied"):
            egress.check_host(host)


def test_an_origin_has_the_port_of_its_scheme() -> None:
    urls = ("https://a.example/x", "http://a.example", "http://a.example:443", "https://a:x")
    assert [origin_of(url) for url in urls] == [
        "https://a.example:443", "http://a.example:80", "http://a.example:443", ""
    ]  # fmt: skip


def test_the_causes_of_an_error_may_be_a_circle() -> None:
    one, other = OSError(), OSError()
    one.__context__, other.__context__ = other, one
    assert find_forbidden(one) is None


async def test_a_caller_gets_half_of_the_look_ups_and_is_forgotten_afterwards() -> None:
    lookup, gate = ThreadedLookup(), threading.Event()

    async def ask(caller: str) -> list[Any]:
        lookup_caller.set(caller)
        return await lookup._look_up(lambda: [gate.wait(30)])

    asking = [asyncio.create_task(ask("ada")) for _ in range(MAX_LOOKUPS)]
    await until(lambda: lookup._used)
    asking.append(asyncio.create_task(ask("eve")))
    await until(lambda: lookup._used["eve"], seconds=5)
    assert lookup._used == {"ada": MAX_LOOKUPS // 2, "eve": 1}
    gate.set()
    assert await asyncio.gather(*asking) == [[True]] * len(asking)
    await until(lambda: lookup._free == MAX_LOOKUPS, seconds=5)
    assert dict(lookup._used) == {}
