"""Microsoft Agent Framework's ``A2AAgent``, driven by exchanges."""

import base64
from typing import Any

import httpx
from a2a.client import A2ACardResolver
from agent_framework import AgentSession, Content, Message
from agent_framework.a2a import A2AAgent
from lines import Items, drive


async def do(command: dict[str, Any]) -> Items:
    async with httpx.AsyncClient() as http:
        card = await A2ACardResolver(http, command["url"]).get_agent_card()
    if command["do"] == "card":
        yield {"name": card.name}
        return
    bindings = [command["binding"]]
    async with A2AAgent(agent_card=card, supported_protocol_bindings=bindings) as agent:
        session = agent.create_session()
        assert isinstance(session, AgentSession)
        for text in command["texts"]:
            contents = [Content.from_text(text)]
            if file := command.get("file"):
                raw = base64.b64decode(file["bytes"])
                contents.append(Content.from_data(raw, file["media_type"]))
            said = Message("user", contents)
            if command["do"] == "stream":
                async for update in agent.run(said, stream=True, session=session):
                    yield {"text": update.text}
                return
            answer = await agent.run(said, session=session)
            yield {"text": answer.text}


drive(do)
