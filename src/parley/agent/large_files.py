"""Turns files that are too large for a message into references."""

from __future__ import annotations

import asyncio
from pathlib import Path

from parley.agent.services import TurnServices
from parley.engine.content import to_part
from parley.engine.turn.attempt import Attempt

MAX_INLINE = 32 * 1024 * 1024
"""The most bytes of a file in an answer: clients read answers of up to 64 MiB, in base64."""


def base_url(services: TurnServices, attempt: Attempt) -> str:
    """Return the agent's public address, without a trailing slash; empty if it is not known."""
    request, address = attempt.request, services.address
    return request.base_url if address is None else address(request.tenant)


async def referred(
    services: TurnServices,
    attempt: Attempt,
    content: object,
    *,
    media_type: str = "",
    filename: str = "",
) -> object:
    """Return content as it is, or the part of a file: by reference if it is large.

    Only bytes and paths are files; a ready part is returned as it is. A path is read off the event
    loop. The file is kept as long as its task.

    Raises ``ValueError`` for a file that is too large for an answer and cannot be stored,
    ``OSError`` for a path that cannot be read, and ``FileError``.
    """
    if isinstance(content, Path):
        size = (await asyncio.to_thread(content.stat)).st_size
    elif isinstance(content, bytes | bytearray | memoryview):
        size = memoryview(content).nbytes
    else:
        return content
    url = base_url(services, attempt)
    largest = min(services.inline_bytes, MAX_INLINE)
    if services.files is not None and url and size > largest:
        scope = attempt.runner.scope
        return await services.files.store(
            content,
            filename=filename,
            media_type=media_type,
            tenant=scope.tenant,
            owner=scope.owner,
            task_id=attempt.runner.task_id,
            base_url=url,
        )
    if size > MAX_INLINE:
        name = filename or (content.name if isinstance(content, Path) else "the file")
        remedy = (
            "give the server a place for files (parley.asgi(..., files=...))"
            if services.files is None
            else "give the server its public address (parley.asgi(..., url=...)), which this "
            "request did not carry"
        )
        raise ValueError(
            f"{name[:100]} has {size:,} bytes, and an answer carries at most {MAX_INLINE:,}: "
            f"{remedy}, or return Part(url=...)"
        )
    if isinstance(content, Path):
        return await asyncio.to_thread(to_part, content, media_type=media_type, filename=filename)
    return content
