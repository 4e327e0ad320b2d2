"""Signs and verifies cards with the official Python SDK of 1.x.

Reads a list of commands in JSON, and writes a list of answers: ``{"card": ...}`` or ``{"name":
...}``, else ``{"error": ..., "said": ...}``.
"""

import asyncio
import json
import sys

import httpx
from a2a import types
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.utils.signing import create_agent_card_signer, create_signature_verifier
from google.protobuf.json_format import MessageToDict, ParseDict
from jwt import PyJWK

try:
    from a2a.server.request_handlers.response_helpers import agent_card_to_dict
except ImportError:
    agent_card_to_dict = MessageToDict

ALGORITHMS = ["ES256", "RS256", "EdDSA"]


def verifier(keys):
    known = {each["kid"]: PyJWK(each) for each in keys["keys"]}
    return create_signature_verifier(lambda kid, jku: known[kid], ALGORITHMS)


async def fetched(url, keys, version, path, raw=False):
    headers = {"A2A-Version": version} if version else {}
    async with httpx.AsyncClient(headers=headers) as http:
        resolver = A2ACardResolver(http, url, **({"agent_card_path": path} if path else {}))
        return await resolver.get_agent_card(signature_verifier=verifier(keys))


async def extended(url, keys, binding, token):
    async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        options = {"httpx_client": http, "supported_protocol_bindings": [binding]}
        client = ClientFactory(ClientConfig(streaming=False, **options)).create(card)
        request = types.GetExtendedAgentCardRequest()
        return await client.get_extended_agent_card(request, signature_verifier=verifier(keys))


def signed(card, key, header):
    message = ParseDict(card, types.AgentCard())
    create_agent_card_signer(PyJWK(key), header)(message)
    return agent_card_to_dict(message)


async def perform(command):
    do = command.pop("do")
    if do == "sign":
        return {"card": signed(**command)}
    card = await (fetched if do == "fetch" else extended)(**command)
    return {"name": card.name, "description": card.description}


async def main():
    answers = []
    for command in json.load(sys.stdin):
        try:
            answers.append(await perform(command))
        except Exception as error:
            answers.append({"error": type(error).__name__, "said": str(error)})
    json.dump(answers, sys.stdout)


asyncio.run(main())
