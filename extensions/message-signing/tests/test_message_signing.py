"""Signatures between a real server and real clients."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from parley_message_signing import URI, MessageSigning, SignatureInvalid, verify

import parley
from parley import Agent, Part, Turn
from parley.model.errors import InvalidParamsError
from parley.security.signing.keys import SigningKeys, decode, encode, new_key_set
from parley.server.run import serving


def new_keys(alg: str = "EdDSA") -> SigningKeys:
    document = new_key_set([alg], time.time())
    return SigningKeys.parse(msgspec.json.encode(document))


ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""The order of the curve P-256."""

OURS, THEIRS, OTHERS = new_keys(), new_keys(), new_keys()


def bank(trusted: SigningKeys = THEIRS, **options: Any) -> Agent:
    signing = MessageSigning(OURS, trust=trusted.published, audience="bank", **options)
    agent = Agent("Bank", extensions=[signing])

    @agent.skill
    async def pay(turn: Turn) -> AsyncIterator[str]:
        """Streams a receipt."""
        await turn.working("paying")
        for n in range(3):
            yield f"line {n} "

    return agent


def run(test: Any, agent: Agent) -> None:
    async def main() -> None:
        async with serving(parley.asgi(agent)) as url:
            await test(url)

    asyncio.run(main())


def test_both_sides_sign_and_verify() -> None:
    async def test(url: str) -> None:
        async with parley.connect(url, extensions=[MessageSigning(THEIRS)]) as client:
            task = await client.send([Part(text="pay"), Part(data={"usd": 10.5})])
            assert task.id
            [receipt] = task.artifacts
            assert receipt.text == "line 0 line 1 line 2 "
            verdict = await verify(receipt, card=client.card)
            assert verdict.kid == OURS.signers[0].kid
            said = next(each for each in task.history if each.text == "paying")
            assert (await verify(said, card=client.card)).signature.task_id == task.id
            forged = replace(receipt, parts=(*receipt.parts, Part(text="more")))
            with pytest.raises(SignatureInvalid, match="not what was signed"):
                await verify(forged, card=client.card)
            with pytest.raises(SignatureInvalid, match="not signed"):
                await verify(replace(said, metadata=None), card=client.card)

    run(test, bank())


def test_what_no_trusted_key_signed_is_refused() -> None:
    async def test(url: str) -> None:
        async with parley.connect(url, extensions=[MessageSigning(OTHERS)]) as client:
            with pytest.raises(InvalidParamsError, match="not among the trusted"):
                await client.send("pay")
        async with parley.connect(url, extensions=[URI]) as client:
            with pytest.raises(InvalidParamsError, match="not signed"):
                await client.send("pay")

    run(test, bank())


def test_a_message_counts_once_with_the_other_signature_that_anyone_can_make_of_it() -> None:
    keys, kept = new_keys("ES256"), []

    class Keeping(MessageSigning):
        def ask(self, request: Any) -> Any:
            kept.append(super().ask(request))
            return kept[-1]

    async def test(url: str) -> None:
        async with parley.connect(url, extensions=[Keeping(keys)]) as client:
            await client.send("pay")
        message = kept[0].message
        signature = message.metadata[URI]
        protected, _, mark = signature["jws"].split(".")
        r, s = decode(mark)[:32], int.from_bytes(decode(mark)[32:])
        other = encode(r + (ORDER - s).to_bytes(32))
        changed = {URI: {**signature, "jws": f"{protected}..{other}"}}
        async with parley.connect(url, extensions=[URI], idempotent=False) as client:
            with pytest.raises(InvalidParamsError, match="here before"):
                await client.send(replace(message, metadata=changed))

    run(test, bank(keys))


def test_a_message_counts_once_and_not_for_long() -> None:
    async def test(url: str) -> None:
        kept = []

        class Keeping(MessageSigning):
            def for_agent(self, card: Any) -> Any:
                bound = super().for_agent(card)
                return bound

            def ask(self, request: Any) -> Any:
                kept.append(super().ask(request))
                return kept[-1]

        async with parley.connect(url, extensions=[Keeping(THEIRS)]) as client:
            await client.send("pay")
        async with parley.connect(url, extensions=[URI], idempotent=False) as client:
            message = kept[0].message
            with pytest.raises(InvalidParamsError, match="here before"):
                await client.send(message)
            with pytest.raises(InvalidParamsError, match="not what was signed"):
                await client.send(replace(message, parts=(Part(text="pay more"),)))
        late = MessageSigning(THEIRS, clock=lambda: time.time() - 1000)
        async with parley.connect(url, extensions=[late]) as client:
            with pytest.raises(InvalidParamsError, match="300 seconds"):
                await client.send("pay")

    run(test, bank())


def test_a_message_counts_once_over_a_restart(tmp_path: Any) -> None:
    kept = []

    class Keeping(MessageSigning):
        def ask(self, request: Any) -> Any:
            kept.append(super().ask(request))
            return kept[-1]

    def server() -> Any:
        return parley.asgi(bank(), store=f"sqlite:///{tmp_path / 'tasks.db'}")

    async def main() -> None:
        ours, bare = [Keeping(THEIRS)], {"extensions": [URI], "idempotent": False}
        async with serving(server()) as url, parley.connect(url, extensions=ours) as client:
            await client.send("pay")
        async with serving(server()) as url, parley.connect(url, **bare) as client:
            with pytest.raises(InvalidParamsError, match="here before"):
                await client.send(kept[0].message)

    asyncio.run(main())
