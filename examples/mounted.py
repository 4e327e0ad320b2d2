"""An agent inside an application that you already have, here FastAPI, under a prefix.

    pip install fastapi
    uvicorn --app-dir examples mounted:app --port 9999
    parley send -a http://localhost:9999/agents/time "What time is it?"

The card is at /agents/time/.well-known/agent-card.json and names the address it was asked at.
"""

from fastapi import FastAPI

import parley
from time_agent import agent

agents = parley.asgi(agent)
app = FastAPI(lifespan=agents.lifespan)  # starts what the agent needs, and stops it
app.mount("/agents/time", agents)


@app.get("/")
async def home() -> dict[str, str]:
    """What the application does besides."""
    return {"agents": "/agents/time"}
