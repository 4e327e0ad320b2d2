"""Calls of models and tools as steps of a task: how a further attempt finds them again."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from parley.agent.turn import Turn
from parley.model.struct import valid_text

MAX_KEPT = 1 << 20
"""The most bytes of one reply or result that are remembered; a longer one is made again."""


class CallKeys:
    """Names calls by what they are asked, and by how often that was asked before in the run.

    It may be used from several threads.
    """

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._lock = threading.Lock()

    def key(self, kind: str, asked: object) -> str:
        """Return the key of the next call of a kind that is asked this.

        What is no JSON counts as its text.
        """
        said = msgspec.json.encode(asked, enc_hook=str, order="deterministic")
        name = f"{kind}:{hashlib.sha256(said).hexdigest()[:24]}"
        with self._lock:
            self._times[name] += 1
            return f"{name}:{self._times[name]}"


class RememberedCalls:
    """Calls of models and tools in a run, remembered in the log of the turn's task.

    A call is known by its request and by the number of equal requests before it in the run.
    """

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._keys = CallKeys()

    async def once(
        self, kind: str, asked: object, function: Callable[[], Awaitable[dict[str, Any] | None]]
    ) -> dict[str, Any] | None:
        """Return what the function returned in an earlier attempt, else call it.

        ``None`` says that the call was made, now or then, and that its result is not remembered.
        """

        async def bounded() -> Any:
            return remembered(await function())

        kept: dict[str, Any] | None = await self._turn.step(self._keys.key(kind, asked), bounded)
        return kept

    def recall(self, kind: str, asked: object) -> tuple[str, Any]:
        """Return the key of the next call, and its result: ``UNSET`` for a call not made yet."""
        key = self._keys.key(kind, asked)
        found = self._turn._attempt.step_result(key)
        return key, msgspec.UNSET if found is None else msgspec.json.decode(found)

    async def keep(self, key: str, result: Any) -> None:
        """Remember the result of a call that ``recall`` did not find."""
        await self._turn._attempt.keep_result(key, msgspec.json.encode(remembered(result)))


def remembered(value: Any) -> Any:
    """Return a value as the JSON that a step keeps, ``None`` for one that is too long."""
    written = msgspec.json.encode(valid_text(value))
    return msgspec.json.decode(written) if len(written) <= MAX_KEPT else None


def json_value(result: Any) -> dict[str, Any] | None:
    """Return the result of a tool as ``{"value": ...}``, ``None`` if it has no JSON form."""
    try:
        return {"value": msgspec.json.decode(msgspec.json.encode(result))}
    except (TypeError, ValueError):
        return None
