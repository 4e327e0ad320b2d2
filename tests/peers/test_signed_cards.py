"""Signed cards: the official SDKs verify ours, and we verify theirs."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import parley
from parley import Agent, Caller, CardDetails, Turn
from parley.client.card.trust import CardTrust
from parley.client.errors import CardNotTrusted
from parley.model.cards import AgentProvider
from parley.security import Bearer, anonymous
from parley.security.signing.keys import SigningKeys
from parley.server.run import serving
from parley.wire import versions
from tests.kit.processes import free_port
from tests.kit.scripted_server import scripted
from tests.security.signing.key_sets import key_file, key_set, private_jwk

from .environments import JS_1_3, NotMade, Peer, command

pytestmark = [pytest.mark.anyio, pytest.mark.peer]


def signing(version: str) -> Peer:
    """Return the environment of a Python SDK that can sign."""
    name = f"a2a-sdk-{version}-signing"
    variable = f"PARLEY_OFFICIAL_SDK_{version.replace('.', '_')}_SIGNING_PYTHON"
    return Peer(name, variable, (f"a2a-sdk[http-server,signing]=={version}", "cryptography"))


JS_1_0 = Peer(
    "a2a-js-1.0", "PARLEY_OFFICIAL_JS_1_0", ("@a2a-js/sdk@1.0.1", "express@5.3.0"), "node"
)

SDKS: dict[str, tuple[Peer, str, str]] = {
    "python-1.3": (signing("1.3.0"), "signing/python_1.py", "1.0"),
    "python-1.0": (signing("1.0.3"), "signing/python_1.py", "1.0"),
    "python-0.3": (signing("0.3.26"), "signing/python_0_3.py", "0.3"),
    "js-1.3": (JS_1_3, "signing/js_1.cjs", "1.0"),
    "js-1.0": (JS_1_0, "signing/js_1.cjs", "1.0"),
}
BY_RULE = [sdk for sdk in SDKS if sdk != "python-0.3"]
"""SDKs that sign every member with a value; the SDK of 0.3 omits members with their default."""
ALGS = ("ES256", "RS256", "EdDSA")


async def by(sdk: str, *commands: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the SDK's answers to commands."""
    peer, script, _ = SDKS[sdk]
    try:
        words = await asyncio.to_thread(command, peer, script)
    except NotMade as error:
        pytest.skip(str(error))
    work = asyncio.to_thread(
        subprocess.run, words, input=json.dumps(commands).encode(), capture_output=True, timeout=60
    )
    done = await work
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


class Signed(NamedTuple):
    """A server, its public keys, and other keys with the same names."""

    url: str
    keys: dict[str, Any]
    others: dict[str, Any]

    def fetch(self, version: str = "", **others: Any) -> dict[str, Any]:
        """Return the command to fetch and verify the public card."""
        asked = {"url": self.url, "keys": self.keys, "version": version, "path": ""}
        return {"do": "fetch", **asked, **others}

    def extended(self, binding: str, **others: Any) -> dict[str, Any]:
        """Return the command to fetch and verify the extended card."""
        asked = {"url": self.url, "keys": self.keys, "token": "ada", "binding": binding}
        return {"do": "extended", **asked, **others}


def make_agent(description: str, *, is_secured: bool, is_plain: bool) -> Agent:
    agent = Agent(
        "Signed",
        description=description,
        card=CardDetails(
            default_extensions=not is_plain,
            provider=AgentProvider(url="https://example.com", organization="Example"),
        ),
        security=Bearer(lambda text: Caller(id=text)) | anonymous if is_secured else None,
    )

    @agent.skill(tags=["a"], examples=[])
    async def hello(turn: Turn) -> str:
        """Says hello."""
        return "hello"

    @agent.skill(listed="extended")
    async def add(a: int, b: int) -> dict[str, int]:
        """Adds."""
        return {"sum": a + b}

    return agent


@asynccontextmanager
async def house(
    tmp_path: Path,
    alg: str,
    description: str = "Signed.",
    *,
    is_secured: bool = True,
    is_plain: bool = False,
) -> AsyncIterator[Signed]:
    """Serve an agent of ours with signed cards."""
    keys, port = key_file(tmp_path / "k.json", private_jwk(alg, kid="k")), free_port()
    agent = make_agent(description, is_secured=is_secured, is_plain=is_plain)
    app = parley.asgi(agent, url=f"http://127.0.0.1:{port}/", signing_keys=keys)
    kind = "EdDSA" if alg != "EdDSA" else "ES256"
    others = SigningKeys.parse(key_set(private_jwk(kind, kid="k"))).published
    async with serving(app, port=port) as url:
        yield Signed(url, SigningKeys.load(keys).published, others)


NOT_ASCII = "Sch\u00f6n signed \u2713"
NOT_CANONICAL = ("python-1.0", "python-0.3")
"""Unlike RFC 8785, these SDKs write non-ASCII characters as escapes, and 1 as 1.0."""


