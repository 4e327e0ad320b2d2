"""A Strands agent with a scripted model, served by its ``A2AServer``."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable
from typing import Any

from scripted import NAME, chunks, serve
from strands import Agent
from strands.models.model import Model
from strands.multiagent.a2a import A2AServer


class Scripted(Model):
    def update_config(self, **config: Any) -> None: ...

    def get_config(self) -> Any:
        return {}

    def structured_output(self, *_: Any, **__: Any) -> AsyncGenerator[Any, None]:
        raise NotImplementedError

    async def stream(self, messages: Any, *_: Any, **__: Any) -> AsyncIterable[Any]:
        blocks = messages[-1]["content"]
        text = " ".join(block["text"] for block in blocks if "text" in block)
        files = [
            (len(block["image"]["source"]["bytes"]), f"image/{block['image']['format']}")
            for block in blocks
            if "image" in block
        ]
        if text.startswith("slow"):
            await asyncio.Event().wait()
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": {}}}
        for piece in chunks(text, files):
            yield {"contentBlockDelta": {"delta": {"text": piece}}}
            await asyncio.sleep(0.02)
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn"}}


def agent(context_id: str) -> Agent:
    return Agent(model=Scripted(), name=NAME, description="It is scripted", callback_handler=None)


def app(host: str, port: int) -> Any:
    return A2AServer(agent_factory=agent, host=host, port=port).to_starlette_app()


serve(app)
