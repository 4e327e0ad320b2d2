"""``parley serve --grpc-port``: gRPC beside HTTP."""

import asyncio
import json
import os
import re
import signal
from urllib.request import urlopen

import grpc
import pytest

from parley.model.operations import BY_NAME, SendMessageRequest
from parley.model.parts import Message, Part, Role
from parley.wire import versions
from tests.kit.processes import Running

posix = pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")

OLD = ("url", "preferredTransport", "additionalInterfaces", "protocolVersion")
"""What a card says of its interfaces for 0.3."""

AGENT = '''
import asyncio
from parley import Agent, Turn

agent = Agent("Echo agent", description="Says it again", version="1.0.0")


@agent.skill
async def echo(turn: Turn) -> str:
    """Says it again, or never."""
    if turn.text == "never":
        print("never", flush=True)
        await asyncio.Event().wait()
    return "ONCE " + turn.text
'''


@pytest.fixture
def serving(tmp_path):
    (tmp_path / "echo.py").write_text(AGENT)
    words = ["serve", "echo.py", "--port", "0", "--grpc-port", "0", "--store", "memory:"]
    return Running(words, tmp_path)


@posix
def test_an_agent_is_served_over_grpc_too(serving, parley):
    with serving as server:
        said = server.until("Ctrl-C stops the server")
        url = re.search(r"address +(http://\S+)", said)[1]
        assert re.search(r"gRPC is at 127\.0\.0\.1:\d+", said)
        ran = parley("send", "-a", url, "--transport", "GRPC", "hello")
        assert ran.field("Text") == "ONCE hello"
        assert server.end(signal.SIGTERM) == 0
        assert "Traceback" not in server.stderr


@posix
def test_grpc_is_left_off_the_card_and_served_all_the_same(tmp_path, parley):
    (tmp_path / "echo.py").write_text(AGENT)
    words = ["serve", "echo.py", "--port", "0", "--grpc-port", "0", "--store", "memory:"]
    with Running([*words, "--no-grpc-on-card"], tmp_path) as server:
        said = server.until("Ctrl-C stops the server")
        url = re.search(r"address +(http://\S+)", said)[1]
        there = re.search(r"gRPC is at (127\.0\.0\.1:\d+)", said)[1]
        with urlopen(f"{url}/.well-known/agent-card.json", timeout=10) as answer:
            card = json.load(answer)
        bindings = [each["protocolBinding"] for each in card["supportedInterfaces"]]
        assert {*bindings} == {"HTTP+JSON", "JSONRPC", "urn:parley:envelope:v1"}
        interface = {"url": there, "protocolBinding": "GRPC", "protocolVersion": "1.0"}
        card |= {"supportedInterfaces": [interface]}
        kept = {name: card[name] for name in card if name not in OLD}
        (tmp_path / "card.json").write_text(json.dumps(kept))
        ran = parley("send", "-a", str(tmp_path / "card.json"), "hello")
        assert ran.field("Text") == "ONCE hello"


def test_grpc_that_is_not_served_cannot_be_left_off_the_card(tmp_path, parley):
    (tmp_path / "echo.py").write_text(AGENT)
    ran = parley("serve", str(tmp_path / "echo.py"), "--no-grpc-on-card")
    assert ran.status == 2
    assert "--grpc-port" in ran.stderr


@posix
def test_a_second_signal_does_not_wait_for_calls(serving):
    async def call(target):
        codec = versions.dialect("1.0").grpc()
        message = Message(message_id="m", role=Role.USER, parts=(Part(text="never"),))
        data = codec.write_request(BY_NAME["SendMessage"], SendMessageRequest(message=message))
        async with grpc.aio.insecure_channel(target) as channel:
            rpc = channel.unary_unary(f"/{codec.service}/SendMessage")
            waiting = asyncio.ensure_future(rpc(data, metadata=(("a2a-version", "1.0"),)))
            await asyncio.to_thread(server.until, "never")
            health = channel.unary_stream("/grpc.health.v1.Health/Watch")(b"").__aiter__()
            assert await anext(health) == b"\x08\x01"
            server.process.send_signal(signal.SIGTERM)
            assert await anext(health) == b"\x08\x02"  # NOT_SERVING
            server.process.send_signal(signal.SIGTERM)
            with pytest.raises(grpc.aio.AioRpcError):
                await asyncio.wait_for(waiting, 9)  # ten seconds are what the first signal gives

    with serving as server:
        said = server.until("Ctrl-C stops the server")
        asyncio.run(call(re.search(r"gRPC is at (\S+)", said)[1]))


def test_options_for_grpc_without_its_port_are_refused(parley, tmp_path):
    (tmp_path / "echo.py").write_text(AGENT)
    ran = parley("serve", str(tmp_path / "echo.py"), "--grpc-cert", "cert.pem")
    assert ran.status == 2
    assert "gRPC is served where it has a port" in ran.stderr
