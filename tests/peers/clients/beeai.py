"""BeeAI's ``A2AAgent``, driven by exchanges."""

from typing import Any

from a2a.types import (
    FilePart,
    FileWithBytes,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TextPart,
)
from beeai_framework.adapters.a2a.agents import A2AAgent
from beeai_framework.memory import UnconstrainedMemory
from lines import Items, drive


async def do(command: dict[str, Any]) -> Items:
    agent = A2AAgent(url=command["url"], memory=UnconstrainedMemory())
    if command["do"] == "card":
        await agent.check_agent_exists()
        yield {"name": agent.agent_card.name}
        return
    pieces: list[str] = []

    def heard(data: Any, _: Any) -> None:
        event = data.value
        if isinstance(event, tuple) and isinstance(event[1], TaskArtifactUpdateEvent):
            pieces.append("".join(part.root.text for part in event[1].artifact.parts))

    for text in command["texts"]:
        said: Any = text
        if file := command.get("file"):
            inner = FileWithBytes(bytes=file["bytes"], mime_type=file["media_type"])
            parts = [Part(root=TextPart(text=text)), Part(root=FilePart(file=inner))]
            said = Message(role=Role.user, parts=parts, message_id="file")
        answer = await agent.run(said).on("update", heard)
        if command["do"] == "stream":
            for piece in pieces:
                yield {"text": piece}
        else:
            yield {"text": answer.last_message.text}


drive(do)