@pytest.mark.parametrize("alg", ALGS)
@pytest.mark.parametrize("sdk", BY_RULE)
async def test_official_sdks_verify_our_cards(sdk: str, alg: str, tmp_path: Path) -> None:
    spoken = SDKS[sdk][2]
    is_plain = sdk in NOT_CANONICAL
    words = "Signed." if is_plain else NOT_ASCII
    async with house(tmp_path, alg, words, is_secured=False, is_plain=is_plain) as ours:
        right = [
            ours.fetch(),
            ours.fetch(spoken),
            ours.extended("JSONRPC"),
            ours.extended("HTTP+JSON"),
        ]
        found = await by(sdk, *right, *({**each, "keys": ours.others} for each in right))
    for each in found[:4]:
        assert each == {"name": "Signed", "description": words}
    for each in found[4:]:
        assert "error" in each, "a card by another key was accepted"


@pytest.mark.parametrize("sdk", BY_RULE)
async def test_official_sdks_verify_our_cards_with_security_schemes(
    sdk: str, tmp_path: Path
) -> None:
    spoken = SDKS[sdk][2]
    async with house(tmp_path, "ES256", is_plain=sdk in NOT_CANONICAL) as ours:
        commands = [ours.fetch(), ours.fetch(spoken), ours.extended("JSONRPC")]
        found = await by(sdk, *commands, ours.fetch(spoken, raw=True))
    good = {"name": "Signed", "description": "Signed."}
    if not sdk.startswith("js"):
        assert found == [good] * 4
        return
    # It parses the parsed card again, and loses the schemes of a 1.0 card; the received card is
    # correct. Signing the rest would let an attacker remove the schemes.
    assert found[0] == good
    assert "No valid signatures" in found[1]["said"]
    assert "No valid signatures" in found[2]["said"]
    assert found[3] == good


@pytest.mark.parametrize("sdk", NOT_CANONICAL)
async def test_older_sdks_verify_no_text_beyond_ascii(sdk: str, tmp_path: Path) -> None:
    async with house(tmp_path, "ES256", NOT_ASCII, is_secured=False) as ours:
        [answer] = await by(sdk, ours.fetch())
    assert answer["error"] == "InvalidSignaturesError"


EXTENSION = {"uri": "urn:x", "params": {"n": 1.5, "on": True}}
CARDS: dict[str, dict[str, Any]] = {
    "1.0": {
        "name": "Theirs",
        "description": "An agent of theirs.",
        "version": "2",
        "supportedInterfaces": [
            {"url": "https://a.example/", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        ],
        "capabilities": {"streaming": False, "extensions": [EXTENSION]},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "S", "description": "", "tags": [], "examples": ["say it"]}],
    },
    "0.3": {
        "name": "Theirs",
        "description": "An agent of theirs.",
        "version": "2",
        "url": "https://a.example/",
        "preferredTransport": "JSONRPC",
        "protocolVersion": "0.3.0",
        "capabilities": {"streaming": True, "extensions": [EXTENSION]},
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{"id": "s", "name": "S", "description": "does", "tags": ["t"]}],
    },
}


@pytest.mark.parametrize("alg", ALGS)
@pytest.mark.parametrize("sdk", BY_RULE)
async def test_we_verify_cards_that_official_sdks_sign(sdk: str, alg: str) -> None:
    key = private_jwk(alg, kid="theirs", alg=alg)
    header = {"alg": alg, "kid": "theirs", "typ": "JOSE", "jku": "https://a.example/jwks.json"}
    card = CARDS[SDKS[sdk][2]]
    [answer] = await by(sdk, {"do": "sign", "card": card, "key": key, "header": header})
    assert "card" in answer, answer
    signed = answer["card"]
    trust = CardTrust(keys=SigningKeys.parse(key_set(key)).published)
    async with parley.connect(signed, trust=trust) as agent:
        assert agent.card_trust.is_trusted
        assert agent.card.name == "Theirs"
    with pytest.raises(CardNotTrusted, match="the card was changed"):
        await parley.connect({**signed, "name": "Ours"}, trust=trust)


@pytest.mark.parametrize("sdk", [sdk for sdk in SDKS if SDKS[sdk][2] == "1.0"])
async def test_they_refuse_our_cards_once_they_are_changed(sdk: str, tmp_path: Path) -> None:
    async with house(tmp_path, "ES256") as ours, parley.connect(ours.url) as agent:
        changed = agent.card_json.replace(b"Says hello.", b"Says anything.")
        keys = ours.keys

    async def proxy(exchange: Any) -> None:
        await exchange.json(changed)

    async with scripted(proxy) as server:
        [answer] = await by(sdk, Signed(server.url, keys, {}).fetch())
    assert "error" in answer


async def test_the_python_sdk_of_0_3_signs_and_verifies_another_card(tmp_path: Path) -> None:
    """It omits members with their defaults, also ``type`` of schemes.

    If that form were accepted, an attacker could change the type of a scheme.
    """
    key = private_jwk("ES256", kid="theirs", alg="ES256")
    header = {"alg": "ES256", "kid": "theirs", "typ": "JOSE", "jku": "https://a.example/k"}
    sign = {"do": "sign", "card": CARDS["0.3"], "key": key, "header": header}
    async with house(tmp_path, "ES256", is_secured=False, is_plain=True) as ours:
        fetched, made = await by("python-0.3", ours.fetch("0.3"), sign)
    assert fetched["error"] == "InvalidSignaturesError"
    trust = CardTrust(keys=SigningKeys.parse(key_set(key)).published)
    with pytest.raises(CardNotTrusted, match="another one was signed"):
        await parley.connect(made["card"], trust=trust)


def test_the_cards_of_these_tests_are_cards() -> None:
    for card in CARDS.values():
        assert versions.read_card(card).name == "Theirs"
