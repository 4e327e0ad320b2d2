"""Signed cards, public and extended, with clients that require and verify signatures."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import parley
from parley import Agent, Caller, Turn
from parley.client.card.trust import CardTrust
from parley.client.errors import CardNotTrusted
from parley.client.remote_agent import RemoteAgent
from parley.host.in_process import InProcessTransport, Site
from parley.model.tasks import TaskState
from parley.security import Bearer, anonymous
from parley.security.signing import keys as keys_module
from parley.security.signing.keys import SigningKeys
from parley.server.run import serving
from parley.server.settings import GrpcOptions, Settings
from tests.contract.conftest import Speech
from tests.kit.processes import free_port
from tests.kit.servers import grpc_of
from tests.security.signing.key_sets import key_file, key_set, private_jwk

pytestmark = pytest.mark.anyio


class SignedServer(NamedTuple):
    url: str
    keys: Path
    site: Site

    def sign_with(self, *kids: str) -> None:
        """Rewrite the key file, which the server reads again."""
        key_file(self.keys, *(private_jwk("ES256", kid=kid) for kid in kids))

    @property
    def published(self) -> dict[str, Any]:
        """The public keys."""
        return SigningKeys.load(self.keys).published


def make_agent() -> Agent:
    agent = Agent("Käse 🧀", security=Bearer(lambda text: Caller(id=text)) | anonymous)

    @agent.skill
    async def hello(turn: Turn) -> str:
        return f"hello {turn.caller.id}"

    @agent.skill(listed="extended")
    async def add(a: float, b: float) -> dict[str, float]:
        return {"sum": a + b}

    @agent.extended_card
    def extended(caller: Caller) -> dict[str, Any]:
        return {"description": f"for {caller.id} — ключ"}

    return agent


@pytest.fixture
async def signed(tmp_path: Path, monkeypatch: Any) -> AsyncIterator[SignedServer]:
    monkeypatch.setattr(keys_module, "RELOAD_SECONDS", 0.0)
    keys, port = key_file(tmp_path / "keys.json", private_jwk("ES256", kid="first")), free_port()
    app = parley.asgi(make_agent(), url=f"http://127.0.0.1:{port}/", signing_keys=keys)
    async with serving(app, port=port, grpc=GrpcOptions(port=0)) as url:
        yield SignedServer(url, keys, Site(app))


async def connect(server: SignedServer, speech: Speech, **options: Any) -> RemoteAgent:
    if speech.carrier == "in-process":
        options["http"] = InProcessTransport({server.url: server.site})
    return await parley.connect(
        server.url,
        binding=speech.binding,
        version=speech.version,
        bearer="ada",
        trust_origins=await grpc_of(server.url),
        **{"trust": True, **options},
    )


async def test_the_public_and_the_extended_card_are_trusted(
    signed: SignedServer, speech: Speech
) -> None:
    async with await connect(signed, speech) as agent:
        assert agent.card_trust.is_trusted
        assert (await agent.send("hi")).text == "hello ada"
        card = await agent.extended_card()
        assert agent.card_trust.is_trusted, agent.card_trust
        assert card.description == "for ada — ключ"
        assert {skill.id for skill in card.skills} == {"hello", "add"}
        assert (await agent.refresh_card()).name == "Käse 🧀"


async def test_pinned_keys_decide_about_both(signed: SignedServer, speech: Speech) -> None:
    async with await connect(signed, speech, trust=CardTrust(keys=signed.published)) as agent:
        await agent.extended_card()
        assert agent.card_trust.is_trusted
    other = SigningKeys.parse(json.dumps({"keys": [private_jwk("ES256", kid="first")]}))
    with pytest.raises(CardNotTrusted, match="another one was signed"):
        await connect(signed, speech, trust=CardTrust(keys=other.published))


async def test_an_extended_card_of_another_signer_is_refused(
    signed: SignedServer, speech: Speech
) -> None:
    """The pinned old key signs the public card; a new key signs the extended card."""
    async with await connect(signed, speech, trust=CardTrust(keys=signed.published)) as agent:
        signed.sign_with("evil")
        before = agent.card
        with pytest.raises(CardNotTrusted, match=r"the extended card of .* evil"):
            await agent.extended_card()
        assert agent.card is before


async def test_an_unsigned_extended_card_is_refused(speech: Speech, tmp_path: Path) -> None:
    """The client loads a signed card from a file, and the server signs nothing."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/"
    keys = key_file(tmp_path / "keys.json", private_jwk("ES256", kid="first"))
    trust = CardTrust(keys=SigningKeys.load(keys).published)
    async with (
        serving(
            parley.asgi(make_agent(), url=url, signing_keys=keys),
            port=port,
            grpc=GrpcOptions(port=0),
        ) as at,
        parley.connect(at) as agent,
    ):
        card = agent.card_json
        [grpc, *_] = await grpc_of(at)
    options = GrpcOptions(port=int(grpc.rpartition(":")[2]))
    async with serving(parley.asgi(make_agent(), url=url), port=port, grpc=options) as at:
        file = tmp_path / "card.json"
        file.write_bytes(card)
        async with parley.connect(
            file, binding=speech.binding, version=speech.version, bearer="ada", trust=trust
        ) as agent:
            assert agent.card_trust.is_trusted
            with pytest.raises(CardNotTrusted, match="the card has no signature"):
                await agent.extended_card()


