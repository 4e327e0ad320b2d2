"""Calls of agents for hosts: a message or a task, followed until it ends, asks, or takes long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from mcp import MCPError, types

from parley.agent.tools.tool import ToolResult
from parley.client.errors import ClientError
from parley.client.remote_agent import RemoteAgent
from parley.extensions.usage import run_progress
from parley.llm.remote_skills import RemoteQuestion, result_of
from parley.mcp.agents import BridgedAgent, BridgedAgents, SkillTool
from parley.mcp.content import blocks_of
from parley.mcp.handles import Handles, UnknownHandle
from parley.mcp.host import HostRequest
from parley.mcp.questions import Asked, asked_by
from parley.mcp.schemas import WRAPPED_RESULT
from parley.mcp.task_values import created
from parley.model.errors import A2AError, TaskNotCancelableError
from parley.model.parts import Message
from parley.model.tasks import (
    Event,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
)

log = logging.getLogger("parley.mcp")

CANCEL_SECONDS = 5.0
"""How long the cancellation of a call waits for that of its task."""

TASK_SECONDS = 2.0
"""After how many seconds a call is a task, for hosts that take tasks."""

Answer = types.CallToolResult | types.InputRequiredResult | dict[str, Any]


class Running(Exception):
    """A task goes on after the time that a call may take."""

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id
        super().__init__(task_id)


class AgentCalls:
    """Calls agents for hosts. ``wait`` is how long a call takes at most, in seconds."""

    def __init__(self, agents: BridgedAgents, handles: Handles, wait: float) -> None:
        self.agents = agents
        self.handles = handles
        self.wait = wait

    # -- calls ---------------------------------------------------------------------------------

    async def call(
        self,
        host: HostRequest,
        agent: BridgedAgent,
        message: Mapping[str, Any] | None,
        *,
        tool: SkillTool | None = None,
        task_id: str = "",
        wait: float | None = None,
    ) -> Answer:
        """Send a message, or follow a task without one, and return what the host gets.

        That is the result, what the agent asks, or how to follow a task that takes longer.
        """
        limit = self.wait if wait is None else wait
        if host.takes_tasks and tool is not None:
            limit = min(limit, TASK_SECONDS)
        try:
            async with self.agents.connected(agent, host.credentials) as remote:
                while True:
                    try:
                        answer = await self._followed(host, remote, message, task_id, limit)
                        return called(result_of(answer), tool)
                    except RemoteQuestion as question:
                        task = question.task
                    asked, task_id = asked_by(task), task.id
                    if host.is_modern or not asked.can_be_asked(host.capabilities):
                        return self._asks(host, agent, task, asked, tool)
                    given = await host.elicit(asked.params)
                    if given.action != "accept":
                        return await self.declined(host, agent, remote, task, given.action, tool)
                    message = None if asked.is_auth else asked.content(given.content or {})
        except Running as running:
            return await self._goes_on(host, agent, running.task_id, tool)
        except (A2AError, ClientError, ValueError) as error:  # such as nothing to send
            return failed(f"{agent.card.name if agent.card else agent.slug}: {error}")

    async def _followed(
        self,
        host: HostRequest,
        remote: RemoteAgent,
        message: Mapping[str, Any] | None,
        task_id: str,
        limit: float,
    ) -> Task | Message:
        """Return the answer. Raises ``Running`` after ``limit`` seconds, once the task is known.

        A call that is cancelled cancels the task.
        """
        began = asyncio.get_running_loop().time()
        direct: Message | None = None
        if message is None:
            task = await remote.get(task_id)
            if task.state.is_terminal or task.state is TaskState.INPUT_REQUIRED:
                return task
            stream = remote.subscribe(task_id)
        else:
            stream = remote.stream(**{"task_id": task_id or None, **message})
        known = task_id
        try:
            async with asyncio.timeout(None) as deadline:
                if known:
                    deadline.reschedule(began + limit)
                async with stream as events:
                    async for event in events:
                        if isinstance(event, Message):
                            direct = event
                            break
                        if not known:
                            known = events.task_id
                            deadline.reschedule(began + limit)
                        if said := progress_of(event):
                            await host.progress(said)
                        if _waits(event):
                            break
        except TimeoutError:
            if not deadline.expired():
                raise
            raise Running(known) from None
        except asyncio.CancelledError:
            if known:
                await _cancel(remote, known)
            raise
        return direct if direct is not None else await remote.get(known)

    async def declined(
        self,
        host: HostRequest,
        agent: BridgedAgent,
        remote: RemoteAgent,
        task: Task,
        action: str,
        tool: SkillTool | None,
    ) -> types.CallToolResult:
        """Return what a host gets whose user did not answer: one who declines ends the task."""
        if action == "decline":
            await _cancel(remote, task.id)
            return failed("The user declined to answer, so the task was canceled.")
        asked = asked_by(task)
        handle = self.handle(host, agent, task.id, tool)
        return note(f"The user has not answered. {asked.said(handle)}", handle, task.state, tool)

    # -- what is no result yet -----------------------------------------------------------------

    def _asks(
        self,
        host: HostRequest,
        agent: BridgedAgent,
        task: Task,
        asked: Asked,
        tool: SkillTool | None,
    ) -> Answer:
        handle = self.handle(host, agent, task.id, tool)
        if host.is_modern and asked.can_be_asked(host.capabilities):
            request = types.ElicitRequest(params=asked.params)
            return types.InputRequiredResult(
                input_requests={asked.key: request}, request_state=handle
            )
        return note(asked.said(handle), handle, task.state, tool)

    async def _goes_on(
        self, host: HostRequest, agent: BridgedAgent, task_id: str, tool: SkillTool | None
    ) -> Answer:
        handle = self.handle(host, agent, task_id, tool)
        if host.takes_tasks and tool is not None:
            async with self.agents.connected(agent, host.credentials) as remote:
                return created(handle, await remote.get(task_id))
        text = (
            f"The task {handle} is still at work. Wait for it with follow_task(task={handle!r}), "
            f"or stop it with cancel_task(task={handle!r})."
        )
        return note(text, handle, TaskState.WORKING, tool)

    async def start(
        self, host: HostRequest, tool: SkillTool, arguments: Mapping[str, Any]
    ) -> types.CallToolResult:
        """Start a task, and return its handle at once; a direct answer is the result."""
        agent = tool.agent
        async with self.agents.connected(agent, host.credentials) as remote:
            answer = await remote.send(**tool.message(arguments), return_immediately=True)
        if isinstance(answer, Message) or answer.state.is_terminal:
            return called(result_of(answer), None)
        handle = self.handle(host, agent, answer.id, tool)
        text = f"Started the task {handle}: follow it with follow_task, stop it with cancel_task."
        return note(text, handle, answer.state, None)

    def handle(
        self, host: HostRequest, agent: BridgedAgent, task_id: str, tool: SkillTool | None
    ) -> str:
        """Return how a host names a task; it names a tool too whose results have a schema."""
        has_schema = tool is not None and tool.output_schema is not None
        name = f"{agent.slug}/{tool.name}" if tool is not None and has_schema else agent.slug
        return self.handles.make(name, task_id, host.principal)

    def named(
        self, host: HostRequest, handle: object
    ) -> tuple[BridgedAgent, str, SkillTool | None]:
        """Return the agent, the id and the tool of a task. Raises ``MCPError``."""
        try:
            name, task_id = self.handles.read(str(handle), host.principal)
        except UnknownHandle as error:
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        slug, _, tool = name.partition("/")
        agent = self.agents.of(slug)
        if agent is None:
            raise MCPError(types.INVALID_PARAMS, str(UnknownHandle()))
        return agent, task_id, self.agents.tools.get(tool)


async def _cancel(remote: RemoteAgent, task_id: str) -> None:
    """Cancel a task, also while the call itself is cancelled. What fails is logged."""

    async def cancel() -> None:
        try:
            async with asyncio.timeout(CANCEL_SECONDS):
                await remote.cancel(task_id)
        except TaskNotCancelableError:
            pass  # it has ended
        except (A2AError, ClientError, TimeoutError) as error:
            log.warning("the task %s is not canceled: %s", task_id, error)

    work = asyncio.ensure_future(cancel())
    while not work.done():
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            continue  # the cancellation goes on, for CANCEL_SECONDS at most


def _waits(event: Event) -> bool:
    """Return whether a task waits for something that its caller does."""
    if isinstance(event, Task | TaskStatusUpdateEvent):
        return event.status.state is TaskState.AUTH_REQUIRED
    return False


def progress_of(event: Event) -> str:
    """Return what an event tells of how a task goes on, empty for nothing."""
    if isinstance(event, TaskStatusUpdateEvent):
        said = event.status.message
        if event.status.state is TaskState.WORKING and said is not None:
            return said.text
        if (shown := run_progress(event)) and shown["kind"] == "toolProgress":
            return f"{shown.get('name')}: {shown.get('text')}"
    if isinstance(event, TaskArtifactUpdateEvent):
        texts = [part.text for part in event.artifact.parts if part.text]
        return "".join(texts) or f"artifact {event.artifact.name or event.artifact.artifact_id}"
    return ""


def called(result: ToolResult, tool: SkillTool | None) -> types.CallToolResult:
    """Return the result of an agent as that of a tool."""
    data = result.data
    if tool is not None and tool.output_schema is not None and not result.is_error:
        if tool.wraps_result:
            data = {WRAPPED_RESULT: result.text if data is None else data}
        if data is None:
            return failed(f"{tool.name} returned no data, unlike its card says: {result.text}")
    elif data is not None and not isinstance(data, dict):
        data = {WRAPPED_RESULT: data}  # hosts of the older protocol take objects only
    return types.CallToolResult(
        content=blocks_of(result.parts), structured_content=data, is_error=result.is_error
    )


def failed(text: str) -> types.CallToolResult:
    """Return a result that is an error."""
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def note(text: str, handle: str, state: TaskState, tool: SkillTool | None) -> types.CallToolResult:
    """Return a result that is none yet. For a tool with a result schema it has to be an error."""
    has_schema = tool is not None and tool.output_schema is not None
    data = {"task": handle, "state": state.value}
    return types.CallToolResult(
        content=[types.TextContent(text=text)],
        structured_content=None if has_schema else data,
        is_error=has_schema,
    )
