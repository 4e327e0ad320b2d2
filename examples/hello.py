"""The smallest agent: it greets whoever writes to it.

Serve it:

    parley serve examples/hello.py

and write to it from another terminal:

    parley send "I am Ada"
"""

from parley import Agent, Turn

agent = Agent(name="Hello agent", description="Greets whoever writes to it", version="1.0.0")


@agent.skill(tags=["greeting"], examples=["I am Ada"])
async def hello(turn: Turn) -> str:
    """Says hello, and what it was told."""
    return f"Hello! You said: {turn.text}"
