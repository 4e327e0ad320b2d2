"""Graphs of LangGraph, served."""

from __future__ import annotations

import os
import sys
from contextlib import asynccontextmanager

from serving import MODEL_URL, add, book, serve, wait

del sys.path[0]  # this file has the framework's name

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

from parley.integrations import langgraph

REMOTE = os.environ["PARLEY_TEST_REMOTE"]

model = ChatOpenAI(
    model="scripted-1", base_url=MODEL_URL, api_key="none", max_retries=0, stream_usage=True
)


class Weather(BaseModel):
    """The weather in a city."""

    city: str
    celsius: float


agent = create_agent(
    model,
    [add, book, wait],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"book": True})],
    name="Assistant",
)

structured = create_agent(model, [], response_format=Weather, name="Weather")


@asynccontextmanager
async def caller():
    """Knows whom to ask."""
    yield create_agent(model, await langgraph.tools(REMOTE), name="Caller")


if __name__ == "__main__":
    serve(
        {
            "agent": langgraph.agent(agent),
            "structured": langgraph.agent(structured),
            "caller": langgraph.agent(caller),
        }
    )
