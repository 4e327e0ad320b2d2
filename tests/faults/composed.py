"""A composition that kills its own process at each step, once: ``composed.py PORT STORE FOLDER``.

FOLDER contains a file for each point at which the process has died. It also contains ``began`` and
``ended``, with a line for each message that a part has begun or answered.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

from parley import Agent, Execution, Turn, serve
from parley.compose import parallel, sequence

FOLDER = Path(sys.argv[3])
POINTS = (sys.argv[4] if len(sys.argv) > 4 else "").split(",")


def dies(point: str) -> None:
    """End the process as ``kill -9`` does, once per point."""
    if point in POINTS and not (mark := FOLDER / point).exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)


def note(where: str, name: str, what: str) -> None:
    with (FOLDER / where).open("a") as file:
        file.write(f"{name} {what}\n")


def worker(name: str, **options: Any) -> Agent:
    agent = Agent(name, execution=Execution(cancel_grace=0.2, max_attempts=20))

    @agent.skill(**options)
    async def work(turn: Turn) -> str:
        """Works, and may die at the beginning and at the end."""
        if turn.number == turn.attempt == 1:
            note("began", name, turn.text)
        dies(f"{name}-begins")
        if name == "asks":
            answer = (await turn.ask("Which day?")).text
            dies(f"{name}-answered")
        else:
            answer = name
        await turn.step("said", say)
        dies(f"{name}-ends")
        note("ended", name, turn.text)
        return f"{turn.text} {answer}"

    return agent


def say() -> str:
    return "said"


async def between(text: str) -> str:
    """A step of the composition itself."""
    dies("between")
    return f"{text} between"


def joined(outcomes: Any) -> str:
    dies("combine")
    return " | ".join(each.text for each in outcomes)


first, asks, left, right = (worker(name) for name in ("first", "asks", "left", "right"))
agent = sequence(
    first, between, asks, parallel(left, right, combine=joined, name="Both"), name="Composed",
    execution=Execution(max_attempts=50),
)  # fmt: skip

if __name__ == "__main__":
    lease = 1.0 if sys.argv[2].startswith("postgres") else None
    serve(agent, port=int(sys.argv[1]), store=sys.argv[2], drain=2.0, lease=lease)
