"""Tool calls that an endpoint streams in pieces, put together."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from parley.llm.model import ModelToolCall

CALL_SIZE = 100
"""What a call adds to the size, beside its arguments."""


def member(value: Any, name: str) -> Any:
    """Return a member of an object, or of a dict as the package leaves what it does not know."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


class _Pieces:
    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []

    @property
    def is_whole(self) -> bool:
        """Whether it has arguments, and they are JSON."""
        try:
            msgspec.json.decode("".join(self.arguments))
        except (msgspec.DecodeError, UnicodeEncodeError):
            return False
        return True


class ToolCallDeltas:
    """Puts the pieces of tool calls together.

    A piece belongs to the call of its ``index``. Some endpoints give all calls the index 0, or
    none: then a new id, or a further name after whole arguments, begins a call. A name may come in
    pieces, or again in each piece.

    ``size`` is about how many characters all calls have.
    """

    def __init__(self) -> None:
        self.size = 0
        self._calls: list[_Pieces] = []
        self._at: dict[int, _Pieces] = {}

    def add(self, deltas: Iterable[Any]) -> None:
        """Add the pieces of one event."""
        for delta in deltas:
            function = member(delta, "function")
            name, arguments = member(function, "name") or "", member(function, "arguments")
            call = self._of(delta, name)
            if name.startswith(call.name):
                call.name = name
            elif not call.arguments:
                call.name += name
            if arguments is not None and not isinstance(arguments, str):
                arguments = msgspec.json.encode(arguments).decode()  # some endpoints do not
            if arguments:
                call.arguments.append(arguments)
                self.size += len(arguments)

    def _of(self, delta: Any, name: str) -> _Pieces:
        index, call_id = member(delta, "index"), member(delta, "id") or ""
        known = self._at.get(index) if isinstance(index, int) else None
        if known is None and not isinstance(index, int) and self._calls:
            known = self._calls[-1]
        is_other = known is not None and (
            (call_id and known.id and call_id != known.id)
            or (not call_id and name and known.name and known.is_whole)
        )
        if known is None or is_other:
            known = _Pieces(call_id)
            self._calls.append(known)
            self.size += CALL_SIZE
        elif call_id and not known.id:
            known.id = call_id
        if isinstance(index, int):
            self._at[index] = known
        return known

    def whole(self) -> tuple[ModelToolCall, ...]:
        """Return the calls. One without an id gets its number as one."""
        return tuple(
            ModelToolCall(
                id=call.id or f"call_{number}",
                name=call.name,
                arguments="".join(call.arguments).strip() or "{}",
            )
            for number, call in enumerate(self._calls, 1)
        )
