"""A tool: something that a model can be offered, and that is called by name with JSON arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from parley.extensions.usage import Spent
from parley.model.parts import Part


class ToolResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool returned: parts, for people and models, and a JSON value if it has one.

    ``is_error`` says that the call failed; the parts then say why. ``spent`` is what the call cost,
    as far as it is known.
    """

    parts: tuple[Part, ...] = ()
    data: Any = None
    is_error: bool = False
    spent: Spent = Spent()

    @property
    def text(self) -> str:
        """The text of its parts, or else its data as JSON."""
        text = "\n".join(part.text for part in self.parts if isinstance(part.text, str))
        if text or self.data is None:
            return text
        return msgspec.json.encode(self.data).decode()


class Tool(Protocol):
    """Something that can be called by name. ``parameters`` is the JSON Schema of its arguments."""

    @property
    def name(self) -> str:
        """The name under which it is called: letters, digits, ``_`` and ``-``, at most 64."""
        ...

    @property
    def description(self) -> str:
        """What it does, for the model that chooses."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON Schema of its arguments, an object."""
        ...

    async def call(self, arguments: Mapping[str, Any], *, key: str) -> ToolResult:
        """Call it. ``key`` identifies the call within its turn, so that it is done once.

        Raises what makes the turn fail; what the model should see is a result with ``is_error``.
        """
        ...
