"""Strands' ``A2AAgent``, driven by exchanges."""

from typing import Any

from a2a.types import TaskArtifactUpdateEvent
from lines import Items, drive
from strands.agent.a2a_agent import A2AAgent


async def do(command: dict[str, Any]) -> Items:
    agent = A2AAgent(command["url"])
    if command["do"] == "card":
        yield {"name": (await agent.get_agent_card()).name}
        return
    [text] = command["texts"]
    if command["do"] == "stream":
        async for event in agent.stream_async(text):
            update = event["event"] if event.get("type") == "a2a_stream" else None
            if isinstance(update, tuple) and isinstance(update[1], TaskArtifactUpdateEvent):
                yield {"text": "".join(part.root.text for part in update[1].artifact.parts)}
        return
    answer = await agent.invoke_async(text)
    if (state := answer.state.get("a2a_task_state")) in ("failed", "rejected"):
        raise RuntimeError(state)
    yield {"text": "".join(block["text"] for block in answer.message["content"])}


drive(do)
