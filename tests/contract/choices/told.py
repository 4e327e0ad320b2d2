"""A server's responses, parsed from bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, NamedTuple

import grpc

from tests.kit.http import WAIT

KINDS = {
    "task": "task",
    "message": "message",
    "status-update": "statusUpdate",
    "artifact-update": "artifactUpdate",
}


class Answer(NamedTuple):
    """A response: a result, or an error with its code, reason and message.

    ``status`` is the HTTP status, or the name of the gRPC status.
    """

    status: int | str
    headers: Mapping[str, str]
    body: bytes
    result: Any = None
    code: int | None = None
    reason: str = ""
    message: str = ""
    metadata: Mapping[str, str] = {}
    fields: tuple[str, ...] = ()

    @property
    def is_refused(self) -> bool:
        return bool(self.reason)


class Event(NamedTuple):
    """One event of a stream; ``kind`` is the event's member name in the JSON of 1.0."""

    kind: str
    value: Any

    @property
    def state(self) -> str:
        return state_of(self.value) if "status" in self.value else ""


def state_of(task: Mapping[str, Any]) -> str:
    """The state of a task or a status update, with the same names for all versions."""
    state = task["status"].get("state", "unspecified")
    state = state.lower().removeprefix("task_state_").replace("_", "-")
    return {"cancelled": "canceled", "unknown": "unspecified"}.get(state, state)


def words_of(value: Mapping[str, Any] | None) -> str:
    """The text of a message or an artifact, from the JSON of any version."""
    parts = (value or {}).get("parts") or (value or {}).get("content") or ()
    return "".join(part.get("text", "") for part in parts)


def said_in(task: Mapping[str, Any]) -> str:
    """The text of a task's or an update's status message."""
    status = task["status"]
    return words_of(status.get("message") or status.get("update"))


class Events:
    """An open stream. ``refusal`` is the error response, if the server rejects the stream."""

    def __init__(self, items: AsyncIterator[Event], refusal: Answer | None = None) -> None:
        self.refusal = refusal
        self.headers: Mapping[str, str] = {}
        self._items = items

    async def next(self) -> Event | None:
        """The next event, or ``None`` at the end."""
        async with asyncio.timeout(WAIT):
            return await anext(self._items, None)

    async def rest(self) -> list[Event]:
        """All remaining events."""
        found = []
        while (event := await self.next()) is not None:
            found.append(event)
        return found

    async def until(self, state: str) -> Event:
        """Skip to the event with this state."""
        while (event := await self.next()) is not None:
            if event.state == state:
                return event
        raise AssertionError(f"the stream ended without {state}")


async def nothing() -> AsyncIterator[Event]:
    return
    yield


def refused(
    status: int, headers: Mapping[str, str], body: bytes, error: Any, details: list[Any]
) -> Answer:
    info = details[0]
    assert info["@type"] == "type.googleapis.com/google.rpc.ErrorInfo"
    assert info["domain"] == "a2a-protocol.org"
    wrong = [each["fieldViolations"] for each in details[1:] if "fieldViolations" in each]
    return Answer(
        status,
        headers,
        body,
        None,
        error["code"],
        info["reason"],
        error["message"],
        info["metadata"],
        tuple(each["field"] for violations in wrong for each in violations),
    )


def refused_over_grpc(error: grpc.aio.AioRpcError) -> Answer:
    trailing = dict(error.trailing_metadata() or ())
    data = trailing["grpc-status-details-bin"]
    status = _fields_of(data)
    info, *others = [_fields_of(each) for each in status[3]]
    assert info[1] == [b"type.googleapis.com/google.rpc.ErrorInfo"]
    reason = _fields_of(info[2][0])
    assert reason[2] == [b"a2a-protocol.org"]
    entries = [_fields_of(each) for each in reason.get(3, ())]
    wrong = [_fields_of(each[2][0]) for each in others if each[1][0].endswith(b"BadRequest")]
    names = [_fields_of(each)[1][0] for violations in wrong for each in violations[1]]
    return Answer(
        error.code().name,
        dict(error.initial_metadata() or ()),
        data,
        None,
        status[1][0],
        reason[1][0].decode(),
        error.details() or "",
        {each[1][0].decode(): each.get(2, [b""])[0].decode() for each in entries},
        tuple(name.decode() for name in names),
    )


def _fields_of(data: bytes) -> dict[int, list[Any]]:
    """Return a protobuf message's fields by number: integers, and bytes for all other types."""
    found: dict[int, list[Any]] = {}
    rest = iter(data)
    for key in _numbers(rest):
        assert key & 7 in (0, 2), "a number, or something with a length"
        value: Any = next(_numbers(rest))
        if key & 7:
            value = bytes(next(rest) for _ in range(value))
        found.setdefault(key >> 3, []).append(value)
    return found


def _numbers(data: Iterator[int]) -> Iterator[int]:
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield number
            number = shift = 0
