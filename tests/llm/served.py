"""An agent with a model, in a process that tests kill: port, store, endpoint, file to write."""

from __future__ import annotations

import sys
from pathlib import Path

import parley
from parley.llm import llm_agent

port, store, endpoint, written = sys.argv[1:]


def book(room: str) -> str:
    """Book a room."""
    with Path(written).open("a") as file:
        file.write(f"{room}\n")
    return f"{room} is booked"


agent = llm_agent("Booker", model="m", base_url=endpoint, tools=[book])

if __name__ == "__main__":
    parley.serve(agent, port=int(port), store=store)