async def test_keys_rotate_under_a_connection(signed: SignedServer, speech: Speech) -> None:
    async with await connect(signed, speech) as agent:
        for kid in ("second", "third"):
            signed.sign_with(kid)
            await agent.refresh_card()
            await agent.extended_card()
            assert f"key {kid}" in str(agent.card_trust)


async def test_a_card_at_an_address_that_only_the_request_names_is_not_signed(
    speech: Speech, tmp_path: Path
) -> None:
    keys = key_file(tmp_path / "keys.json", private_jwk("ES256", kid="first"))
    app = parley.asgi(make_agent(), signing_keys=keys)
    async with serving(app, grpc=GrpcOptions(port=0)) as url:
        with pytest.raises(CardNotTrusted, match="the card has no signature"):
            await connect(SignedServer(url, keys, Site(app)), speech)


@pytest.mark.parametrize("form", ["merged", "1.0"])
async def test_the_card_is_trusted_in_the_form_that_a_server_gives(
    form: str, tmp_path: Path
) -> None:
    keys, port = key_file(tmp_path / "keys.json", private_jwk("EdDSA", kid="k")), free_port()
    settings = Settings(card=form)  # type: ignore[arg-type]
    url = f"http://127.0.0.1:{port}/"
    app = parley.asgi(make_agent(), url=url, signing_keys=keys, settings=settings)
    async with serving(app, port=port) as at:
        for version in ("", "1.0", "0.3"):
            async with parley.connect(at, trust=True, version=version) as agent:
                assert agent.card_trust.is_trusted


async def test_a_turn_calls_only_agents_that_it_trusts(signed: SignedServer) -> None:
    asking, pinned = Agent("Asking"), [signed.published]

    @asking.skill
    async def ask(turn: Turn) -> str:
        trust = CardTrust(keys=pinned[-1])
        async with turn.connect(signed.url, trust=trust) as agent:
            answer = await agent.send("hi")
            return f"{answer.text}, {agent.card_trust.state}"

    @asking.skill
    def ask_in_a_thread(turn: parley.BlockingTurn) -> str:
        with turn.connect(signed.url, trust=True) as agent:
            return agent.card_trust.state

    async with parley.connect(asking) as agent:
        assert (await agent.send("go")).text == "hello , trusted"
        answer = await agent.send("go", metadata={"skill": "ask_in_a_thread"})
        assert answer.text == "trusted"
        pinned.append(SigningKeys.parse(key_set(private_jwk("ES256", kid="first"))).published)
        task = await agent.send("go")
        assert task.state is TaskState.FAILED
        assert "trusted" not in task.text
