"""The calls of tools in a task's log: what was called, what was asked meanwhile, the result.

``agent.tools`` makes the calls.
"""

from __future__ import annotations

from typing import Any

from parley.model.parts import Part
from parley.model.struct import A2AStruct

PREFIX = "tool:"
"""The prefix of the keys of these records, among those of steps and questions."""


class ToolCallRecord(A2AStruct, frozen=True, kw_only=True):
    """One call of a tool of an MCP server, as the log has it.

    ``server`` is its address, without secrets. ``state`` is ``called``, ``asked`` (the server waits
    for the caller of the task) or ``returned``; then ``parts`` and ``data`` are the result.
    ``questions`` are the requests of round ``round``, and ``request_state`` is what the server
    wants to have back with their answers.
    """

    server: str
    tool: str
    state: str = ""
    parts: tuple[Part, ...] = ()
    data: Any = None
    failed: bool = False
    questions: dict[str, Any] = {}
    request_state: str | None = None
    round: int = 0
