"""The shared loop of the frameworks' clients.

It reads commands and writes results as lines of JSON.
"""

import asyncio
import io
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

Items = AsyncIterator[dict[str, Any]]
Do = Callable[[dict[str, Any]], Items]


def write(**line: Any) -> None:
    print(json.dumps(line), file=sys.__stdout__, flush=True)


async def _run(do: Do, command: dict[str, Any]) -> None:
    try:
        async for item in do(command):
            write(id=command["id"], item=item)
    except Exception as error:
        write(id=command["id"], end=True, error=type(error).__name__, said=str(error))
    else:
        write(id=command["id"], end=True)


async def _main(do: Do) -> None:
    async with asyncio.TaskGroup() as commands:
        while line := await asyncio.to_thread(sys.stdin.readline):
            commands.create_task(_run(do, json.loads(line)))


def drive(do: Do) -> None:
    """Have ``do`` perform each command; it yields the items, and raises what its API tells of."""
    logging.disable()
    sys.stdout = io.StringIO()  # hides the output of frameworks
    asyncio.run(_main(do))
    os._exit(0)  # drops unfinished work of a framework
