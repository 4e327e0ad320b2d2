"""A google-adk agent with a scripted model, served by ``to_a2a``."""

import asyncio
from collections.abc import AsyncGenerator

from google.adk.a2a.utils.agent_to_a2a import to_a2a
from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.tools import LongRunningFunctionTool
from google.genai import types
from scripted import NAME, chunks, serve


def where_to() -> None:
    """Asks the user where to; the answer comes later."""


class Scripted(BaseLlm):
    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        turns = llm_request.contents
        parts = [p for turn in turns for p in turn.parts or () if turn.role == "user"]
        text = [part.text for part in parts if part.text][-1]
        asked = any(p.function_call for turn in turns[:-1] for p in turn.parts or ())
        blobs = [part.inline_data for part in turns[-1].parts or () if part.inline_data]
        files = [(len(blob.data), blob.mime_type) for blob in blobs]
        if text.startswith("slow"):
            await asyncio.Event().wait()
        if text.startswith("book") and not asked:
            call = types.Part(function_call=types.FunctionCall(name="where_to", args={}))
            said = [types.Part(text="where to?"), call]
            yield LlmResponse(content=types.Content(role="model", parts=said))
            return
        pieces = chunks(text, files, asked)
        for piece in pieces if stream else ():
            said = types.Content(role="model", parts=[types.Part(text=piece)])
            yield LlmResponse(content=said, partial=True)
        said = types.Content(role="model", parts=[types.Part(text="".join(pieces))])
        yield LlmResponse(content=said)


agent = LlmAgent(
    name="scripted_agent",
    description=NAME,
    model=Scripted(model="scripted"),
    tools=[LongRunningFunctionTool(where_to)],
)
serve(lambda host, port: to_a2a(agent, host=host, port=port))
