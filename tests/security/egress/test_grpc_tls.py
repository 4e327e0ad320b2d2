"""gRPC with TLS under a policy: checked addresses are dialled, and the name is verified."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

import parley
from parley import Agent
from parley.client.bindings.http import GrpcTls, HttpTransport
from parley.client.errors import AddressNotAllowed, Untrusted
from parley.model.cards import AgentCapabilities, AgentCard, AgentInterface
from parley.security import Egress
from parley.server.run import serving
from parley.server.settings import GrpcOptions, TlsOptions
from tests.kit.certificates import Authority

pytest.importorskip("grpc")
pytestmark = pytest.mark.anyio

AUTHORITY = Authority()
NAME = "agents.inside.example"

agent = Agent("Clock")


@agent.skill
async def tell(text: str) -> str:
    return "It is noon."


def card_of(host: str, port: int) -> AgentCard:
    return AgentCard(
        name="Clock",
        description="",
        version="1",
        supported_interfaces=(
            AgentInterface(
                url=f"https://{host}:{port}", protocol_binding="GRPC", protocol_version="1.0"
            ),
        ),
        capabilities=AgentCapabilities(),
        default_input_modes=(),
        default_output_modes=(),
        skills=(),
    )


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that were looked up; ``*.example`` resolve to this machine."""
    found: list[str] = []
    real = socket.getaddrinfo

    def look_up(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if not str(name).endswith(".example"):
            return real(host, port, *args, **options)
        found.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", int(port or 0)))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return found


@pytest.mark.parametrize(
    ("certified", "host", "allowed", "expected"),
    [
        ([NAME], NAME, [NAME], "It is noon."),
        ([NAME], NAME, ["127.0.0.0/8"], "It is noon."),
        ([], "127.0.0.1", ["127.0.0.1"], "It is noon."),
        ([], "localhost", ["localhost"], "It is noon."),
        (["other.example"], NAME, [NAME], Untrusted),
        ([NAME], "127.0.0.1", ["127.0.0.1"], Untrusted),
        ([NAME], NAME, [], AddressNotAllowed),
        ([], "127.0.0.1", [], AddressNotAllowed),
    ],
)
async def test_the_name_of_the_card_is_verified_at_the_address_that_was_judged(
    tmp_path: Path,
    looked_up: list[str],
    certified: list[str],
    host: str,
    allowed: list[str],
    expected: str | type[Exception],
) -> None:
    cert, key = AUTHORITY.server(*certified).write(tmp_path, "server")
    app = parley.asgi(agent)
    transport = HttpTransport(
        grpc_tls=GrpcTls(ca=AUTHORITY.write(tmp_path)), egress=Egress.of(allow=allowed)
    )
    async with (
        serving(app, tls=TlsOptions(cert=cert, key=key), grpc=GrpcOptions(port=0)),
        transport,
    ):
        assert app.grpc is not None
        remote = await parley.connect(card_of(host, app.grpc.port), http=transport, retries=0)
        async with remote:
            if isinstance(expected, str):
                for _ in range(2):
                    assert (await remote.send("what time is it?")).text == expected
            else:
                with pytest.raises(expected):
                    await remote.send("what time is it?")
    if host == NAME:
        assert looked_up == [NAME]  # once for a connection, and not again by gRPC
