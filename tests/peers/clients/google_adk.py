"""google-adk's ``RemoteA2aAgent`` as the root agent of a runner, driven by exchanges."""

import base64
from typing import Any

import httpx
from a2a.client import ClientConfig, ClientFactory
from google.adk.agents.remote_a2a_agent import AGENT_CARD_WELL_KNOWN_PATH, RemoteA2aAgent
from google.adk.agents.run_config import RunConfig, StreamingMode
from google.adk.runners import InMemoryRunner
from google.genai import types
from lines import Items, drive


class Refused(Exception):
    """What an event says in place of an answer."""


def remote(command: dict[str, Any]) -> RemoteA2aAgent:
    card = command["url"].rstrip("/") + AGENT_CARD_WELL_KNOWN_PATH
    options: dict[str, Any] = {}
    if command["binding"] != "JSONRPC":  # the client's default
        config = ClientConfig(
            httpx_client=httpx.AsyncClient(), supported_protocol_bindings=[command["binding"]]
        )
        options["a2a_client_factory"] = ClientFactory(config)
    return RemoteA2aAgent(name="remote", agent_card=card, **options)


async def do(command: dict[str, Any]) -> Items:
    agent = remote(command)
    if command["do"] == "card":
        await agent._ensure_resolved()
        yield {"name": agent._agent_card.name}
        return
    runner = InMemoryRunner(agent, app_name="interop")
    session = await runner.session_service.create_session(app_name="interop", user_id="me")
    for text in command["texts"]:
        parts = [types.Part(text=text)]
        if file := command.get("file"):
            blob = types.Blob(data=base64.b64decode(file["bytes"]), mime_type=file["media_type"])
            parts.append(types.Part(inline_data=blob))
        told = []
        async for event in runner.run_async(
            user_id="me",
            session_id=session.id,
            new_message=types.Content(role="user", parts=parts),
            run_config=RunConfig(streaming_mode=StreamingMode.SSE),
        ):
            if event.error_message:
                raise Refused(event.error_message)
            said = event.content.parts if event.content else None
            piece = "".join(part.text or "" for part in said or () if not part.thought)
            # A question of the remote agent arrives as a function call.
            piece += "".join(call.args["input_required"] for call in event.get_function_calls())
            if command["do"] == "stream":
                yield {"text": piece, "partial": event.partial}
            told.append(piece)
        if command["do"] != "stream":
            yield {"text": "".join(told)}


drive(do)
