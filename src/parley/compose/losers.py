"""Ends calls of parts whose answers are not needed any more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec.structs import replace

from parley.agent.remote.connections import cancel_calls
from parley.compose.calling import Calling
from parley.engine.turn.attempt import CALL_PREFIX, calls_to_cancel


async def stop(works: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks of this process, and wait until they have ended. What they raise is dropped."""
    every = list(works)
    for work in every:
        work.cancel()
    if every:
        await asyncio.wait(every)
    for work in every:
        if not work.cancelled():
            work.exception()  # marks it as seen: a turn that has ended lets nothing more be said


async def cancel_parts(calling: Calling, keys: Iterable[str] | None = None) -> None:
    """Cancel what calls began at other agents, by their keys, else all. What fails is logged.

    The log then has that they need nothing more, so a further attempt does not cancel them again.
    """
    attempt = calling.turn._attempt
    wanted = None if keys is None else tuple(keys)
    found = {
        name: call
        for name, call in calls_to_cancel(_calls(attempt.results or {})).items()
        if wanted is None or name in wanted or name.startswith(tuple(f"{k}/" for k in wanted))
    }
    if not found:
        return
    with attempt.waits.busy():
        connections = calling.turn._services.connections
        await cancel_calls(connections, calling.turn.task_id, found)
        for name, call in found.items():
            await attempt.log_call(name, replace(call, ended=True), durable=False)


def _calls(results: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key.startswith(CALL_PREFIX)}
