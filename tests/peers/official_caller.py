"""The official SDKs' clients, each in its own process, as callers for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any
from uuid import uuid4

WAIT = 10.0
_ENDED = {"end": True, "error": "Ended", "said": "the client's process has ended"}


class Refused(Exception):
    """The error that the official client raised: the name of its class, and its text."""

    def __init__(self, kind: str, said: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {said}")


class Process:
    """A client in its own process, with concurrent commands."""

    def __init__(self, process: asyncio.subprocess.Process, patience: float = WAIT) -> None:
        self._process = process
        self._patience = patience
        self._ids = count(1)
        self._lines: dict[int, asyncio.Queue[dict[str, Any]]] = {}

    async def listen(self) -> None:
        """Distribute the output lines of the process to the commands."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            self._lines[answer["id"]].put_nowait(answer)
        for number, lines in self._lines.items():
            lines.put_nowait({"id": number, **_ENDED})

    async def items(self, command: dict[str, Any]) -> AsyncGenerator[Any, None]:
        """Run a command, and yield its results. Raises ``Refused``."""
        assert self._process.stdin is not None
        number = next(self._ids)
        lines = self._lines[number] = asyncio.Queue()
        if self._process.returncode is not None:
            lines.put_nowait(_ENDED)
        else:
            self._process.stdin.write(json.dumps({**command, "id": number}).encode() + b"\n")
        while not (line := await asyncio.wait_for(lines.get(), self._patience)).get("end"):
            yield line["item"]
        if "error" in line:
            raise Refused(line["error"], line["said"])


class Official:
    """A client for the agent at an address, over one of its interfaces."""

    def __init__(self, peer: str, process: Process, url: str, binding: str, version: str) -> None:
        self.peer = peer
        self.url = url
        self.binding = binding
        self.version = version
        self._process = process

    def items(self, do: str, params: Any = None, headers: Any = None) -> AsyncGenerator[Any, None]:
        """Run a command, and yield its results. Raises ``Refused``."""
        return self._process.items(
            {
                "do": do,
                "url": self.url,
                "binding": self.binding,
                "version": self.version,
                "params": params or {},
                "headers": headers or {},
            }
        )

    async def call(self, do: str, params: Any = None, headers: Any = None) -> Any:
        """Run a command that has one result."""
        [item] = [item async for item in self.items(do, params, headers)]
        return item

    async def send(self, text: str, configuration: Any = None, **message: Any) -> Any:
        """Send a message; return the resulting task or message."""
        answer = await self.call("send", request(text, configuration, **message))
        return answer.get("task") or answer["message"]

    def stream(self, text: str, **message: Any) -> AsyncGenerator[Any, None]:
        """Send a message and yield the events of its stream."""
        return self.items("stream", request(text, **message))


def request(text: str, configuration: Any = None, **message: Any) -> dict[str, Any]:
    """Return the request that sends a text."""
    parts = message.pop("parts", [{"text": text}])
    skill, _, _ = text.partition(" ")
    said = {"messageId": uuid4().hex, "role": "ROLE_USER", "parts": parts, **message}
    said["metadata"] = {"skill": skill}
    return {"message": said, "configuration": configuration or {}}


@asynccontextmanager
async def official_process(words: Sequence[str], patience: float = WAIT) -> AsyncIterator[Process]:
    """Run a client's process within the block; ``patience`` is the timeout of every line."""
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )
    client = Process(process, patience)
    listening = asyncio.create_task(client.listen())
    try:
        yield client
    finally:
        assert process.stdin is not None
        process.stdin.close()
        await asyncio.wait_for(process.wait(), WAIT)
        await listening
