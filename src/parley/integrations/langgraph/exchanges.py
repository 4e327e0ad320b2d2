"""Messages to other agents from within a graph: sent once, their questions asked by interrupts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langgraph.config import get_config, get_stream_writer
from langgraph.func import task
from langgraph.types import interrupt

from parley.agent.tools.tool import ToolResult
from parley.extensions.questions import question
from parley.llm.remote_skills import RemoteQuestion
from parley.model.parts import Part
from parley.model.struct import decode, encode
from parley.model.tasks import Task, TaskState

Send = Callable[[Any, str, str], Awaitable[ToolResult]]
"""Sends content to a task, or begins one (""), under a key, and returns what it came to.

Raises ``RemoteQuestion``.
"""

_CHECKPOINTER = "__pregel_checkpointer"
_CALL = "__pregel_call"
# LangGraph names these only inside; without them a question cannot be kept, and is not asked here.


class NodePlace:
    """Where in a graph something runs: what identifies it, and whether it may interrupt."""

    def __init__(self, name: str = "") -> None:
        try:
            self._configurable: Mapping[str, Any] = get_config().get("configurable", {})
        except RuntimeError:  # outside of a graph
            self._configurable = {}
        self.keeps_state = bool(
            self._configurable.get(_CHECKPOINTER) and _CALL in self._configurable
        )
        space = str(self._configurable.get("checkpoint_ns", ""))
        # Without checkpoints a further run has other names, and calls are known by their order.
        self.key = f"langgraph:{space}:{name}" if self.keeps_state else ""
        self._name = name

    @property
    def thread(self) -> str:
        """The thread of the graph, empty without one."""
        return str(self._configurable.get("thread_id", ""))

    def write(self, text: str) -> None:
        """Write to the custom stream of the graph, if it runs in one."""
        if self._configurable.get(_CALL) is not None:
            get_stream_writer()(text)

    async def converse(self, agent: str, content: Any, send: Send) -> ToolResult:
        """Send content, and answers to what the agent asks, until its task has ended.

        Each exchange is kept in the checkpoint, so a node that runs again, for an answer or after a
        crash, does not send again. Without a checkpointer a question raises ``RemoteQuestion``.
        """
        task_id, number = "", 0
        while True:
            outcome = await self._once(content, task_id, number, send)
            if isinstance(outcome, ToolResult):
                return outcome
            if not self.keeps_state:
                raise RemoteQuestion(outcome)
            asked = _asked(agent, outcome)
            content = sendable(interrupt(asked[0], response_schema=asked[1]))
            task_id, number = outcome.id, number + 1

    async def _once(self, content: Any, task_id: str, number: int, send: Send) -> ToolResult | Task:
        key = f"{self.key}:{number}" if self.key else ""

        async def exchange() -> dict[str, str]:
            try:
                return {"result": encode(await send(content, task_id, key)).decode()}
            except RemoteQuestion as asked:
                return {"question": encode(asked.task).decode()}

        if self.keeps_state:
            kept = await task(exchange, name=f"a2a:{self._name}:{number}")()
        else:
            kept = await exchange()
        if "question" in kept:
            return decode(kept["question"].encode(), Task)
        return decode(kept["result"].encode(), ToolResult)


def _asked(agent: str, waiting: Task) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return a question as the value of an interrupt, and the schema of its answer."""
    found = question(waiting)
    message = waiting.status.message
    value: dict[str, Any] = {
        "question": message.text if message is not None else "",
        "agent": agent,
        "task": waiting.id,
    }
    if waiting.state is TaskState.AUTH_REQUIRED:
        value["needs"] = "authorization"
    parts = () if message is None or found is not None else message.parts
    data = [part.data for part in parts if part.has_data]
    if data:
        value["data"] = data[0] if len(data) == 1 else data
    return value, None if found is None else dict(found.schema)


def sendable(content: Any) -> Any:
    """Return the answer to an interrupt as the content of a message."""
    return content if isinstance(content, str | Mapping) else Part(data=content)
